"""Each kind of fault does what it says; plans are data, and repeat themselves."""

from collections import Counter
from typing import TypeVar

import pytest

from protocols.messages import log_entries as e
from sims.checkers import World
from sims.scenarios.fault_plan import (
    FAULTS_PER_S,
    KINDS,
    TRAPS,
    FaultKind,
    PlannedFault,
    draw_plan,
    inject,
)
from sims.scenarios.multi_step_faults import corrupt_half

E = TypeVar("E", bound=e.Entry)
SETTLED_S = 8.0
"""By then all three peers vote and rounds go on, in the world of these tests."""


def fault(
    kind: FaultKind, at_s: float = SETTLED_S, *, peer: int = 0, other: int = 0, s: float = 1.0
) -> PlannedFault:
    return PlannedFault(at_s=at_s, kind=kind, peer=peer, other=other, duration_s=s)


def played(*plan: PlannedFault, peers: int = 3, until_s: float = 90.0) -> World:
    world = World(9, peers=peers, outer_steps=20)
    inject(world, plan)
    world.run(until_s=until_s)
    return world


def entries(world: World, kind: type[E]) -> list[E]:
    """What everybody applied, of one kind, in order."""
    log = world.checkers.log
    return [body for index in sorted(log) if isinstance(body := log[index], kind)]


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
        assert max(per_seed) >= 3


def ended_well(world: World) -> bool:
    """Whoever lives has finished, and nothing happened that must not."""
    alive = [
        node
        for node in world.nodes.values()
        if node.process.alive and not node.process.asked_to_leave
    ]
    outcomes = {node.process.outcome for node in alive}
    return outcomes == {"finished"} and world.checkers.violations == []


@pytest.mark.parametrize("kind", [x for x in KINDS if x not in (*TRAPS, "unread", "revoke")])
def test_after_one_fault_of_any_kind_the_run_finishes(kind: FaultKind) -> None:
    world = played(fault(kind), peers=5 if kind in ("deaf", "vanish") else 3)
    assert world.happened[kind] == 1
    assert ended_well(world)


def test_as_many_corrupt_states_as_true_ones_take_the_run_back_and_one_reads_that_late() -> None:
    world = played(fault("unread", 7.0), fault("half"), peers=4)
    assert (world.happened["half"], world.happened["unread"]) == (1, 1)
    assert sum("is corrupted" in line for line in world.story.lines) == 2
    assert sum("reads late that the log went back" in line for line in world.story.lines) == 1
    assert len(entries(world, e.Restore)) == 1
    assert ended_well(world)


def test_of_an_odd_number_one_more_is_corrupt_and_in_another_way() -> None:
    world = World(10, peers=5, outer_steps=30)
    world.run(until_s=SETTLED_S)
    (leader,) = world.leaders
    assert corrupt_half(world, 1)
    assert not corrupt_half(world, 1), "it has to heal first"
    states = Counter(node.states.outers[0] for node in world.live)
    assert leader.states.corrupt
    assert sorted(states.values()) == [1, 2, 2]
    world.run(until_s=90.0)
    assert ended_well(world)


def test_who_alone_has_the_state_may_leave_when_it_gave_it_away() -> None:
    world = played(fault("sole"))
    left = [node for node in world.nodes.values() if node.process.outcome == "left"]
    assert [node.me.incarnation for node in left] == [1]
    assert {n.me.incarnation for n in world.nodes.values() if n not in left} == {2}
    assert entries(world, e.Restore) == []
    assert ended_well(world)


def test_nobody_is_asked_to_leave_once_all_is_healed() -> None:
    """Seed 3650081: those who came back had been reckoned with its vote."""
    world = World(9, peers=3, outer_steps=30)
    inject(world, [fault("sole")])
    world.clock.at(SETTLED_S + 0.02, world.heal)
    world.run(until_s=90.0)
    assert world.happened["sole"] == 1
    assert not any(node.process.asked_to_leave for node in world.nodes.values())
    assert ended_well(world)


def test_after_a_relapse_the_checkpoint_of_who_comes_late_is_not_the_runs() -> None:
    world = played(fault("relapse", other=1), peers=4, until_s=200.0)
    first, second = entries(world, e.Restore)
    late = next(n for n in world.nodes.values() if n.me.incarnation == 2)
    assert second.parent_lineage != first.parent_lineage
    assert {n.me.incarnation for n in world.nodes.values() if n is not late} == {3}
    assert ended_well(world)


def test_who_is_deaf_comes_back_when_its_own_round_was_counted_and_is_gone() -> None:
    world = played(fault("deaf"), peers=5)
    (victim,) = (line.split()[1] for line in world.story.lines if line.endswith("hears no peer"))
    (back,) = (x for x in entries(world, e.Cut) if x.info.peer == victim and x.versions[0].round)
    counted = [
        commit.round
        for commit in entries(world, e.Commit)
        if any(term.peer == victim for term in commit.contributors)
    ]
    state = back.versions[0].round
    last = max(round_ for round_ in counted if round_ <= state)
    assert last + 2 <= state <= last + 3  # Its result is gone, and its work is not too old.
    assert ended_well(world)


@pytest.mark.parametrize("kind", TRAPS)
def test_a_trap_waits_for_a_transfer_and_goes_off_during_it(kind: FaultKind) -> None:
    world = played(fault(kind, 7.0), fault("join", 8.0), fault("join", 15.0))
    assert world.happened[kind] == 1
    assert any("trap during a transfer" in line for line in world.story.lines)
    assert ended_well(world)


def test_a_lie_is_noticed_and_another_donor_asked() -> None:
    world = played(fault("lie", 7.0), fault("join", 8.0))
    assert any("other donors send the state" in line for line in world.story.lines)
    (liar,) = (
        peer for peer in world.nodes if any(f"{peer} sent a" in x for x in world.story.lines)
    )
    last = [cut for cut in entries(world, e.Cut) if cut.info.name == "p3"][-1]
    assert liar in last.donors, "what the others gave was enough"
    assert ended_well(world)


def test_a_corrupted_state_is_named_and_healed() -> None:
    world = played(fault("corrupt"))
    assert any("is not the majority's" in line for line in world.story.lines)
    assert not any(node.states.corrupt for node in world.nodes.values())
    assert len({tuple(node.states.outers) for node in world.nodes.values()}) == 1


def test_a_peer_that_leaves_says_so() -> None:
    world = played(fault("leave"))
    assert entries(world, e.Left)[0].why == "a person asked"
    assert [node.process.outcome for node in world.nodes.values()].count("left") == 1


def test_the_leader_is_killed_or_restarted() -> None:
    for other, names in ((0, 1), (1, 2)):
        world = World(9, peers=3, outer_steps=30)
        world.run(until_s=SETTLED_S)
        (leader,) = world.leaders
        inject(world, [fault("leader", 0.1, other=other)])
        world.run(until_s=90.0)
        assert not leader.process.alive
        assert world.nodes[leader.peer].core.me.incarnation == names
        assert world.happened["leader killed"] == 1
        assert world.leaders == []
        assert ended_well(world)


def test_a_crowd_dies_at_once_and_comes_back() -> None:
    """Peer 0 and those whose bit is set; here all, so that only their disks know the run."""
    world = played(fault("crowd", other=0b111, s=4.0), until_s=200.0)
    assert world.happened["revived"] == 3
    assert {node.me.incarnation for node in world.nodes.values()} == {2}
    assert len(entries(world, e.Restore)) == 1
    assert ended_well(world)


def stalled(world: World) -> set[tuple[str, str]]:
    """(sender, receiver) by name: who is not heard by whom at this moment."""
    return {
        (one.me.name, other.me.name)
        for one in world.nodes.values()
        for other in world.nodes.values()
        if one is not other
        and world.network.line(one.peer, other.peer).stalled_until.get(one.peer, 0.0)
        > world.clock.now
    }


@pytest.mark.parametrize(
    ("kind", "other", "found"),
    [
        ("stall", 0, {("p1", "p0"), ("p0", "p1")}),
        ("stall", 1, {("p1", "p2"), ("p2", "p1")}),
        ("one_way", 0, {("p1", "p0")}),
        ("one_way", 1, {("p1", "p2")}),
        ("lonely", 0, {("p1", "p0"), ("p1", "p2")}),
        ("lonely", 1, {("p0", "p1"), ("p2", "p1")}),
        ("partition", 0, {("p1", "p0"), ("p1", "p2"), ("p0", "p1"), ("p2", "p1")}),
        ("partition", 0b100, {("p1", "p0"), ("p2", "p0"), ("p0", "p1"), ("p0", "p2")}),
    ],
)
def test_who_is_not_heard_by_whom(kind: FaultKind, other: int, found: set[tuple[str, str]]) -> None:
    world = World(9, peers=3, outer_steps=30)
    inject(world, [fault(kind, 2.0, peer=1, other=other, s=4.0)])
    world.run(until_s=2.1)
    assert stalled(world) == found
    world.run(until_s=6.1)
    assert stalled(world) == set()


def test_a_leader_that_lost_its_majority_is_replaced_and_comes_back() -> None:
    world = World(9, peers=3, outer_steps=30)
    world.run(until_s=SETTLED_S)
    (old,) = world.leaders
    inject(world, [fault("partition", 0.1, peer=world.live.index(old), s=14.0)])
    world.run(until_s=SETTLED_S + 14.0)
    (new,) = world.leaders  # The old one stepped down although nobody told it to.
    assert new is not old
    assert new.raft.term > old.raft.term
    world.run(until_s=120.0)
    assert ended_well(world)


def test_a_minority_commits_nothing() -> None:
    world = World(9, peers=3, outer_steps=30)
    world.run(until_s=SETTLED_S)
    (old,) = world.leaders
    inject(world, [fault("partition", 0.0, peer=world.live.index(old), s=14.0)])
    world.run(until_s=SETTLED_S + 0.5)  # What was under way has arrived.
    reached, appended = old.run_state.index, old.raft.log.last_index
    world.run(until_s=SETTLED_S + 14.0)
    assert old.run_state.index == reached
    assert max(world.checkers.log) > appended  # The others went on.


def test_a_disk_that_is_full_costs_no_promise() -> None:
    world = played(*(fault("disk", peer=number, s=4.0) for number in range(3)))
    assert world.happened["disk"] == 3
    assert any("the log cannot be written: no space left" in line for line in world.story.lines)
    assert ended_well(world)


def test_there_are_never_too_many_peers() -> None:
    world = played(*(fault("join", 1.0 + n / 10) for n in range(20)), until_s=5.0)
    assert len(world.nodes) == 9
    assert world.happened["join"] == 6


def test_faults_end_when_the_world_heals() -> None:
    world = World(9, peers=3, outer_steps=30)
    inject(world, [fault("joiner", 7.0)])
    world.clock.at(7.5, world.heal)
    world.clock.at(8.0, lambda: world.add_peer() and None)
    world.run(until_s=90.0)
    assert world.happened["joiner"] == 0


def test_healing_ends_stalls_and_fills_no_disk() -> None:
    world = World(9, peers=3, outer_steps=30)
    kinds: tuple[FaultKind, ...] = ("one_way", "disk", "partition")
    inject(world, [fault(kind, 2.0, peer=1, s=60.0) for kind in kinds])
    world.clock.at(3.0, world.heal)
    world.run(until_s=3.1)
    assert stalled(world) == set()
    assert all(x.disk.full_until <= world.clock.now for x in world.nodes.values())


@pytest.mark.parametrize("seed", [4, 5, 6])
def test_a_round_whose_result_is_gone_is_taken_back_and_nothing_else(seed: int) -> None:
    world = World(seed, peers=6, outer_steps=30)
    inject(world, [fault("vanish")])
    world.run(until_s=SETTLED_S)
    world.clock.at(60.0, world.heal)
    world.run(until_s=300.0)
    restores = entries(world, e.Restore)
    assert [restore.live for restore in restores] == [True]
    assert ended_well(world)
