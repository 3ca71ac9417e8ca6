"""What a tenant's template may let its builds reach: the internet, never this host or its network by themselves."""

from __future__ import annotations

import httpx
import pytest

from controlplane.errors import Permanent
from controlplane.ids import TenantId, template_key
from controlplane.model.template import Repository, Template
from controlplane.templates.checks import check_public_hosts, check_repository

HERE_OR_NEAR = (
    *("localhost:8700", "LOCALHOST:8700", "localhost", "127.0.0.1:6379", "127.8.8.8", "0.0.0.0:8700", "[::1]:8700"),
    *("[::]:8700", "169.254.169.254", "10.0.0.5:22", "172.16.0.1", "192.168.1.1", "100.64.0.1", "224.0.0.1:80"),
    *("[fd00::1]", "[fe80::1]:80", "[::ffff:127.0.0.1]:80", "[2002:7f00:1::1]", "[64:ff9b::a00:1]", "255.255.255.255"),
)


@pytest.mark.parametrize("entry", HERE_OR_NEAR)
async def test_a_tenant_cannot_allow_its_builds_the_host_or_its_network(
    acme: httpx.AsyncClient, ops: httpx.AsyncClient, entry: str
) -> None:
    answer = await acme.put("/v1/templates/inward", json={"build_allow": ["index.example", entry]})
    assert (answer.status_code, answer.json()["code"]) == (400, "host_not_public")
    answer = await acme.put("/v1/templates/inward", json={"repository": {"url": f"http://{entry}/x.git"}})
    assert (answer.status_code, answer.json()["code"]) == (400, "host_not_public")
    vouched = await ops.put("/v1/templates/inward", params={"tenant": "acme"}, json={"build_allow": [entry]})
    assert vouched.status_code == 201, vouched.text


async def test_a_tenants_change_takes_an_operators_word_away(acme: httpx.AsyncClient, ops: httpx.AsyncClient) -> None:
    inward = {"build_allow": ["localhost:8700"]}
    assert (await ops.put("/v1/templates/mixed", params={"tenant": "acme"}, json=inward)).status_code == 201
    assert (await acme.put("/v1/templates/mixed", json=inward)).status_code == 400
    assert (await acme.put("/v1/templates/mixed", json={"by_operator": True} | inward)).status_code == 422


@pytest.mark.parametrize("host", ["ｌｏｃａｌｈｏｓｔ:8700", "１２７.０.０.１", "①②⑦.⓪.⓪.①:80", "loca\u00adlhost"])
def test_letters_that_mean_others_are_no_way_to_the_host(host: str) -> None:
    with pytest.raises(Permanent) as refused:
        check_repository(Repository(url=f"http://{host}/x.git"))
    assert refused.value.code == "invalid_repository"


@pytest.mark.parametrize("entry", ["index.example", "8.8.8.8", "[2606:4700::1111]:443", "localhost.example"])
def test_the_internet_can_be_named(entry: str) -> None:
    acme = TenantId("acme")
    check_public_hosts(Template(key=template_key(acme, "out"), tenant=acme, name="out", build_allow=(entry,)))
