"""The operators' part of the client."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.sdk.contract import KEY, Served
from warmpool import AuthenticationException, InvalidArgumentException, NotFoundException, Warmpool
from warmpool.config import resolve


def test_templates_and_pools_are_declared_read_changed_and_removed(served: Served) -> None:
    with Warmpool() as api:
        template = api.templates.put("demo", {"repository": {"url": "https://git.example/x.git"}, "setup": ["make"]})
        assert template.setup[0].run == "make"
        assert [t.name for t in api.templates.list()] == ["demo"]
        assert api.templates.get("demo").lineages[0].current == "v-1"
        pool = api.pools.put("demo", {"template": "demo", "min_ready": 2, "max_total": 5})
        assert (pool.min_ready, pool.counts.ready) == (2, 1)
        assert api.pools.pin("demo", 4).pinned_ready == 4
        assert api.pools.pin("demo", None).pinned_ready is None
        explained = api.pools.explain("demo")
        assert explained.decision is not None and explained.decision.reasons == ["min_ready is 1"]
        api.pools.delete("demo")
        api.templates.delete("demo")
        with pytest.raises(NotFoundException, match="Look at the list"):
            api.pools.get("demo")


def test_a_build_log_is_read_to_its_end_in_pieces(served: Served) -> None:
    with Warmpool() as api:
        for follow in (False, True):
            assert "".join(c.text for c in api.builds.logs("bd-1", follow=follow)) == "Collecting flask\ninstalled\n"
        assert api.builds.list(template="demo")[0].steps[0].exit_code == 0


def test_events_are_read_by_page_and_followed_across_breaks(served: Served) -> None:
    served.faults.plan("GET", "/v1/events", cut_after=150)
    with Warmpool() as api:
        followed = list(itertools.islice(api.events.follow(after="0"), 5))
        assert [event.id for event in followed] == ["1", "2", "3", "4", "5"]
        assert api.events.list(after="3").next == "5"
    assert served.calls("GET", "/v1/events") >= 3


def test_keys_are_made_listed_and_revoked(served: Served) -> None:
    with Warmpool() as api:
        made = api.keys.create(role="platform", note="ci")
        assert made.key == "wp_k_secret"
        api.keys.revoke(made.id)
        assert api.keys.list()[0].revoked_at == 2.0


def test_who_and_whether_ready_are_answered(served: Served) -> None:
    with Warmpool() as api:
        assert (api.whoami().role, api.readiness().ready) == ("ops", True)


# -- where the API is


def env(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path), **more}


def write_credentials(url: str, key: str, folder: Path) -> Path:
    path = folder / "warmpool" / "credentials.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"url": url, "api_key": key}))
    return path


def test_arguments_win_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    write_credentials("http://file:1", "filekey", tmp_path)
    assert resolve(environ=env(tmp_path)).api_key == "filekey"
    assert resolve(environ=env(tmp_path)).url == "http://file:1"
    found = resolve(environ=env(tmp_path, WARMPOOL_API_URL="http://env:2/", WARMPOOL_API_KEY="envkey"))
    assert (found.url, found.api_key) == ("http://env:2", "envkey")
    assert resolve("http://arg:3", "argkey", environ=env(tmp_path)).api_key == "argkey"
    assert resolve(environ=env(tmp_path / "none")).url == "http://127.0.0.1:8700"


def test_a_key_of_the_file_is_not_sent_to_another_server(tmp_path: Path) -> None:
    write_credentials("http://file:1", "filekey", tmp_path)
    assert resolve("http://elsewhere:1", environ=env(tmp_path)).api_key is None
    assert resolve("http://file:1/", environ=env(tmp_path)).api_key == "filekey"


def test_another_credentials_file_can_be_named(tmp_path: Path) -> None:
    write_credentials("http://one:1", "one", tmp_path)
    other = write_credentials("http://other:1", "other", tmp_path / "other")
    assert resolve(environ=env(tmp_path, WARMPOOL_CREDENTIALS=str(other))).api_key == "other"


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"url": 1, "api_key": "x"}'])
def test_a_credentials_file_that_is_no_good_is_an_error_not_passed_over(tmp_path: Path, content: bytes) -> None:
    path = write_credentials("http://a:1", "one", tmp_path)
    path.write_bytes(content)
    with pytest.raises(AuthenticationException, match="warmpool up"):
        resolve(environ=env(tmp_path))


@pytest.mark.parametrize("url", ["ftp://x", "http://", "localhost:8700", "http://u:p@host", "http://h:notaport", "\0"])
def test_a_url_that_is_none_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidArgumentException, match="not a URL"):
        resolve(url, environ=env(tmp_path))


def test_a_key_is_not_shown_by_repr(tmp_path: Path) -> None:
    assert KEY not in repr(resolve("http://h", KEY, environ=env(tmp_path)))
