"""A simulated shell takes events and does jobs in the order of peers/driver."""

import pytest

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.types.ids import PeerId, Stamp
from sims.checkers import StepWorld, World
from sims.node.node import Node

OTHER = PeerId("x.00000001")


class Scripted:
    """In place of a core: answers each event with the commands that are written for it."""

    def __init__(self, node: Node, answers: dict[str, list[c.Command]]) -> None:
        self.core, self.answers = node.core, answers
        self.taken: list[str] = []

    def handle(self, event: v.Event, now: float) -> list[c.Command]:
        name = type(event).__name__
        self.taken.append(name)
        return self.answers.get(name, [])


@pytest.fixture
def node() -> Node:
    world = World(3, peers=3, outer_steps=30)
    world.run(until_s=6.0)
    return world.live[1]


def world_of(node: Node) -> World:
    assert isinstance(node.world, World)
    return node.world


def script(
    node: Node, answers: dict[str, list[c.Command]], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    scripted = Scripted(node, answers)
    monkeypatch.setattr(node.core, "handle", scripted.handle)
    return scripted.taken


def test_all_commands_of_an_event_are_done_before_the_next_event_is_taken(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hanging up ends a connection, and the shell says so; the write of the first event comes to
    the disk before that of the second. The other way round the log on the disk had a gap."""
    other = next(peer for peer in node.core.linked_peers)
    term, vote = node.raft.term, node.raft.election.state.vote
    first = c.Persist(901, term, vote, 10_000, (), None, 0)
    second = c.Persist(902, term, vote, 10_000, (), None, 0)
    taken = script(
        node,
        {
            "LeaveRequested": [c.Disconnect(other, "a test"), first],
            "PeerDisconnected": [second],
        },
        monkeypatch,
    )
    before = len(node.wal_writer.writes)
    node.give(v.LeaveRequested("a test"))
    assert taken == ["LeaveRequested", "PeerDisconnected"]
    assert [persist.write_number for persist in node.wal_writer.writes][before:] == [901, 902]


def test_what_a_callback_feeds_is_taken_when_it_has_ended(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, world = script(node, {}, monkeypatch), world_of(node)
    seen: list[list[str]] = []

    def callback() -> None:
        node.give(v.TrainersAble())
        node.give(v.DeadlineReached())
        seen.append(list(taken))

    node.after(0.0, callback)
    world.run(until_s=world.clock.now + 1e-9)
    assert seen == [[]]
    assert taken[:2] == ["TrainersAble", "DeadlineReached"]


def test_an_event_of_a_step_is_taken_at_once_unless_another_one_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = StepWorld(3, peers=2, outer_steps=100)
    world.run(until_s=1.0)
    node = next(iter(world.live))
    taken = script(node, {}, monkeypatch)
    seen: list[list[str]] = []
    made = v.StepMade(1, 1, "a digest")

    def callback() -> None:
        taken.clear()
        node.give(made)
        seen.append(list(taken))
        node.give(v.TrainersReady())
        node.give(made)
        seen.append(list(taken))

    node.turns.at_time(world.clock.now, callback)
    world.run(until_s=world.clock.now + 1e-9)
    assert seen == [["StepMade"], ["StepMade"]]
    assert [x for x in taken if x != "DeadlineReached"][:3] == [
        "StepMade",
        "TrainersReady",
        "StepMade",
    ]


def test_after_an_event_that_was_taken_at_once_a_nearer_deadline_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = StepWorld(3, peers=2, outer_steps=100)
    node = next(iter(world.live))
    taken = script(node, {}, monkeypatch)
    monkeypatch.setattr(node.core, "deadline", node.turns.wakes_at - 0.001)
    node.give(v.StepMade(1, 1, "a digest"))
    assert taken == ["StepMade", "DeadlineReached"]


def test_what_waits_in_the_inbox_of_a_peer_that_stops_is_not_taken(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = next(peer for peer in node.core.linked_peers)
    stop = c.Stop("a test", "left")
    taken = script(node, {"LeaveRequested": [c.Disconnect(other, "a test"), stop]}, monkeypatch)
    node.give(v.LeaveRequested("a test"))
    assert (taken, node.process.outcome) == (["LeaveRequested"], "left")


def test_a_pause_holds_the_inbox_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, world = script(node, {}, monkeypatch), world_of(node)

    def callback() -> None:
        node.give(v.TrainersAble())
        world.pause(node, 2.0)

    node.after(0.0, callback)
    world.run(until_s=world.clock.now + 1.0)
    assert taken == []
    world.run(until_s=world.clock.now + 2.0)
    assert taken[0] == "TrainersAble"


def test_what_is_in_turn_comes_after_the_jobs_before_it_and_takes_no_time(node: Node) -> None:
    done: list[tuple[str, float]] = []
    turns, world = node.turns, world_of(node)
    turns.end_jobs()
    turns.job(lambda: done.append(("job", world.clock.now)))
    turns.in_turn(lambda: done.append(("in turn", world.clock.now)))
    turns.job(lambda: done.append(("second job", world.clock.now)))
    world.run(until_s=world.clock.now + 3 * world.settings.compute_s)
    assert [name for name, _ in done] == ["job", "in turn", "second job"]
    assert done[0][1] == done[1][1]
    assert done[2][1] == pytest.approx(done[1][1] + world.settings.compute_s)


def test_the_memory_of_a_round_is_given_back_a_moment_later_or_with_the_next_contribution(
    node: Node,
) -> None:
    node.turns.end_jobs()
    stamp = Stamp(1, node.run_state.lineage, 0, 0, 9, 1)
    node.data_plane.store.results[stamp, 0] = 1
    node._do(c.ReleaseRound(0, 9))
    assert not node.data_plane.reductions.keeps(stamp, 0)
    assert (stamp, 0) in node.data_plane.store.results
    node.data_plane.reductions.make_releases(0)
    node.turns.end_jobs()
    assert (stamp, 0) not in node.data_plane.store.results
