"""Each kind of fault does what it says; plans are data, and repeat themselves."""

from collections import Counter

import pytest

from protocols import entries as e
from sims.faults import FAULTS_PER_S, KINDS, TRAPS, Fault, FaultKind, draw_plan, inject
from sims.world import World


def fault(
    kind: FaultKind, at_s: float = 2.5, *, peer: int = 0, other: int = 0, s: float = 1.0
) -> Fault:
    return Fault(at_s=at_s, kind=kind, peer=peer, other=other, duration_s=s)


def played(*plan: Fault, peers: int = 3, until_s: float = 90.0) -> World:
    world = World(9, peers=peers, outer_steps=30)
    inject(world, plan)
    world.run(until_s=until_s)
    return world


def test_a_seed_draws_the_same_plan_again() -> None:
    assert draw_plan(5, until_s=30.0) == draw_plan(5, until_s=30.0)
    assert draw_plan(5, until_s=30.0) != draw_plan(6, until_s=30.0)


def test_plans_stay_in_their_time_and_come_in_order() -> None:
    for seed in range(50):
        times = [each.at_s for each in draw_plan(seed, until_s=30.0)]
        assert times == sorted(times)
        assert all(0 < at_s < 30.0 for at_s in times)
        assert len(times) < 3 * 30 * FAULTS_PER_S


def test_some_seeds_have_a_kind_often_and_some_never() -> None:
    counts = [Counter(each.kind for each in draw_plan(s, until_s=30.0)) for s in range(200)]
    for kind in KINDS:
        per_seed = [count[kind] for count in counts]
        assert per_seed.count(0) > 40
        assert max(per_seed) >= 4


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in TRAPS])
def test_after_one_fault_of_any_kind_the_run_finishes(kind: FaultKind) -> None:
    world = played(fault(kind))
    assert world.happened[kind] == 1
    assert world.leader.outcome == "finished"
    assert world.checkers.violations == []


@pytest.mark.parametrize("kind", TRAPS)
def test_a_trap_waits_for_a_transfer_and_goes_off_during_it(kind: FaultKind) -> None:
    # The leader is no donor here: p1 is asked, and the second joiner gets what is left over.
    world = played(fault(kind, 2.0), fault("join", 3.0), fault("join", 10.0))
    assert world.happened[kind] == 1
    assert any("trap during a transfer" in line for line in world.story)
    assert world.leader.outcome == "finished"
    assert world.checkers.violations == []


@pytest.mark.parametrize("kind", ["kill", "restart", "leave", "cut", "corrupt"])
def test_the_only_sequencer_is_spared(kind: FaultKind) -> None:
    world = played(*(fault(kind, at, peer=n) for n, at in enumerate((2.0, 2.1, 2.2))), peers=1)
    assert world.happened[kind] == 0
    assert world.leader.outcome == "finished"


@pytest.mark.parametrize("kind", ["pause", "stall"])
def test_the_only_sequencer_is_never_silent_for_long(kind: FaultKind) -> None:
    world = played(*(fault(kind, 2.0 + 5 * n, peer=0, s=9.0) for n in range(3)))
    assert world.happened[kind] == 3
    assert {node.outcome for node in world.nodes.values()} == {"finished"}


def test_a_lie_is_noticed_and_another_donor_asked() -> None:
    world = played(fault("lie", 2.0), fault("join", 3.0))
    assert any("sent a state that is not the cut's" in line for line in world.story)
    cuts = [x.body for x in world.leader.core.log.entries if isinstance(x.body, e.Cut)]
    assert [cut.info.name for cut in cuts[2:]] == ["p3", "p3"]
    assert len({cut.donor for cut in cuts[2:]}) == 2


def test_a_corrupted_state_is_named_and_healed() -> None:
    world = played(fault("corrupt"))
    assert any("is not the majority's" in line for line in world.story)
    assert {node.corrupt for node in world.nodes.values()} == {False}
    assert len({node.outer for node in world.nodes.values()}) == 1


def test_a_peer_that_leaves_says_so() -> None:
    world = played(fault("leave"))
    left = [x.body for x in world.leader.core.log.entries if isinstance(x.body, e.Left)]
    assert left[0].why == "a person asked"
    assert [node.outcome for node in world.nodes.values()].count("left") == 1


def test_there_are_never_too_many_peers() -> None:
    world = played(*(fault("join", 1.0 + n / 10) for n in range(20)), until_s=5.0)
    assert len(world.nodes) == 9
    assert world.happened["join"] == 6


def test_faults_end_when_the_world_heals() -> None:
    world = World(9, peers=3, outer_steps=30)
    inject(world, [fault("joiner", 2.0)])
    world.at(2.5, world.heal)
    world.at(3.0, lambda: world.add_peer() and None)
    world.run(until_s=90.0)
    assert world.happened["joiner"] == 0
