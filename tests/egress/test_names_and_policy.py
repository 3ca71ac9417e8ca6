from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.egress.addresses import is_public
from agents.egress.names import BadName, Host, Target, parse_authority, parse_host
from agents.egress.policy import BadEntry, Denial, Grant, decide, parse_policy


def decide_text(allow: list[str], target: str) -> Grant | Denial:
    return decide(parse_policy(allow), parse_authority(target, default_port=None))


def allows(allow: list[str], target: str) -> bool:
    return isinstance(decide_text(allow, target), Grant)


@pytest.mark.parametrize("text", ["GITHUB.COM", "github.com.", "GitHub.Com."])
def test_case_and_one_trailing_dot_make_no_difference(text: str) -> None:
    assert parse_host(text) == Host(text="github.com", kind="name")


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "github.com..",
        ".example.com",
        "a..b",
        "-a.com",
        "a-.com",
        "a b",
        "a%41",
        "ä.com",
        "a/b",
        "a\\b",
        "x" * 64 + ".com",
        ("x" * 60 + ".") * 5 + "com",
        "[::1",
        "[fe80::1%eth0]",
        "[1.2.3.4]",
        "[]",
        "a:b",
        "*.a",
    ],
)
def test_what_is_no_host_is_an_error(text: str) -> None:
    with pytest.raises(BadName):
        parse_authority(f"{text}:80", default_port=None)


@pytest.mark.parametrize("port", ["0", "65536", "443x", "", "+1", " 1", "0443", "-1", "1e3", "٤٤٣", "99999999"])
def test_a_bad_port_is_an_error(port: str) -> None:
    with pytest.raises(BadName) as caught:
        parse_authority(f"github.com:{port}", default_port=None)
    assert caught.value.code == "bad_port"


@pytest.mark.parametrize(
    "text",
    [
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "127.0.0.1.",
        "0x7f000001",
        "1.2.3.4.5",
        "foo.1",
        "256.1.1.1",
        "[::ffff:127.0.0.1]",
        "[::127.0.0.1]",
        "[0:0:0:0:0:ffff:7f00:1]",
        "0x",
        "1.2.3.0x",
    ],
)
def test_an_address_in_disguise_is_never_allowed_nor_listed(text: str) -> None:
    assert parse_host(text).kind == "odd"
    assert not allows(["127.0.0.1", "github.com"], f"{text}:80")
    with pytest.raises(BadEntry):
        parse_policy([text])


def test_an_entry_without_a_port_means_443_and_80() -> None:
    assert allows(["github.com"], "github.com:443") and allows(["github.com"], "github.com:80")
    assert not allows(["github.com"], "github.com:22")


def test_an_entry_with_a_port_means_that_port_only() -> None:
    assert allows(["github.com:8443"], "github.com:8443")
    denial = decide_text(["github.com:8443"], "github.com:443")
    assert isinstance(denial, Denial) and denial.reason == "port_not_allowed"


@pytest.mark.parametrize("host", ["evil-github.com", "github.com.evil.com", "notgithub.com", "x.github.com", "com"])
def test_only_the_exact_host_is_allowed(host: str) -> None:
    denial = decide_text(["github.com"], f"{host}:443")
    assert isinstance(denial, Denial) and denial.reason == "host_not_allowed"


def test_an_international_entry_allows_its_a_label_only() -> None:
    assert allows(["Bücher.example"], "xn--bcher-kva.example:443")
    assert not allows(["straße.example"], "strasse.example:443")


@pytest.mark.parametrize(
    "entry", ["*.com", "*", "https://github.com", "user@github.com", "github.com:0", "", " github.com", "::1", "a..b"]
)
def test_an_entry_that_is_not_an_exact_host_refuses_the_policy(entry: str) -> None:
    with pytest.raises(BadEntry):
        parse_policy(["github.com", entry])


def test_an_address_is_allowed_only_when_listed_as_itself() -> None:
    grant = decide_text(["127.0.0.1:8080", "[::1]:8080"], "127.0.0.1:8080")
    assert isinstance(grant, Grant) and grant.scope == "listed_address"
    assert allows(["[0:0::1]:8080"], "[::1]:8080")
    assert not allows(["localhost:8080"], "127.0.0.1:8080")


def test_localhost_reaches_loopback_only_when_listed_with_its_port() -> None:
    with_port, without = decide_text(["localhost:80"], "localhost:80"), decide_text(["localhost"], "localhost:80")
    assert isinstance(with_port, Grant) and with_port.scope == "loopback"
    assert isinstance(without, Grant) and without.scope == "public"


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.5",
        "127.0.0.1",
        "169.254.169.254",
        "192.168.1.1",
        "172.16.0.1",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "198.18.0.1",
        "203.0.113.9",
        "192.88.99.1",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "fec0::1",
        "::ffff:8.8.8.8",
        "64:ff9b::10.0.0.1",
        "2002:a00:1::1",
        "2001:db8::1",
    ],
)
def test_an_address_that_is_not_of_the_internet_is_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "64:ff9b::8.8.8.8"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


_NAMES = st.lists(st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True), min_size=1, max_size=4).map(
    lambda labels: ".".join([*labels, "test"])
)


@given(_NAMES, st.integers(1, 65535), st.lists(_NAMES, max_size=4), st.booleans())
def test_a_target_is_allowed_exactly_when_its_host_and_port_are_listed(
    name: str, port: int, others: list[str], listed: bool
) -> None:
    allow = [*others, f"{name}:{port}"] if listed else others
    expected = listed or (name in others and port in (80, 443))
    assert allows(allow, f"{name}:{port}") == expected


@given(_NAMES, st.integers(1, 65535), st.data())
def test_spelling_never_changes_the_decision(name: str, port: int, data: st.DataObject) -> None:
    upper = "".join(data.draw(st.sampled_from([c.lower(), c.upper()])) for c in name)
    assert allows([f"{name}:{port}"], f"{upper}.:{port}")
    assert allows([f"{upper}.:{port}"], f"{name}:{port}")


@given(st.text(max_size=30), st.integers(1, 65535))
def test_a_parsed_host_is_its_own_canonical_form(text: str, port: int) -> None:
    try:
        target = parse_authority(f"{text}:{port}", default_port=None)
    except BadName:
        return
    if target.host.kind != "odd":
        assert parse_authority(str(target), default_port=None) == target
    assert isinstance(target, Target) and target.host.text.isascii()
