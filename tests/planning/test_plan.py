"""What a plan decides, case by case."""

from __future__ import annotations

from dataclasses import replace

from controlplane.model.actions import (
    BuildVersion,
    Demand,
    FailWaiters,
    Limits,
    Plan,
    Provision,
    RemovePool,
    Retire,
)
from controlplane.model.resources import GIB, MIB, Budget, Resources
from controlplane.model.template import Lineage
from tests.planning.world import SMALL, World


def provisions(made: Plan) -> list[tuple[str, int, bool]]:
    return [(a.pool, a.count, a.urgent) for a in made.actions if isinstance(a, Provision)]


def retired(made: Plan) -> list[str]:
    return [a.sandbox for a in made.actions if isinstance(a, Retire)]


def test_an_empty_pool_is_filled_to_its_minimum_and_then_left_alone() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=3)
    assert provisions(world.tick()) == [(pool, 3, False)]
    assert world.plan().actions == ()
    world.finish_everything()
    made = world.plan()
    assert made.actions == ()
    assert made.decisions[0].target_ready == made.decisions[0].ready == 3
    assert made.decisions[0].bound_by == "min_ready"


def test_a_pinned_number_overrides_minimum_and_forecast_in_both_directions() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=3)
    world.demand[pool] = Demand(ready=4, source="forecast")
    world.change_pool(pool, pinned_ready=1)
    world.settle()
    assert len(world.of(pool, "ready")) == 1
    world.change_pool(pool, pinned_ready=5)
    world.settle()
    assert len(world.of(pool, "ready")) == 5
    world.change_pool(pool, pinned_ready=None)
    assert world.settle().decisions[0].bound_by == "forecast"
    assert len(world.of(pool, "ready")) == 4


def test_claimed_sandboxes_count_against_max_total() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=3, max_total=4)
    world.settle()
    for _ in range(3):
        assert world.claim(pool) == "claimed"
    made = world.settle()
    assert len(world.of(pool, "ready")) == 1
    assert made.decisions[0].target_ready == 1
    assert made.decisions[0].bound_by == "max_total"


def test_terminating_sandboxes_count_against_max_total_so_that_it_never_overfills() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=2, max_total=2)
    world.settle()
    for sandbox in world.of(pool, "ready"):
        world.change(sandbox.id, state="claimed")
        world.end_session(sandbox.id)
    assert world.tick().actions == ()
    world.gone(world.of(pool)[0].id)
    assert provisions(world.tick()) == [(pool, 1, False)]


def test_waiting_sessions_get_urgent_starts_less_those_already_on_their_way() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=1, max_total=20)
    world.tick()
    for _ in range(4):
        assert world.claim(pool) == "waiting"
    made = world.tick()
    assert provisions(made) == [(pool, 3, True), (pool, 1, False)]
    assert world.plan().actions == ()


def test_waiting_sessions_are_served_before_any_refill() -> None:
    world = World(limits=Limits(max_starts_in_flight=3))
    refill = world.add_pool("a-refill", min_ready=5)
    wanted = world.add_pool("z-wanted", min_ready=0)
    world.last_used_at[refill] = world.now + 1
    world.claim(wanted)
    world.claim(wanted)
    assert provisions(world.tick()) == [(wanted, 2, True), (refill, 1, False)]


def test_pools_with_waiting_sessions_take_turns() -> None:
    world = World(limits=Limits(max_starts_in_flight=4))
    greedy = world.add_pool("greedy", min_ready=0, max_total=50)
    modest = world.add_pool("modest", min_ready=0)
    world.claim(modest)
    world.now += 1
    for _ in range(20):
        world.claim(greedy)
    assert {pool: count for pool, count, _ in provisions(world.tick())} == {greedy: 3, modest: 1}


def test_starts_in_flight_are_bounded() -> None:
    world = World(limits=Limits(max_starts_in_flight=4))
    pool = world.add_pool("demo", min_ready=50, max_total=100)
    assert provisions(world.tick()) == [(pool, 4, False)]
    assert world.tick().actions == ()
    world.becomes_ready(world.of(pool, "building")[0].id)
    assert provisions(world.tick()) == [(pool, 1, False)]


def test_retirements_in_flight_are_bounded() -> None:
    world = World(limits=Limits(max_retires_in_flight=3))
    pool = world.add_pool("demo", min_ready=8, max_total=10)
    world.settle()
    world.change_pool(pool, min_ready=0)
    assert len(retired(world.tick())) == 3
    assert world.tick().actions == ()
    world.gone(world.of(pool, "draining")[0].id)
    assert len(retired(world.tick())) == 1


def test_shrinking_removes_those_not_ready_first_then_the_oldest_and_never_a_claimed_one() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=4, max_total=10)
    world.tick()
    first, second, third, fourth = world.of(pool)
    world.becomes_ready(second.id)
    world.now += 1
    world.becomes_ready(first.id)
    world.becomes_ready(third.id)
    world.change(third.id, state="claimed")
    world.change_pool(pool, min_ready=1)
    assert retired(world.tick()) == [fourth.id, second.id]
    assert world.sandboxes[third.id].state == "claimed"


def test_a_session_that_gave_up_leaves_no_start_behind() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=0)
    world.claim(pool)
    world.tick()
    world.waiting[pool] = 0
    assert len(retired(world.tick())) == 1


def test_no_version_asks_for_a_build_once_and_starts_nothing() -> None:
    world = World()
    pool = world.add_pool("demo", built=False)
    made = world.tick()
    assert made.actions == (BuildVersion(lineage=world.lineage_of(pool), reason="no version is built yet"),)
    assert world.tick().actions == ()
    world.finish_everything()
    assert provisions(world.tick()) == [(pool, 1, False)]


def test_an_unused_pool_builds_nothing_until_somebody_waits() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=0, built=False)
    assert world.tick().actions == ()
    world.claim(pool)
    assert [type(action) for action in world.tick().actions] == [BuildVersion]


def test_a_lineage_that_a_person_reset_is_built_even_if_no_pool_uses_it() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=0)
    lineage = world.lineage_of(pool)
    world.lineages[lineage] = replace(world.lineages[lineage], current_revision=0)
    assert [type(action) for action in world.tick().actions] == [BuildVersion]
    world.finish_everything()
    assert world.tick().actions == ()


def test_a_failing_build_backs_off_and_then_is_given_up_with_one_visible_reason() -> None:
    world = World(limits=Limits(max_failures=3))
    pool = world.add_pool("demo", built=False)
    world.tick()
    lineage = world.lineage_of(pool)
    template = world.pools[pool].template
    world.building.clear()
    failing = Lineage(key=lineage, template=template, failures=1, next_attempt_at=world.now + 30, last_error="exit 2")
    world.lineages[lineage] = failing
    made = world.tick()
    assert made.actions == ()
    assert made.wake_at == world.now + 30
    world.now += 30
    assert [type(action) for action in world.tick().actions] == [BuildVersion]
    world.building.clear()
    world.lineages[lineage] = replace(failing, failures=3)
    world.now += 1000
    made = world.tick()
    assert made.actions == ()
    assert "exit 2" in world.decision(made, pool)


def test_who_waits_for_a_template_that_was_given_up_is_told_why_at_once() -> None:
    world = World(limits=Limits(max_failures=3))
    pool = world.add_pool("demo", min_ready=0, built=False)
    lineage = world.lineage_of(pool)
    world.lineages[lineage] = Lineage(
        key=lineage, template=world.pools[pool].template, failures=3, last_error="pip failed"
    )
    world.claim(pool)
    assert world.tick().actions == (FailWaiters(pool=pool, reason="template_failed", detail="pip failed"),)


def test_an_old_version_still_serves_while_the_new_one_cannot_be_built() -> None:
    world = World(limits=Limits(max_failures=3))
    pool = world.add_pool("demo", min_ready=1)
    world.settle()
    world.change_template(pool)
    lineage = world.lineage_of(pool)
    world.lineages[lineage] = replace(world.lineages[lineage], failures=3, last_error="pip failed")
    world.claim(pool)
    world.claim(pool)
    made = world.tick()
    assert provisions(made) == [(pool, 1, True), (pool, 1, False)]
    assert not [a for a in made.actions if isinstance(a, FailWaiters)]


def test_failing_starts_back_off_then_one_at_a_time_is_tried_then_none() -> None:
    world = World(limits=Limits(max_failures=3))
    pool = world.add_pool("demo", min_ready=4)
    world.tick()
    world.start_fails(world.of(pool, "building")[0].id)
    for sandbox in world.of(pool, "building"):
        world.becomes_ready(sandbox.id)
    made = world.tick()
    assert provisions(made) == []
    assert made.wake_at is not None and made.wake_at <= world.now + 10
    world.now += 10
    world.change_pool(pool, min_ready=5)
    assert provisions(world.tick()) == [(pool, 1, False)]
    lineage = world.lineage_of(pool)
    world.lineages[lineage] = replace(world.lineages[lineage], provision_failures=3)
    world.finish_everything()
    world.now += 1000
    world.claim(pool)
    assert provisions(world.tick()) == []


def test_a_failed_sandbox_is_retired_and_replaced() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=1)
    world.settle()
    broken = world.of(pool)[0]
    world.change(broken.id, state="failed", reason="gone")
    made = world.tick()
    assert retired(made) == [broken.id]
    assert provisions(made) == [(pool, 1, False)]


def test_a_start_past_its_deadline_is_retired_and_one_draining_past_it_is_retired_again() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=1)
    made = world.tick()
    stuck = world.of(pool)[0]
    assert world.plan().wake_at == stuck.deadline_at
    world.now += 60
    made = world.tick()
    assert retired(made) == [stuck.id]
    world.now += 60
    made = world.tick()
    assert stuck.id in retired(made)
    assert "draining" in next(a.reason for a in made.actions if isinstance(a, Retire) and a.sandbox == stuck.id)


def test_a_new_version_replaces_the_old_one_keeping_a_floor_ready() -> None:
    world = World(limits=Limits(ready_floor_share=0.5))
    pool = world.add_pool("demo", min_ready=4, max_total=4)
    world.settle()
    old = {sandbox.id for sandbox in world.of(pool)}
    world.change_template(pool)
    world.tick()
    for lineage in list(world.building):
        world.publish(lineage, world.pools[pool].template)
    for _ in range(30):
        made = world.tick()
        assert len(world.of(pool, "ready")) >= 2
        assert len(world.of(pool)) <= 4
        if not made.actions and not world.of(pool, "building", "draining"):
            break
        for sandbox in world.of(pool, "building", "draining"):
            if sandbox.state == "building":
                world.becomes_ready(sandbox.id)
            else:
                world.gone(sandbox.id)
    assert len(world.of(pool, "ready")) == 4
    assert not old & set(world.sandboxes)


def test_with_room_for_it_the_new_version_comes_up_beside_the_old_one() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=2, max_total=10)
    world.settle()
    world.change_template(pool)
    world.tick()
    for lineage in list(world.building):
        world.publish(lineage, world.pools[pool].template)
    made = world.tick()
    assert provisions(made) == [(pool, 2, False)]
    assert retired(made) == []


def test_a_pool_of_one_is_replaced_although_no_floor_can_be_kept() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=1, max_total=1)
    world.settle()
    old = world.of(pool)[0]
    world.change_template(pool)
    world.settle()
    (new,) = world.of(pool, "ready")
    assert new.version != old.version


def test_a_full_budget_does_not_keep_the_old_version_for_ever() -> None:
    world = World(limits=Limits(budget=Budget(sandboxes=1)))
    pool = world.add_pool("demo", min_ready=1, max_total=5)
    world.settle()
    old = world.of(pool)[0]
    world.change_template(pool)
    world.settle()
    (new,) = world.of(pool, "ready")
    assert new.version != old.version


def test_in_strict_mode_old_ones_go_as_soon_as_the_template_changes() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=2)
    world.strict.add(world.lineage_of(pool))
    world.settle()
    old = {sandbox.id for sandbox in world.of(pool)}
    world.change_template(pool)
    assert set(retired(world.tick())) == old


def test_an_ageing_sandbox_is_replaced_before_it_becomes_useless() -> None:
    world = World(max_age_s=10_000.0)
    pool = world.add_pool("demo", min_ready=1)
    world.settle()
    (aged,) = world.of(pool)
    assert aged.expires_at is not None
    wake_at = world.plan().wake_at
    assert wake_at == aged.expires_at - 120
    world.now = wake_at
    made = world.tick()
    assert provisions(made) == [(pool, 1, False)]
    assert retired(made) == []
    world.finish_everything()
    assert retired(world.tick()) == [aged.id]


def test_a_sandbox_past_its_age_limit_goes_even_without_a_replacement() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=1)
    world.settle()
    (aged,) = world.of(pool)
    lineage = world.lineage_of(pool)
    world.lineages[lineage] = replace(world.lineages[lineage], provision_failures=99)
    assert aged.expires_at is not None
    world.now = aged.expires_at - 60
    assert retired(world.tick()) == [aged.id]


def test_short_lived_sandboxes_do_not_start_a_refill_storm() -> None:
    world = World(max_age_s=40.0)
    pool = world.add_pool("demo", min_ready=2)
    world.settle()
    ready_at = world.of(pool)[0].ready_at
    assert ready_at is not None
    world.now = ready_at + 9
    assert world.plan().actions == ()
    assert world.plan().wake_at == ready_at + 10


def test_a_pool_made_again_never_adopts_sandboxes_of_the_earlier_one() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=1)
    world.settle()
    (earlier,) = world.of(pool)
    del world.pools[pool]
    world.add_pool("demo", min_ready=1)
    made = world.tick()
    assert retired(made) == [earlier.id]
    assert provisions(made) == [(pool, 1, False)]


def test_sandboxes_of_a_pool_that_is_gone_are_retired_unless_claimed() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=2)
    world.settle()
    kept, goes = world.of(pool)
    world.change(kept.id, state="claimed")
    del world.pools[pool]
    assert retired(world.tick()) == [goes.id]


def test_a_deleted_pool_drains_and_is_removed_once_its_last_session_ended() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=2)
    world.settle()
    world.claim(pool)
    world.change_pool(pool, deleting=True)
    world.settle()
    assert [s.state for s in world.of(pool)] == ["claimed"]
    world.end_session(world.of(pool)[0].id)
    world.settle()
    assert pool not in world.pools


def test_a_pool_made_for_one_attach_goes_when_it_is_idle() -> None:
    world = World(limits=Limits(adhoc_idle_s=600))
    pool = world.add_pool("demo", min_ready=0, adhoc=True)
    world.claim(pool)
    world.settle()
    world.end_session(world.of(pool, "claimed")[0].id)
    made = world.settle()
    assert pool in world.pools
    assert made.wake_at == world.last_used_at[pool] + 600
    world.now = made.wake_at
    assert world.tick().actions == (RemovePool(pool=pool, reason="made for one attach and idle since"),)


def test_a_pool_given_another_size_or_template_replaces_its_sandboxes() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=1)
    other = world.add_pool("other", min_ready=0)
    world.settle()
    (first,) = world.of(pool)
    world.change_pool(pool, resources=replace(SMALL, memory_bytes=200 * MIB))
    world.settle()
    (second,) = world.of(pool)
    assert second.memory_bytes == 200 * MIB
    world.change_pool(pool, template=world.pools[other].template)
    assert second.id in retired(world.tick())
    assert first.id not in world.sandboxes


def test_a_waiting_session_evicts_the_oldest_ready_one_of_the_least_recently_used_pool() -> None:
    world = World(limits=Limits(budget=Budget(sandboxes=4)))
    stale, busy = world.add_pool("stale", min_ready=2), world.add_pool("busy", min_ready=2)
    world.last_used_at.update({stale: world.now, busy: world.now + 5})
    world.settle()
    wanted = world.add_pool("wanted", min_ready=0)
    world.now += 10
    world.claim(wanted)
    oldest = min(world.of(stale), key=lambda s: (s.ready_at or 0, s.id))
    made = world.tick()
    assert retired(made) == [oldest.id]
    assert "gave way to acme/wanted" in next(a.reason for a in made.actions if isinstance(a, Retire))
    assert world.tick().actions == ()
    world.finish_everything()
    assert provisions(world.tick()) == [(wanted, 1, True)]


def test_no_attached_sandbox_is_ever_evicted() -> None:
    world = World(limits=Limits(budget=Budget(sandboxes=2)))
    held = world.add_pool("held", min_ready=2)
    world.settle()
    world.claim(held)
    world.claim(held)
    wanted = world.add_pool("wanted", min_ready=0)
    world.claim(wanted)
    made = world.tick()
    assert retired(made) == []
    assert "budget" in world.decision(made, wanted)


def test_a_refill_never_takes_from_the_minimum_of_a_more_recently_used_pool() -> None:
    world = World(limits=Limits(budget=Budget(memory_bytes=GIB)))
    size = Resources(memory_bytes=512 * MIB, cpu_cores=0.1, pids=100)
    recent = world.add_pool("recent", min_ready=2, resources=size)
    world.last_used_at[recent] = world.now + 100
    world.settle()
    older = world.add_pool("older", min_ready=1, resources=size)
    world.last_used_at[older] = world.now - 100
    assert world.settle().actions == ()
    assert len(world.of(recent, "ready")) == 2
    world.now += 200
    world.last_used_at[older] = world.now
    world.settle()
    assert len(world.of(older, "ready")) == 1
    assert len(world.of(recent, "ready")) == 1


def test_a_sandbox_larger_than_the_whole_budget_is_refused_at_once() -> None:
    world = World(limits=Limits(budget=Budget(memory_bytes=GIB)))
    pool = world.add_pool("huge", min_ready=0, resources=Resources(memory_bytes=2 * GIB))
    world.claim(pool)
    (action,) = world.tick().actions
    assert isinstance(action, FailWaiters)
    assert action.reason == "capacity"


def test_a_lowered_budget_is_given_back_least_recently_used_first() -> None:
    world = World(limits=Limits(budget=Budget(sandboxes=4)))
    stale, busy = world.add_pool("stale", min_ready=2), world.add_pool("busy", min_ready=2)
    world.last_used_at.update({stale: world.now, busy: world.now + 5})
    world.settle()
    world.limits = replace(world.limits, budget=Budget(sandboxes=3))
    world.settle()
    assert (len(world.of(stale)), len(world.of(busy))) == (1, 2)


def test_room_that_was_freed_for_a_waiting_session_is_not_taken_by_a_smaller_refill() -> None:
    world = World(limits=Limits(budget=Budget(memory_bytes=400 * MIB)))
    big = Resources(memory_bytes=300 * MIB, cpu_cores=0.1, pids=100)
    stale = world.add_pool("stale", min_ready=3)
    world.settle()
    world.now += 10
    wanted = world.add_pool("wanted", min_ready=0, resources=big)
    refill = world.add_pool("refill", min_ready=1)
    world.claim(wanted)
    world.last_used_at[refill] = world.now - 100
    made = world.tick()
    # 100 MiB are free and would fit the refill, but then 300 MiB would never come together.
    assert len(retired(made)) == 2
    assert provisions(made) == []
    world.gone(world.of(stale, "draining")[0].id)
    assert provisions(world.tick()) == []
    world.gone(world.of(stale, "draining")[0].id)
    assert provisions(world.tick()) == [(wanted, 1, True)]


def test_a_lowered_max_total_takes_old_versions_away_first() -> None:
    world = World()
    pool = world.add_pool("demo", min_ready=3, max_total=9)
    world.settle()
    old = {sandbox.id for sandbox in world.of(pool)}
    world.change_template(pool)
    world.tick()
    world.publish(world.lineage_of(pool), world.pools[pool].template)
    world.tick()
    world.change_pool(pool, max_total=3)
    assert set(retired(world.tick())) == old
