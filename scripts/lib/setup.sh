# Sourced by the scripts, in the repository's folder: system packages, a Python of 3.11 or newer, the venv.
# Says what it does and how far it is; says nothing when nothing is to be done.

say() { printf '==> %s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

trap 'stop_following; say interrupted; exit 130' INT
trap 'stop_following; exit 143' TERM HUP

# set_up EXTRA PACKAGE…: the packages, and the venv with that extra ('' for none); one script at a time in a clone.
set_up() {
    local extra=$1; shift
    exec 9<.
    flock --nonblock 9 || { say "waiting for another script that sets up this folder"; flock 9; }
    [ -n "${PYTHON:-}" ] || usable_venv || find_python >/dev/null || set -- "$@" python3 python3-venv
    need_packages "$@"
    need_venv "$extra"
    exec 9<&-
}

package_missing() { ! dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q '^install ok installed'; }

missing_packages() {
    local name
    command -v dpkg-query >/dev/null || fail "this script sets up Debian and its relatives; elsewhere install: $*"
    for name in "$@"; do if package_missing "$name"; then printf '%s ' "$name"; fi; done
}

# need_packages NAME…: install what is missing, as root; otherwise say which and stop.
need_packages() {
    local missing
    missing=$(missing_packages "$@") || exit
    read -ra missing <<<"$missing"
    [ ${#missing[@]} -eq 0 ] && return 0
    [ "$(id -u)" = 0 ] || fail "packages are missing; run this as root, then the script again:
    apt-get install --no-install-recommends ${missing[*]}"
    say "installing Debian packages: ${missing[*]}"
    quietly apt_install "${missing[@]}" \
        || fail "apt-get could not install the packages; if they were not found: does it reach its package mirror?"
}

apt_install() {
    # Another apt may be at work, on a new machine above all.
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300)
    # What matters is whether the packages are there then: a source of the machine that has nothing to do with them
    # may fail, and apt calls it a success when none can be reached.
    "${apt[@]}" update || true
    "${apt[@]}" install --no-install-recommends "$@"
}

good_python() { "$1" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# A Python of 3.11 or newer that can make a venv: $PYTHON where that is set, else the newest.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
        if good_python "$candidate"; then command -v "$candidate"; return; fi
    done
    return 1
}

# need_venv [EXTRA]: .venv with the server and the SDK, again when what it was made of has changed.
need_venv() {
    local extra=${1:-} stamp want python
    want=$(cat pyproject.toml agents/sdk/pyproject.toml | sha256sum | cut -c1-16)
    if ! usable_venv; then
        python=$(find_python) || fail "${PYTHON:-what is installed} is no Python of 3.11 or newer with venv: set PYTHON to one"
        say "making .venv with $("$python" --version)"
        rm -rf .venv
        "$python" -m venv .venv || fail "$python could not make .venv"
    fi
    for stamp in .venv/.warmpool-{dev,"$extra"}; do
        [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && return 0
    done
    say "installing Warmpool and what it needs into .venv"
    quietly .venv/bin/python -m pip install --disable-pip-version-check --no-input --progress-bar off \
        -e ".${extra:+[$extra]}" -e agents/sdk || fail "pip could not install Warmpool: does it reach the package index?"
    echo "$want" >".venv/.warmpool-$extra"
}

# Whether .venv works, was made in this folder (its programs name it), and is of the Python that PYTHON asks for.
usable_venv() {
    .venv/bin/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
        && grep -qsF "$(pwd -P)/.venv/" .venv/bin/pip \
        && [ "$(.venv/bin/python --version)" = "$("${PYTHON:-.venv/bin/python}" --version 2>/dev/null)" ]
}

# quietly COMMAND…: show only how far it is while it runs; all of its output if it fails. Its exit code.
quietly() {
    local code=0 problem=
    followed=$(mktemp)
    follow "$followed" & follower=$!
    # Without the lock, which a daemon that a package starts would keep.
    "$@" >"$followed" 2>&1 </dev/null 9<&- || code=$?
    [ "$code" = 0 ] || problem=$(<"$followed")
    stop_following
    [ "$code" = 0 ] || printf '%s\n' "$problem" >&2
    return "$code"
}

follower=
stop_following() {
    [ -n "$follower" ] || return 0
    { kill "$follower" && wait "$follower"; } 2>/dev/null || true
    rm -f "$followed"
    follower=
}

# follow LOG: its last line and the seconds so far; on one line of a terminal, else a line each 10 s.
follow() {
    local columns every=10 began=$SECONDS line none
    if [ -t 2 ]; then
        columns=$(stty size <&2 2>/dev/null | cut -d' ' -f2)
        [ "${columns:-0}" -gt 20 ] || columns=80
        every=1
        trap 'printf "\r\033[K" >&2; exit' TERM
    fi
    # Reads from it wait in vain: a pause without a process that could outlive this one.
    exec {none}<> <(:)
    while ! read -r -t "$every" -u "$none" _; do
        kill -0 "$$" 2>/dev/null || exit
        line=$(tail -c 400 "$1" | tr -s '\r\t ' ' ' | tail -n 1)
        if [ -t 2 ]; then
            line="    $((SECONDS - began)) s  $line"
            printf '\r\033[K%s' "${line:0:columns - 1}" >&2
        else
            printf '    %d s  %s\n' "$((SECONDS - began))" "${line:0:70}" >&2
        fi
    done
}
