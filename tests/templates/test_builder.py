"""Builds: steps, logs, failures, and what is left when a worker dies in between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controlplane.errors import Permanent
from controlplane.ids import BuildId, SandboxId, lineage_key
from controlplane.model.template import Build, Repository, SetupStep
from controlplane.runtime.simulated.commands import Outcome
from controlplane.store.redis_store import RedisStore
from controlplane.templates.inputs import commit_of, repository_host, version_id, version_inputs
from tests.provisioning.plant import Crash, Crashes, Plant, until

SHA = "a" * 40
REPOSITORY = Repository(url="https://git.example/team/repo", ref="main")
# Every git command of a build is run by ``env`` without NO_PROXY.
GIT = {"env": Outcome(stdout=f"{SHA}\trefs/heads/main\n")}


def states(build: Build) -> dict[str, str]:
    return {step.name: step.state for step in build.steps}


async def log_of(plant: Plant, build: BuildId, step: str) -> str:
    return (await plant.logs.read(build, step, 0, 1 << 20)).text


async def in_setup(plant: Plant, build_id: BuildId, attempt: int) -> Build | None:
    """The build once this attempt runs its first setup command."""
    build = await plant.store.get_build(build_id)
    return build if build.attempt == attempt and states(build).get("setup-1") == "running" else None


@pytest.fixture
def git_plant(store: RedisStore, deployment: str, tmp_path: Path) -> Plant:
    return Plant(store, deployment, tmp_path, programs=GIT)


async def test_a_build_runs_its_steps_keeps_their_logs_and_publishes_a_version(git_plant: Plant) -> None:
    plant = git_plant
    template = await plant.add_template(
        repository=REPOSITORY,
        setup=(SetupStep(run="echo installing; echo fast"), SetupStep(run="echo done")),
        env={"MODE": "fast"},
    )
    build_id = await plant.new_build(template)
    await plant.builder.build(build_id)
    build = await plant.store.get_build(build_id)
    assert build.state == "succeeded"
    assert states(build) == dict.fromkeys(("resolve", "clone", "setup-1", "setup-2", "seal", "publish"), "succeeded")
    assert build.commit == SHA
    assert all(step.started_at and step.ended_at for step in build.steps)
    assert await log_of(plant, build_id, "setup-1") == "installing\nfast\n"
    assert SHA in await log_of(plant, build_id, "resolve")
    lineage = await plant.store.get_lineage(lineage_key(template, None))
    assert lineage is not None and lineage.current == build.version
    assert build.version is not None
    version = await plant.store.get_version(build.version)
    assert (version.commit, version.env, version.inputs["commit"]) == (SHA, {"MODE": "fast"}, SHA)
    assert version.image in {image.ref for image in await plant.runtime.list_images()}
    assert await plant.running() == set()


async def test_a_failing_command_names_its_exit_code_and_last_output_and_leaves_nothing_but_its_log(
    plant: Plant,
) -> None:
    template = await plant.add_template(
        setup=(SetupStep(run="echo fine"), SetupStep(run="echo no such package; exit 3"))
    )
    build_id = await plant.new_build(template)
    await plant.builder.build(build_id)
    build = await plant.store.get_build(build_id)
    assert (build.state, build.error_code) == ("failed", "setup_failed")
    assert build.error is not None
    assert "exit code 3" in build.error and "no such package" in build.error
    step = next(step for step in build.steps if step.name == "setup-2")
    assert (step.state, step.exit_code) == ("failed", 3)
    assert states(build)["setup-1"] == "succeeded"
    assert states(build)["seal"] == "pending"
    assert (await log_of(plant, build_id, "setup-2")).startswith("no such package\n")
    lineage = await plant.store.get_lineage(lineage_key(template, None))
    assert lineage is not None
    assert (lineage.failures, lineage.last_error_code, lineage.current) == (1, "setup_failed", None)
    assert lineage.next_attempt_at > build.created_at
    assert await plant.running() == set()


async def test_a_command_that_hangs_is_stopped_at_its_time_limit(plant: Plant) -> None:
    template = await plant.add_template(setup=(SetupStep(run="echo begin; sleep 600", timeout_s=0.3),))
    build_id = await plant.new_build(template)
    await plant.builder.build(build_id)
    build = await plant.store.get_build(build_id)
    assert build.error_code == "setup_timeout"
    assert "0.3 s" in (build.error or "") and "begin" in (build.error or "")
    assert await plant.running() == set()


async def test_a_ref_that_is_not_there_is_named(git_plant: Plant) -> None:
    template = await git_plant.add_template(repository=Repository(url=REPOSITORY.url, ref="release"))
    build_id = await git_plant.new_build(template)
    await git_plant.builder.build(build_id)
    build = await git_plant.store.get_build(build_id)
    assert (build.state, build.error_code) == ("failed", "ref_not_found")
    assert "'release'" in (build.error or "")


async def test_an_unknown_base_is_a_clear_error(plant: Plant) -> None:
    template = await plant.add_template(base="plan9")
    build_id = await plant.new_build(template)
    await plant.builder.build(build_id)
    build = await plant.store.get_build(build_id)
    assert (build.error_code, states(build)["resolve"]) == ("unknown_base", "failed")


async def test_the_same_inputs_are_published_again_without_being_built_again(git_plant: Plant) -> None:
    plant = git_plant
    template = await plant.add_template(repository=REPOSITORY, setup=(SetupStep(run="echo once"),))
    first, second = await plant.new_build(template), None
    await plant.builder.build(first)
    second = await plant.new_build(template)
    await plant.builder.build(second)
    one, two = await plant.store.get_build(first), await plant.store.get_build(second)
    assert two.state == "succeeded"
    assert two.version == one.version
    assert states(two)["setup-1"] == states(two)["seal"] == "skipped"


async def test_progress_is_on_record_while_a_command_runs(plant: Plant) -> None:
    template = await plant.add_template(setup=(SetupStep(run="echo begin; sleep 30", timeout_s=60),))
    build_id = await plant.new_build(template)
    work = asyncio.create_task(plant.builder.build(build_id))
    try:
        await until(lambda: log_of(plant, build_id, "setup-1"))
        build = await plant.store.get_build(build_id)

        async def beats() -> bool:
            return (await plant.store.get_build(build_id)).heartbeat_at != build.heartbeat_at

        await until(beats)
        assert build.state == "running"
        assert states(build)["setup-1"] == "running"
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def test_a_build_that_somebody_else_ended_stops_and_is_cleared(plant: Plant) -> None:
    template = await plant.add_template(setup=(SetupStep(run="sleep 600", timeout_s=900),))
    build_id = await plant.new_build(template)
    work = asyncio.create_task(plant.builder.build(build_id))
    await until(lambda: in_setup(plant, build_id, 1))
    async with asyncio.timeout(20):
        await plant.store.finish_build(await plant.store.get_build(build_id), None, 0.0)
        await work
    assert await plant.running() == set()


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
async def test_a_worker_that_dies_at_any_step_of_a_build_is_followed_by_one_that_ends_it(
    store: RedisStore, deployment: str, tmp_path: Path, after: bool
) -> None:
    calm = Plant(store, deployment, tmp_path, programs=GIT)
    for step in range(1, 120, 1):
        crashes = Crashes(step, after=after)
        plant = Plant(store, deployment, tmp_path, runtime=calm.runtime, programs=GIT, crashes=crashes)
        template = await plant.add_template(repository=REPOSITORY, setup=(SetupStep(run=f"echo step {step}"),))
        build_id = await plant.new_build(template)
        died = False
        try:
            await plant.builder.build(build_id)
        except Crash:
            died = True
        crashes.at = None
        await plant.builder.build(build_id)
        build = await store.get_build(build_id)
        assert build.state == "succeeded", f"after a death at call {step}: {build.error}"
        assert await log_of(plant, build_id, "setup-1") == f"step {step}\n"
        # A sandbox that was made but whose record was never written, or lost, goes with the next comparison.
        await plant.reality.compare()
        assert await plant.running() == set(), f"after a death at call {step}"
        if not died:
            assert step > 20
            return
    raise AssertionError("a build has more calls than expected")


async def test_a_command_that_outlives_its_worker_is_taken_up_and_not_run_again(
    store: RedisStore, deployment: str, tmp_path: Path
) -> None:
    plant = Plant(store, deployment, tmp_path)
    template = await plant.add_template(setup=(SetupStep(run="echo begin; sleep 0.5; echo end", timeout_s=60),))
    build_id = await plant.new_build(template)
    work = asyncio.create_task(plant.builder.build(build_id))
    await until(lambda: log_of(plant, build_id, "setup-1"))
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    before = await store.get_build(build_id)
    await plant.builder.build(build_id)
    build = await store.get_build(build_id)
    assert (build.state, build.attempt, build.sandbox) == ("succeeded", 1, before.sandbox)
    assert await log_of(plant, build_id, "setup-1") == "begin\nend\n"


async def test_a_build_whose_sandbox_died_begins_anew_but_not_for_ever(plant: Plant) -> None:
    template = await plant.add_template(setup=(SetupStep(run="sleep 600", timeout_s=900),))
    build_id = await plant.new_build(template)
    for attempt in range(1, 4):
        work = asyncio.create_task(plant.builder.build(build_id))
        build = await until(lambda attempt=attempt: in_setup(plant, build_id, attempt))  # type: ignore[misc]
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert build.sandbox is not None
        await plant.runtime.destroy(SandboxId(build.sandbox))
    await plant.builder.build(build_id)
    build = await plant.store.get_build(build_id)
    assert (build.state, build.error_code) == ("failed", "build_interrupted")
    assert await plant.running() == set()


def test_an_annotated_tag_stands_for_the_commit_it_points_to() -> None:
    tag, branch, peeled = "1" * 40, "2" * 40, "3" * 40
    listing = f"{branch}\trefs/heads/v1\n{tag}\trefs/tags/v1\n{peeled}\trefs/tags/v1^{{}}\n"
    assert commit_of(listing, "v1") == peeled
    assert commit_of(f"{branch}\trefs/heads/x/v1\n{tag}\trefs/heads/v1\n", "v1") == tag
    with pytest.raises(Permanent):
        commit_of(f"{branch}\trefs/heads/x/v1\n", "v1")


async def test_a_version_is_named_by_all_of_its_inputs_and_nothing_else(plant: Plant) -> None:
    template = await plant.store.get_template(
        await plant.add_template(repository=REPOSITORY, setup=(SetupStep(run="a"),), env={"A": "1", "B": "2"})
    )
    lineage = lineage_key(template.key, None)
    inputs = version_inputs(template, lineage, "digest", SHA)
    name = version_id(inputs)
    assert name == version_id(dict(reversed(inputs.items())))
    assert name.startswith("v-") and len(name) == 22
    others = [
        version_inputs(template, lineage, "other", SHA),
        version_inputs(template, lineage, "digest", "b" * 40),
        version_inputs(template, lineage_key(template.key, "dev"), "digest", SHA),
    ]
    assert len({name, *(version_id(other) for other in others)}) == 4
    assert repository_host(REPOSITORY) == "git.example:443"
    assert repository_host(Repository(url="http://[::1]:3000/x")) == "[::1]:3000"
