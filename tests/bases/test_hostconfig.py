"""What of the host's network settings reaches a build: names and addresses, never credentials or files."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from controlplane.bases.aptsources import host_mirrors
from controlplane.bases.hostconfig import HostConfig, detect
from controlplane.bases.registries import registries


def found(root: Path, env: dict[str, str] | None = None) -> HostConfig:
    return detect("auto", env=env or {}, root=root, home=root / "home")


def named(config: HostConfig) -> set[str]:
    """What a build may reach because the host names it: without pip's own index."""
    return set(registries(config)) - set(registries(HostConfig(pip_own=config.pip_own)))


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_none_passes_nothing(tmp_path: Path) -> None:
    put(tmp_path, "etc/pip.conf", "[global]\nindex-url = https://index.example/simple\n")
    config = detect("none", env={"PIP_INDEX_URL": "https://x.example"}, root=tmp_path, home=tmp_path)
    assert (config.environment("/ca.pem"), registries(config), config.files()) == ({}, (), {})


def test_a_plain_host_passes_nothing_and_lets_builds_reach_pips_own_index(tmp_path: Path) -> None:
    config = found(tmp_path)
    assert (config.environment("/ca.pem"), config.files()) == ({}, {})
    own = {f"{urlsplit(url).hostname}:443" for url in config.pip_own}
    assert set(registries(config)) == own and len(own) == 2


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
    assert registries(config) == ("new.example:443", "one.example:8443", "two.example:80")


def test_pips_own_index_brings_the_server_of_its_files_also_where_it_is_configured(tmp_path: Path) -> None:
    own = found(tmp_path)
    configured = found(tmp_path, {"PIP_INDEX_URL": own.pip_own[0]})
    assert registries(configured) == registries(own)
    assert set(registries(found(tmp_path, {"PIP_EXTRA_INDEX_URL": "https://one.example/simple"}))) == {
        *registries(own),
        "one.example:443",
    }


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
    assert named(found(tmp_path)) == {"npm.example:443"}


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
    assert named(config) == {"apt.example:443"}
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
    assert mirrors.main == ("http://yes.example/debian",)
    assert mirrors.of("security") == ()


def test_a_mirror_list_of_a_cloud_image_is_followed(tmp_path: Path) -> None:
    put(
        tmp_path,
        "sources.list.d/debian.sources",
        "Types: deb\nURIs: mirror+file:///etc/apt/mirrors/debian.list\nSuites: bookworm bookworm-updates\n"
        "Components: main\n\nTypes: deb\nURIs: mirror+file:/etc/apt/mirrors/security.list\n"
        "Suites: bookworm-security\nComponents: main\n",
    )
    put(
        tmp_path,
        "mirrors/debian.list",
        "# nearest first\nhttps://near.example/debian/\tpriority:1\nftp://far.example/d\n",
    )
    put(tmp_path, "mirrors/security.list", "http://near.example/debian-security\n")
    mirrors = host_mirrors(tmp_path)
    assert mirrors.main == ("https://near.example/debian",)
    assert mirrors.security == ("http://near.example/debian-security",)


def test_a_host_without_a_security_archive_gives_none(tmp_path: Path) -> None:
    put(tmp_path, "etc/apt/sources.list", "deb http://apt.example/debian bookworm main\n")
    sources = found(tmp_path).files()["/etc/apt/sources.list"]
    assert sources.splitlines() == [
        "deb http://apt.example/debian bookworm main",
        "deb http://apt.example/debian bookworm-updates main",
    ]


def test_damaged_files_are_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "etc/pip.conf", "no section here\n[global\n")
    put(tmp_path, "etc/apt/sources.list", "deb\ndeb [\x00\n")
    put(tmp_path, "etc/apt/sources.list.d/x.sources", "Types: deb\n continued\nURIs: http://[::1\nSuites: sid\n")
    assert named(found(tmp_path)) == set()


def test_a_proxy_of_the_host_is_not_passed_on_and_that_is_told(tmp_path: Path) -> None:
    config = found(tmp_path, {"https_proxy": "http://me:secret@proxy.example:3128", "NO_PROXY": "localhost"})
    assert config.environment("/ca") == {} and named(config) == set()
    assert [note.split()[0] for note in config.notes] == ["https_proxy"]
    assert "secret" not in repr(config)
