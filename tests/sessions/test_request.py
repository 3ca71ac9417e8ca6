"""What an attach may ask for, and what names it for its idempotency key."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.errors import Permanent
from controlplane.model.resources import Resources
from controlplane.sessions.request import AttachRequest, ResourceWish, check_request
from controlplane.sessions.timing import Timings

BASE = AttachRequest(pool="demo", labels={"a": "1", "b": "2"}, env={"X": "1"}, ttl_s=5.0)


def test_the_digest_tells_requests_apart_but_not_how_long_they_wait() -> None:
    same = replace(BASE, labels={"b": "2", "a": "1"}, wait_s=9.0, idempotency_key="k")
    assert same.digest() == BASE.digest()
    others = [
        replace(BASE, pool="other"),
        replace(BASE, ttl_s=6.0),
        replace(BASE, idle_timeout_s=1.0),
        replace(BASE, labels={}),
        replace(BASE, env={"X": "2"}),
        AttachRequest(template="demo", ref="a"),
        AttachRequest(template="demo", resources=ResourceWish(pids=64)),
    ]
    assert len({BASE.digest(), *(other.digest() for other in others)}) == len(others) + 1


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=5))
def test_any_environment_is_either_fit_for_execve_or_refused(env: dict[str, str]) -> None:
    try:
        check_request(AttachRequest(pool="demo", env=env))
    except Permanent as refused:
        assert refused.code == "invalid_env"
    else:
        assert all(name.isascii() and name.isidentifier() and "\0" not in value for name, value in env.items())


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("field", ["ttl_s", "idle_timeout_s"])
def test_a_duration_is_a_finite_number_above_zero(field: str, value: float) -> None:
    with pytest.raises(Permanent):
        check_request(replace(BASE, **{field: value}))


def test_a_wish_changes_only_what_it_names() -> None:
    base = Resources(memory_bytes=1, cpu_cores=2.0, pids=3, disk_bytes=4)
    assert ResourceWish().over(base) == base
    assert ResourceWish(pids=9).over(base) == replace(base, pids=9)


def test_timings_add_up_and_name_each_step() -> None:
    now = [10.0]
    timings = Timings(lambda: now[0], started=9.5)
    now[0] = 10.25
    timings.mark("claim")
    now[0] = 10.5
    timings.mark("bind")
    now[0] = 10.75
    timings.mark("claim")
    assert timings.finish() == {"claim": 1000.0, "bind": 250.0, "total": 1250.0}


def test_labels_are_limited_as_a_whole() -> None:
    check_request(replace(BASE, labels={f"k{n}": "x" * 1000 for n in range(8)}))
    with pytest.raises(Permanent) as refused:
        check_request(replace(BASE, labels={f"k{n}": "x" * 1000 for n in range(9)}))
    assert refused.value.code == "invalid_labels"
