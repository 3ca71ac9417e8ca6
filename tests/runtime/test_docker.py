"""The docker runtime keeps the contract, and what is its own."""

from __future__ import annotations

from pathlib import Path

import docker
import pytest

from controlplane.errors import Permanent, Retryable
from controlplane.ids import SandboxId
from controlplane.runtime.docker import DockerOptions, DockerRuntime
from controlplane.runtime.docker.probe import unreachable
from tests.engines import bases
from tests.runtime.stage import Setting, Stage, stage_of
from tests.runtime.walls import RealRuntimeContract


@pytest.mark.real
class TestDockerRuntime(RealRuntimeContract):
    @pytest.fixture
    def setting(self, shared_folder: Path, docker_host: str) -> Setting:
        return Setting(kind="docker", state_dir=shared_folder, docker_host=docker_host)

    async def test_the_users_of_the_engine_that_are_not_ours_are_left_alone(self, setting: Setting) -> None:
        client = docker.APIClient(base_url=setting.docker_host)
        async with stage_of(setting) as stage:
            theirs = client.create_container(stage.base, ["/usr/bin/true"], name="not-ours")
            try:
                assert await stage.runtime.list_sandboxes() == []
                await stage.runtime.destroy(SandboxId("not-ours"))
                assert client.inspect_container(theirs["Id"])["Name"] == "/not-ours"
            finally:
                client.remove_container(theirs["Id"])
                client.close()

    async def test_a_container_that_ended_by_itself_is_listed_as_stopped_with_its_last_words(
        self, setting: Setting
    ) -> None:
        async with stage_of(setting) as stage:
            running = await stage.up()
            client = docker.APIClient(base_url=setting.docker_host)
            client.kill(f"warmpool-{setting.deployment}-{running.id}")
            client.wait(f"warmpool-{setting.deployment}-{running.id}")
            client.close()
            found = await stage.runtime.inspect(running.id)
            assert found is not None
            assert (found.state, found.door) == ("stopped", None)
            assert "Exited (137)" in found.detail

    async def test_a_second_deployment_tags_the_base_instead_of_importing_it_again(self, setting: Setting) -> None:
        said: list[str] = []
        async with stage_of(setting):
            other = DockerRuntime(_options(setting, "second"), bases(), _no_agent)
            image = await other.ensure_base("debian12", said.append)
            assert not [line for line in said if "importing" in line]
            await other.delete_image(image.ref)
            await other.close()

    async def test_a_new_sandbox_of_a_sealed_image_carries_none_of_its_labels(self, setting: Setting) -> None:
        async with stage_of(setting) as stage:
            original = await stage.up(stage.spec(labels={"purpose": "build", "only": "here"}))
            sealed = await stage.runtime.commit(original.id, "version-1")
            child = await stage.runtime.create(stage.spec(image=sealed.ref, labels={"pool": "acme/demo"}))
            assert child.labels == {"pool": "acme/demo"}

    async def test_the_spool_and_the_key_are_not_sealed_into_the_image(self, setting: Setting) -> None:
        async with stage_of(setting) as stage:
            original = await stage.up()
            await stage.run(original, "echo something for the spool")
            sealed = await stage.runtime.commit(original.id, "version-1")
            assert await _files_of(stage, sealed.ref) == []


async def _files_of(stage: Stage, ref: str) -> list[str]:
    """What the image itself keeps below the daemon's folders, seen without mounts over them."""
    client = docker.APIClient(base_url=stage.setting.docker_host)
    script = "find /var/lib/warmpool /run/warmpool /opt/warmpool -type f"
    container = client.create_container(ref, ["sh", "-c", script], host_config={"NetworkMode": "none"})
    try:
        client.start(container["Id"])
        client.wait(container["Id"])
        return client.logs(container["Id"], stderr=False).decode().split()
    finally:
        client.remove_container(container["Id"], force=True)
        client.close()


async def test_an_engine_over_tcp_is_refused_with_a_reason(tmp_path: Path) -> None:
    runtime = DockerRuntime(
        DockerOptions(state_dir=tmp_path, deployment="t", base_url="tcp://192.0.2.1:2375"), bases(), _no_agent
    )
    capabilities = await runtime.capabilities()
    await runtime.close()
    assert not capabilities.usable
    assert "not a Unix socket" in capabilities.reason
    assert capabilities.fix


@pytest.mark.real
async def test_an_engine_that_does_not_answer_is_an_error_that_names_it(tmp_path: Path) -> None:
    missing = f"unix://{tmp_path}/none.sock"
    runtime = DockerRuntime(DockerOptions(state_dir=tmp_path, deployment="t", base_url=missing), bases(), _no_agent)
    capabilities = await runtime.capabilities()
    assert not capabilities.usable and missing in capabilities.reason
    with pytest.raises(Retryable) as caught:
        await runtime.list_sandboxes()
    assert caught.value.code == "engine_unreachable"
    assert "DOCKER_HOST" in caught.value.hint
    await runtime.close()


def test_where_no_engine_is_installed_the_fix_is_the_command_that_installs_and_starts_one(tmp_path: Path) -> None:
    usual = "unix:///var/run/docker.sock"
    reason, fix = unreachable(usual, str(tmp_path))
    assert usual in reason and "None is installed" in reason
    assert fix.startswith("apt-get install -y docker.io && ")
    start = fix.rpartition("&& ")[2]
    dockerd = tmp_path / "dockerd"
    dockerd.write_text("#!/bin/sh\n")
    dockerd.chmod(0o755)
    assert unreachable(usual, str(tmp_path)) == (
        f"No Docker Engine answers at {usual}. It is installed, but does not run.",
        start,
    )
    assert "DOCKER_HOST" in unreachable("unix:///elsewhere.sock", str(tmp_path))[1]


async def test_a_state_folder_with_a_path_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    runtime = DockerRuntime(DockerOptions(state_dir=deep, deployment="t"), bases(), _no_agent)
    with pytest.raises(Permanent) as caught:
        await runtime.inspect(SandboxId("sb-0123456789abcdef"))
    assert caught.value.code == "state_path_too_long"
    await runtime.close()


def _options(setting: Setting, deployment: str) -> DockerOptions:
    return DockerOptions(state_dir=setting.state_dir / deployment, deployment=deployment, base_url=setting.docker_host)


async def _no_agent() -> Path:
    raise AssertionError("nothing is started here")
