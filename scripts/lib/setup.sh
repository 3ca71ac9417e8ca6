# Sourced by the scripts: system packages, a Python of 3.11 or newer, the venv. Says what it does; quiet when done.

say() { printf '==> %s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

package_missing() { ! dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q '^install ok installed'; }

# need_packages NAME…: install what is missing, as root; otherwise say which and stop.
need_packages() {
    local missing=() name
    command -v dpkg-query >/dev/null || fail "this script sets up Debian and its relatives; elsewhere install: $*"
    for name in "$@"; do package_missing "$name" && missing+=("$name"); done
    [ ${#missing[@]} -eq 0 ] && return 0
    [ "$(id -u)" = 0 ] || fail "missing packages; run: sudo apt-get install ${missing[*]}"
    say "installing ${missing[*]}"
    local log; log=$(mktemp)
    apt-get -q update >"$log" 2>&1 || { cat "$log" >&2; fail "apt-get update failed"; }
    DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1 \
        || { cat "$log" >&2; fail "apt-get install failed"; }
    rm -f "$log"
}

# A Python of 3.11 or newer that can make a venv.
find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3; do
        [ -n "$candidate" ] && command -v "$candidate" >/dev/null || continue
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        "$candidate" -c 'import ensurepip, venv' 2>/dev/null || continue
        command -v "$candidate"
        return 0
    done
    return 1
}

# need_venv [EXTRA]: .venv with the server and the SDK, again when either's pyproject.toml changed.
need_venv() {
    local extra=${1:-} stamp want python
    want=$(cat pyproject.toml agents/sdk/pyproject.toml | sha256sum | cut -c1-16)
    stamp=.venv/.warmpool-${extra:-run}
    [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && return 0
    if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$(find_python) || { need_packages python3 python3-venv; python=$(find_python); } \
            || fail "no Python of 3.11 or newer with venv was found; set PYTHON to one"
        say "making .venv with $("$python" --version)"
        rm -rf .venv
        "$python" -m venv .venv
    fi
    say "installing Warmpool into .venv"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check \
        -e ".${extra:+[$extra]}" -e agents/sdk || fail "pip could not install Warmpool"
    echo "$want" >"$stamp"
}
