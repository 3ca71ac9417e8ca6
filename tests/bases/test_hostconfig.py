"""What of the host's network settings reaches a build: names and addresses, never credentials or files."""

from __future__ import annotations

from pathlib import Path

from controlplane.bases.aptsources import DEFAULT_MAIN, DEFAULT_SECURITY, host_mirrors
from controlplane.bases.hostconfig import HostConfig, detect


def found(root: Path, env: dict[str, str] | None = None) -> HostConfig:
    return detect("auto", env=env or {}, root=root, home=root / "home")


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_none_passes_nothing(tmp_path: Path) -> None:
    put(tmp_path, "etc/pip.conf", "[global]\nindex-url = https://index.example/simple\n")
    config = detect("none", env={"PIP_INDEX_URL": "https://x.example"}, root=tmp_path, home=tmp_path)
    assert (config.environment("/ca.pem"), config.hosts(), config.files()) == ({}, [], {})


def test_a_plain_host_passes_nothing(tmp_path: Path) -> None:
    config = found(tmp_path)
    assert (config.environment("/ca.pem"), config.hosts(), config.files()) == ({}, [], {})


def test_a_ca_bundle_is_named_to_every_tool_by_its_path_inside(tmp_path: Path) -> None:
    put(tmp_path, "etc/ssl/certs/ca-certificates.crt", "PEM")
    config = found(tmp_path)
    assert config.ca_bundle == tmp_path / "etc/ssl/certs/ca-certificates.crt"
    env = config.environment("/run/warmpool/ca.pem")
    assert set(env.values()) == {"/run/warmpool/ca.pem"}
    assert env.keys() == {
        "SSL_CERT_FILE",
        "REQUESTS_CA_BUNDLE",
        "PIP_CERT",
        "CURL_CA_BUNDLE",
        "GIT_SSL_CAINFO",
        "NODE_EXTRA_CA_CERTS",
    }


def test_a_ca_bundle_named_by_the_environment_comes_first(tmp_path: Path) -> None:
    put(tmp_path, "etc/ssl/certs/ca-certificates.crt", "PEM")
    put(tmp_path, "corp.pem", "PEM")
    assert found(tmp_path, {"SSL_CERT_FILE": str(tmp_path / "corp.pem")}).ca_bundle == tmp_path / "corp.pem"
    gone = found(tmp_path, {"SSL_CERT_FILE": str(tmp_path / "gone.pem")}).ca_bundle
    assert gone == tmp_path / "etc/ssl/certs/ca-certificates.crt"


def test_pip_indexes_pass_in_pips_own_order_of_precedence(tmp_path: Path) -> None:
    put(
        tmp_path,
        "etc/pip.conf",
        "[global]\nindex-url = https://old.example/simple\ntimeout = 90\n"
        "constraint = /etc/c.txt\nfind-links = /opt/w\n",
    )
    put(
        tmp_path,
        "home/.config/pip/pip.conf",
        "[global]\nextra-index-url =\n    https://one.example:8443/simple\n    http://two.example/simple\n",
    )
    config = found(tmp_path, {"PIP_INDEX_URL": "https://new.example/simple", "PIP_FIND_LINKS": "/opt/wheels"})
    assert config.environment("/ca.pem") == {
        "PIP_INDEX_URL": "https://new.example/simple",
        "PIP_EXTRA_INDEX_URL": "https://one.example:8443/simple http://two.example/simple",
        "PIP_TIMEOUT": "90",
    }
    assert config.hosts() == ["new.example:443", "one.example:8443", "two.example:80"]


def test_files_of_the_host_and_credentials_stay_out_and_are_told(tmp_path: Path) -> None:
    config = found(
        tmp_path,
        {
            "PIP_INDEX_URL": "https://me:secret@index.example/simple",
            "PIP_EXTRA_INDEX_URL": "file:///opt/pypi/simple https://good.example/simple",
            "npm_config_registry": "https://token@npm.example/",
        },
    )
    assert config.environment("/ca.pem") == {"PIP_EXTRA_INDEX_URL": "https://good.example/simple"}
    assert len(config.notes) == 3
    assert "secret" not in repr(config) and "token" not in repr(config)


def test_npm_registries_come_from_the_environment_or_npmrc(tmp_path: Path) -> None:
    put(tmp_path, "home/.npmrc", "fund=false\nregistry=https://npm.example/\n")
    assert found(tmp_path).environment("/ca")["npm_config_registry"] == "https://npm.example/"
    assert found(tmp_path).hosts() == ["npm.example:443"]


def test_a_mirror_of_debian_is_used_inside_in_the_bases_own_release(tmp_path: Path) -> None:
    put(
        tmp_path,
        "etc/apt/sources.list.d/debian.sources",
        "# corp\nTypes: deb deb-src\nURIs: https://apt.example/debian/\nSuites: trixie trixie-updates\n"
        "Components: main\n\nTypes: deb\nURIs: https://apt.example/debian-security\nSuites: trixie-security\n"
        "Components: main contrib\n\nTypes: deb\nURIs: https://other.example/x\nSuites: stable\nComponents: tool\n",
    )
    put(tmp_path, "etc/apt/apt.conf.d/99x", 'Acquire::Check-Valid-Until "false";\nAPT::Foo "bar";\n')
    config = found(tmp_path)
    assert config.hosts() == ["apt.example:443"]
    files = config.files("bookworm")
    assert files["/etc/apt/sources.list"].splitlines() == [
        "deb https://apt.example/debian bookworm main",
        "deb https://apt.example/debian bookworm-updates main",
        "deb https://apt.example/debian-security bookworm-security main",
    ]
    assert files["/etc/apt/apt.conf.d/90host"] == 'Acquire::Check-Valid-Until "false";\n'


def test_mirrors_without_http_with_credentials_or_switched_off_do_not_count(tmp_path: Path) -> None:
    put(
        tmp_path,
        "sources.list",
        "deb cdrom:[x]/ bookworm main\ndeb [arch=amd64 signed-by=/k] http://u:p@apt.example/debian bookworm main\n"
        "# deb http://no.example/debian bookworm main\ndeb http://ppa.example/ubuntu jammy main\n"
        "deb [trusted=yes] http://yes.example/debian bookworm main contrib\n",
    )
    put(
        tmp_path,
        "sources.list.d/off.sources",
        "Types: deb\nEnabled: no\nURIs: http://off.example/debian\nSuites: bookworm\nComponents: main\n",
    )
    mirrors = host_mirrors(tmp_path)
    assert mirrors.main == ("http://yes.example/debian", DEFAULT_MAIN)
    assert mirrors.of("security") == (DEFAULT_SECURITY,)


def test_damaged_files_are_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "etc/pip.conf", "no section here\n[global\n")
    put(tmp_path, "etc/apt/sources.list", "deb\ndeb [\x00\n")
    put(tmp_path, "etc/apt/sources.list.d/x.sources", "Types: deb\n continued\nURIs: http://[::1\nSuites: sid\n")
    assert found(tmp_path).hosts() == []


def test_proxies_are_for_the_gateway_and_not_for_the_sandbox(tmp_path: Path) -> None:
    config = found(tmp_path, {"https_proxy": "http://proxy.example:3128", "NO_PROXY": "localhost"})
    assert config.proxies == {"https": "http://proxy.example:3128", "no": "localhost"}
    assert config.environment("/ca") == {}
