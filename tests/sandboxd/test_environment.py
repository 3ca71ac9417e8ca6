"""What a command finds around it: variables in the order of their layers, and who it is."""

from __future__ import annotations

import os

import pytest

from tests.sandboxd.daemon import Daemon, problem, running


def variables(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


async def environment(daemon: Daemon, **spec: object) -> dict[str, str]:
    return variables((await daemon.run(argv=["/usr/bin/env", "-0"], **spec)).stdout)


async def test_later_layers_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMPOOL_SECRET", "of the daemon")
    monkeypatch.setenv("TMPDIR", "/tmp")
    layers = {"platform": {"P": "platform"}, "template": {"T": "t", "S": "t", "C": "t", "PAGER": "less"}}
    async with running(env=layers) as daemon:
        await daemon.bind(env={"S": "s", "C": "s"})
        found = await environment(daemon, env={"C": "c", "HOME": "/elsewhere"})
        assert {name: found[name] for name in "PTSC"} == {"P": "platform", "T": "t", "S": "s", "C": "c"}
        assert found["PAGER"] == "less", "the template overrides the non-interactive set"
        assert found["HOME"] == "/elsewhere"
        assert found["TMPDIR"] == "/tmp", "on the whitelist"
        assert "WARMPOOL_SECRET" not in found


async def test_the_platforms_names_are_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = {"platform": {"P": "platform"}, "template": {"P": "template"}}
    async with running(env=layers) as daemon:
        assert problem(await daemon.bind(env={"P": "x"})) == (400, "env_reserved")
        body = {"id": "c", "script": "true", "env": {"P": "x"}}
        assert problem(await daemon.call("POST", "/v1/exec", json=body)) == (400, "env_reserved")
        assert (await environment(daemon))["P"] == "platform"


async def test_nothing_points_to_a_proxy_without_a_way_out(daemon: Daemon) -> None:
    assert not [name for name in await environment(daemon) if "proxy" in name.lower()]


async def test_programs_do_not_wait_for_a_person(daemon: Daemon) -> None:
    script = """git init -q . && git config core.pager less && git config user.email a@b && git config user.name x
    for i in $(seq 60); do git commit -q --allow-empty -m $i; done; git log --oneline | cat; git log --oneline"""
    result = await daemon.run(script, env={"HOME": str(daemon.workspace)})
    assert (result.status.code, len(result.stdout.splitlines())) == (0, 120)
    assert (await daemon.run("echo z")).stdout == "z\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give commands another user")
async def test_commands_are_the_sandboxs_user_and_root_only_for_the_control_plane(daemon: Daemon) -> None:
    script = "id -u; id -g; umask; grep -E '^(CapEff|SigIgn|SigBlk)' /proc/self/status; echo $HOME $USER"
    lines = (await daemon.run(script)).stdout.split("\n")
    assert lines[:3] == ["1000", "1000", "0022"]
    assert {line.split()[1] for line in lines[3:6]} == {"0" * 16}
    assert lines[6] == "/home/agent agent"
    assert (await daemon.run("id -u; echo $HOME", user="root")).stdout == "0\n/root\n"


async def test_a_command_inherits_no_descriptor_of_the_daemon(daemon: Daemon) -> None:
    result = await daemon.run(argv=["ls", "/proc/self/fd"])
    assert result.stdout.split() == ["0", "1", "2", "3"], "3 is the listing's own"


async def test_a_command_leads_its_own_session(daemon: Daemon) -> None:
    result = await daemon.run("read -r _ _ _ _ group session _ < /proc/$$/stat; echo $$ $group $session")
    assert len(set(result.stdout.split())) == 1
