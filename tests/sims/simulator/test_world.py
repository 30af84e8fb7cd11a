"""The simulated world itself: it repeats itself exactly, and treats peers as the real one does."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import pytest

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.types.ids import PeerId
from sims.checkers import World
from sims.node.node import Node
from sims.node.storage import SimulatedDisk
from sims.node.world_view import Observer
from sims.scenarios.fault_plan import draw_plan, inject
from sims.scenarios.two_peers import ForkWorld
from sims.simulator.world import RULES, BareWorld

ROOT = Path(__file__).parents[3]


def played(seed: int, *, until_s: float = 60.0) -> World:
    world = World(seed, peers=3, outer_steps=10)
    inject(world, draw_plan(seed, until_s=30.0))
    world.run(until_s=until_s)
    return world


def told(world: BareWorld) -> str:
    """Everything that happened: the story, every log, every state, the time."""
    logs = [
        f"{peer} {node.me.incarnation} {node.states.outers} {node.raft.log.since(1)}"
        for peer, node in world.nodes.items()
    ]
    return "\n".join([f"{world.clock.now!r}", *world.story.lines, *logs])


E = TypeVar("E", bound=e.Entry)


def calm(peers: int = 3, *, outer_steps: int = 10) -> World:
    return World(7, peers=peers, outer_steps=outer_steps)


def followers(world: World) -> list[Node]:
    return [node for node in world.nodes.values() if not node.core.leads]


def leader(world: World) -> Node:
    """At this moment: in a calm world there is just one."""
    (node,) = world.leaders
    return node


def entries(world: World, kind: type[E]) -> list[E]:
    """What everybody applied, of one kind, in order."""
    log = world.checkers.log
    return [body for index in sorted(log) if isinstance(body := log[index], kind)]


def persist(index: int) -> c.Persist:
    """One entry more."""
    entry = e.LogEntry(index, 1, e.Lost(PeerId("x.1"), "silent"))
    return c.Persist(index, 1, "", index, (entry,), None)


def commits(world: World) -> int:
    return len(world.checkers.commits)


def test_the_same_seed_tells_the_same_story_byte_for_byte() -> None:
    assert told(played(11)) == told(played(11))
    assert told(played(11)) != told(played(12))


@pytest.mark.long
def test_it_does_so_in_any_process() -> None:
    """No set of names is ever walked through in the order of its hashes."""
    program = (
        "from tests.sims.simulator.test_world import played, told; import hashlib;"
        "print(hashlib.sha256(''.join(told(played(s)) for s in (11, 15, 20)).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    here = "".join(told(played(seed)) for seed in (11, 15, 20))
    assert digests == {hashlib.sha256(here.encode()).hexdigest() + "\n"}


class Blind:
    """An observer that takes each call and knows no violation."""

    @property
    def history(self) -> "Blind":
        return self

    def __getattr__(self, name: str) -> Callable[..., bool]:
        return lambda *_, **__: False


class Unchecked(BareWorld):
    def make_observer(self) -> Observer[Node]:
        return cast(Observer[Node], Blind())


def test_a_world_without_checkers_tells_the_same_story() -> None:
    checked, unchecked = calm(), Unchecked(7, peers=3, outer_steps=10)
    for world in (checked, unchecked):
        victim = list(world.nodes.values())[1]
        world.clock.at(5.0, lambda world=world, victim=victim: world.operator.restart(victim))
        world.run(until_s=60.0)
    assert unchecked.finished
    assert told(unchecked) == told(checked)


def test_without_faults_all_finish_with_everybody_in_every_round() -> None:
    world = calm()
    world.run(until_s=60.0)
    assert [node.process.outcome for node in world.nodes.values()] == ["finished"] * 3
    assert [len(commit.contributors) for commit in world.checkers.commits.values()] == [3] * 10
    assert len({tuple(node.states.outers) for node in world.nodes.values()}) == 1
    assert world.checkers.violations == []


def test_a_killed_peer_is_lost_and_the_others_finish() -> None:
    world = calm()
    victim = followers(world)[0]
    world.clock.at(5.0, lambda: world.kill(victim))
    world.run(until_s=60.0)
    assert victim.process.outcome == ""
    assert not victim.process.alive
    assert [entry.peer for entry in entries(world, e.Lost)] == [victim.peer]
    assert commits(world) == 10


def test_a_restarted_peer_is_the_same_peer_in_another_life() -> None:
    world = calm(outer_steps=30)
    old = followers(world)[0]
    world.clock.at(2.5, lambda: world.operator.restart(old))
    world.run(until_s=60.0)
    new = world.nodes[old.peer]
    assert new is not old
    assert new.me.incarnation == 2
    assert new.process.outcome == "finished"
    assert world.checkers.violations == []


def test_a_restarted_peer_remembers_its_log_and_nothing_else() -> None:
    world = calm(outer_steps=30)
    world.run(until_s=5.0)
    old = followers(world)[0]
    before = old.raft
    world.kill(old)
    world.revive(old, 0.0)
    world.run(until_s=world.clock.now + 1e-6)
    new = world.nodes[old.peer]
    assert new.running
    assert new.raft.term == before.term
    assert new.raft.log.term_at(1) == before.log.term_at(1) == 1
    assert new.raft.log.last_index <= before.log.last_index
    assert new.raft.disk.durable_index == new.raft.log.last_index
    assert not new.core.leads
    assert new.data_plane.store.results == {}
    assert world.happened["revived"] == 1


def test_reviving_who_lives_does_nothing() -> None:
    world = calm(outer_steps=30)
    world.run(until_s=2.0)
    node = followers(world)[0]
    world.revive(node, 0.5)
    world.run(until_s=4.0)
    assert world.nodes[node.peer] is node
    assert world.happened["revived"] == 0


def test_when_the_leader_dies_another_one_leads_and_the_run_ends_well() -> None:
    world = calm(outer_steps=30)
    while commits(world) < 2:
        world.run(until_s=world.clock.now + 0.5)
    old = leader(world)
    world.kill(old)
    world.run(until_s=world.clock.now + 10.0)
    assert leader(world).core.raft.term > old.raft.term
    world.run(until_s=90.0)
    assert {node.process.outcome for node in followers(world) if node is not old} == {"finished"}
    assert commits(world) == 30
    assert world.happened["leader killed"] == 1
    assert world.checkers.violations == []


def test_when_all_die_they_go_on_from_what_is_on_their_disks() -> None:
    """Term, log and vote come back; the state is that of a checkpoint, in a new lineage."""
    world = calm(outer_steps=30)
    world.run(until_s=8.0)
    reached, nodes = commits(world), list(world.nodes.values())
    assert reached > 2
    for node in nodes:
        world.kill(node)
    for node in nodes:
        world.revive(node, 1.0)
    world.operator.busy_until = world.clock.now + 5.0
    world.run(until_s=120.0)
    assert [node.process.outcome for node in world.nodes.values()] == ["finished"] * 3
    assert len(entries(world, e.Restore)) == 1
    assert commits(world) >= 30
    assert len({tuple(node.states.outers) for node in world.nodes.values()}) == 1
    assert world.checkers.violations == []


def test_what_was_not_synced_may_be_lost_and_what_was_is_not() -> None:
    """The disk works on one write at a time: a kill leaves that one or none of them."""
    found: set[int] = set()
    for seed in range(40):
        world = World(seed, peers=3, outer_steps=10)
        world.run(until_s=1.0)
        node = followers(world)[0]
        before = node.disk.saved
        known = before.entries if before else ()
        last = known[-1].index if known else 0
        node.wal_writer.writes.clear()
        node.wal_writer.writes.extend(persist(last + number) for number in (1, 2, 3))
        world.kill(node)
        after = node.disk.saved
        entries = after.entries if after else ()
        assert entries[: len(known)] == known
        added = [entry.index for entry in entries[len(known) :]]
        assert added == [last + number for number in (1, 2, 3)][: len(added)]
        found.add(len(added))
    assert found == {0, 1}


def test_a_full_disk_keeps_nothing_of_what_was_under_way() -> None:
    for seed in range(10):
        world = World(seed, peers=3, outer_steps=10)
        world.run(until_s=1.0)
        node = followers(world)[0]
        before = node.disk.saved
        last = before.entries[-1].index if before and before.entries else 0
        node.wal_writer.writes.clear()
        node.wal_writer.writes.append(persist(last + 1))
        node.disk.full_until = 9.0
        world.kill(node)
        assert node.disk.saved == before


def test_a_full_disk_fails_all_writes_and_the_run_waits_for_room_or_others() -> None:
    world = calm(outer_steps=30)
    world.run(until_s=3.0)
    victim = followers(world)[0]
    victim.disk.full_until = 8.0
    saved = victim.disk.saved
    world.run(until_s=7.9)
    assert victim.disk.saved == saved
    assert victim.raft.disk.why == "no space left"
    world.run(until_s=90.0)
    assert victim.disk.saved != saved
    assert [node.process.outcome for node in world.nodes.values()] == ["finished"] * 3
    assert world.checkers.violations == []


def test_a_hole_in_the_log_on_a_disk_is_a_mistake_of_the_simulator() -> None:
    disk = SimulatedDisk()
    disk.write(persist(1))
    with pytest.raises(AssertionError, match="has a gap"):
        disk.write(persist(3))


def test_what_is_scheduled_for_a_dead_life_does_not_happen_in_the_next() -> None:
    world = calm()
    old = followers(world)[0]
    happened: list[str] = []
    old.after(5.0, lambda: happened.append("old"))
    world.clock.at(1.0, lambda: world.operator.restart(old))
    world.run(until_s=10.0)
    assert happened == []


def test_a_stopped_peer_does_everything_later() -> None:
    world = calm()
    victim = followers(world)[0]
    seen: list[float] = []
    world.clock.at(2.0, lambda: world.pause(victim, 3.0))
    world.clock.at(2.1, lambda: victim.after(0.1, lambda: seen.append(world.clock.now)))
    world.run(until_s=10.0)
    assert seen == [pytest.approx(5.0)]


def test_a_cut_connection_is_dialled_again_by_who_dialled_it() -> None:
    world = calm()
    world.run(until_s=2.5)
    members = leader(world).core.run_state.members
    victim = next(node for node in followers(world) if node.peer in members)
    line = world.network.line(victim.peer, leader(world).peer)
    before = line.connection
    world.dialer.cut_connection(victim, leader(world))
    assert not line.up
    world.run(until_s=4.0)
    assert line.up
    assert line.connection == before + 1
    assert victim.peer in leader(world).core.run_state.members, "it came back in time"


def test_a_peer_that_finds_nobody_gives_up() -> None:
    world = calm(1)
    world.kill(leader(world))
    late = world.add_peer()
    world.run(until_s=60.0)
    assert late.process.outcome == "alone"


def test_an_address_without_a_peer_is_one_that_does_not_listen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = calm(1)

    def way_in(_: PeerId) -> str:
        return "nowhere:1"

    monkeypatch.setattr(world.operator, "way_in", way_in)
    late = world.add_peer()
    world.run(until_s=4.0)
    assert (late.contacts.dials, late.process.outcome) == ({"nowhere:1"}, "")
    world.run(until_s=60.0)
    assert late.process.outcome == "alone"


def test_who_gave_up_is_connected_with_nobody() -> None:
    """Seed 126: its next life could not connect with one that its first life had dialled."""
    world = calm(1)
    world.kill(leader(world))
    late = [world.add_peer() for _ in range(6)]
    world.run(until_s=2.0)
    pairs = [(one, other) for one in late for other in late if one is not other]
    connected = {one for one, other in pairs if world.network.line(one.peer, other.peer).up}
    while not any(node.process.outcome for node in connected) and world.clock.now < 60.0:
        world.run(until_s=world.clock.now + 0.1)
    (first, *_) = (node for node in connected if node.process.outcome == "alone")
    assert not any(world.network.line(first.peer, other.peer).up for other in late)


def test_a_second_pause_does_not_end_the_first_one() -> None:
    """Seed 920045: writes came to the disk out of order."""
    world = calm()
    world.run(until_s=1.0)
    victim = followers(world)[0]
    world.pause(victim, 5.0)
    world.pause(victim, 1.0)
    assert victim.turns.paused_until == world.clock.now + 5.0


def test_what_is_due_at_one_time_happens_in_order() -> None:
    """Seed 900216: the disk wrote a later write first, because durations are rounded."""
    world, done = calm(), list[int]()
    node, due = leader(world), 0.3
    for i in range(200):
        world.clock.at_time(i / 1000, lambda i=i: node.at_time(due, lambda: done.append(i)))
    world.run(until_s=1.0)
    assert done == list(range(200))


def test_healing_brings_as_many_as_the_run_needs() -> None:
    world = World(1, peers=3, outer_steps=10)  # A seed that brings back none of the dead.
    for node in followers(world):
        world.clock.at(0.2, lambda node=node: world.kill(node))
    world.clock.at(5.0, world.heal)
    world.run(until_s=60.0)
    assert len(world.nodes) == 5
    assert commits(world) == 10


def test_healing_does_not_count_on_who_was_asked_to_leave() -> None:
    """Seed 1200759: a member that was stopped just then heard it later, when nobody led, and went:
    of four voters two were left."""
    world = World(1, peers=3, outer_steps=30)  # A seed that brings back none of the dead.
    world.run(until_s=8.0)
    dead, asked = leader(world), followers(world)[0]
    world.pause(asked, 2.0)
    asked.process.asked_to_leave = True
    asked.give(v.LeaveRequested("a person asked"))
    world.kill(dead)
    world.heal()
    world.run(until_s=world.clock.now + 60.0)
    assert asked.process.outcome == "left"
    assert world.happened["revived"] == 1
    assert commits(world) == 30


def test_of_two_a_newcomer_is_told_of_who_lives() -> None:
    """Seed 1200896: it asked where nobody listened any more, and gave up."""
    world = ForkWorld(8, peers=2, outer_steps=10)
    world.run(until_s=1.0)
    (dead,), alive = followers(world), leader(world)
    world.kill(dead)
    ways = [world.add_peer().contacts.dials for _ in range(8)]
    assert ways == [{alive.core.me.address}] * 8


def test_who_comes_back_before_the_run_begins_is_told_of_its_founder() -> None:
    """Seed 1500391: all were told of each other, and nobody of the founder."""
    world = calm(4)
    founder, *others = world.nodes.values()
    for node in (founder, *others):
        world.kill(node)
    for node in others:
        world.revive(node, 0.1)
    world.run(until_s=0.2)
    assert [node.contacts.dials for node in world.live] == [{founder.me.address}] * 3


def test_a_busy_loop_is_noticed() -> None:
    world = calm()
    world.run(until_s=2.5)
    stuck = next(x for x in followers(world) if x.member_status.is_member).core.rounds[0]
    while stuck.applying is not None:  # An outer step under way would end in another error.
        world.run(until_s=world.clock.now + 0.05)
    stuck.fetching.at, stuck.version = 1.0, -1  # Without a state, nothing resets it.
    world.run(until_s=world.clock.now + 2.0)
    assert any("stays in the past" in text for text in world.checkers.violations)


def test_the_rules_leave_room_for_what_is_simulated() -> None:
    assert RULES.silence_timeout_s > 2 * RULES.reconnect_grace_s - 0.1
    assert RULES.round_grace_s > RULES.reduction_timeout_s
