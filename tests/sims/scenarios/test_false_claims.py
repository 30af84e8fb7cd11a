"""A peer with a valid certificate claims to lead, or that newer terms began: the run goes on."""

from dataclasses import replace

import pytest

from protocols.interface import events as v
from protocols.leader import relay_plan
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.ids import PeerId
from sims.checkers import World
from sims.node.node import Node
from sims.node.toy_model import Training, Value
from sims.scenarios.false_claims import CLAIMS
from sims.scenarios.fault_plan import PlannedFault, inject

FROM_S, FOR_S = 6.0, 20.0
NAMED = ("append", "votes", "old votes")
"""Claims that prove a liar."""


def play(how: str, *, peer: int) -> World:
    """Five peers, of which one makes such claims to all others every 0.3 s for 20 s."""
    world = World(16, peers=5, outer_steps=400, training=Training(certified=True))
    other = CLAIMS.index(how)
    inject(world, [PlannedFault(FROM_S, "claim", peer, other, FOR_S)])
    world.run(until_s=FROM_S + FOR_S)
    return world


@pytest.mark.parametrize("peer", [2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("how", CLAIMS)
def test_false_claims_change_nothing(how: str, peer: int) -> None:
    world = play(how, peer=peer)
    assert world.checkers.violations == []
    logs = [node.raft.log for node in world.live]
    terms = {log.last_term for log in logs}
    assert terms == {1} if how != "terms" else max(terms) < 20
    bodies = [entry.body for log in logs for entry in log.entries]
    assert not any(isinstance(x, e.Lost) and x.why == "said a liar" for x in bodies)
    said = [line for line in world.story.lines if "claims to lead term" in line]
    assert bool(said) == (how in NAMED)
    assert max(node.run_state.committed(0) for node in world.live) >= 30, "36 without a liar"


@pytest.mark.parametrize("how", ["append", pytest.param("terms", marks=pytest.mark.long)])
def test_a_leader_that_sends_invalid_entries_is_named_and_another_one_elected(how: str) -> None:
    world = play(how, peer=0)
    assert world.checkers.violations == []
    assert [node.me.name for node in world.live] == [f"p{number}" for number in range(5)]
    named = {
        line.split()[1] for line in world.story.lines if "p0.3a0562d5: sends an invalid log" in line
    }
    assert named == {node.peer for node in world.live if node.me.name != "p0"}
    logs = [node.raft.log for node in world.live]
    bodies = [entry.body for log in logs for entry in log.entries]
    assert not any(isinstance(x, e.Lost) and x.why == "said a liar" for x in bodies)
    (leader,) = {node.core.leader_id for node in world.live}
    assert leader in named, "one that does not lie"
    assert max(node.run_state.committed(0) for node in world.live) >= 25, "36 without a liar"


class LyingRelay(World):
    """One relay passes on other entries than the leader sent."""

    liar = ""

    def carry(
        self, sender: PeerId, to: PeerId, purpose: str, event: v.Event, value: Value = 0
    ) -> None:
        match event:
            case v.MessageReceived(message=m.Relayed(append=append) as said):
                self.liar = self.liar or sender
                if sender == self.liar:
                    lie = replace(append.entries[-1], body=e.Lost(self.live[0].peer, "said a liar"))
                    forged = replace(append, entries=(*append.entries[:-1], lie))
                    event = replace(event, message=replace(said, append=forged))
            case _:
                pass
        super().carry(sender, to, purpose, event, value)


def test_a_learner_reads_no_entry_that_only_its_relay_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_plan, "LEARNERS_MIN", 1)
    world = LyingRelay(16, peers=5, outer_steps=400, training=Training(certified=True))
    joiners: list[Node] = []
    for _ in range(5):
        world.clock.at(2.0, lambda: joiners.append(world.add_peer()))
    world.run(until_s=FROM_S + FOR_S)
    assert world.liar
    named = f"{world.liar}: passes on entries that no majority of the voters has acknowledged"
    assert {x for x in world.checkers.violations if named not in x} == set()
    bodies = [entry.body for node in world.live for entry in node.raft.log.entries]
    assert not any(isinstance(x, e.Lost) for x in bodies)
    said = [line.split()[1] for line in world.story.lines if named in line]
    assert len(said) == len(set(said)) > 0, "no learner has it as its relay again"
    assert max(node.run_state.committed(0) for node in world.live) >= 20, "24 without a liar"


def test_a_joiner_without_the_state_is_named_and_no_member() -> None:
    world = World(16, peers=4, outer_steps=60, training=Training(certified=True))
    joiner: list[Node] = []
    world.clock.at(FROM_S, lambda: joiner.append(world.add_peer()))
    asked: set[int] = set()

    def say() -> None:
        world.clock.at(0.01, say)
        for leader in world.leaders if joiner else ():
            index, cut = leader.run_state.cut_of(joiner[0].peer)
            if cut is None or index in asked or joiner[0].peer not in leader.run_state.joiners:
                continue
            asked.add(index)
            me, lineage = joiner[0].core.me, leader.run_state.lineage
            world.checkers.containment.claimants.add(me.peer)
            report = m.CaughtUp(index, me.name, me.incarnation, me.address, lineage, "0" * 32)
            event = v.MessageReceived(me.peer, report)
            world.carry(me.peer, leader.peer, "control", event)

    say()
    world.run(until_s=FROM_S + FOR_S)
    assert world.checkers.violations == []
    named = [line for line in world.story.lines if "names another state than the log" in line]
    assert len(named) == len(asked) >= 1
    assert all(joiner[0].peer in node.run_state.members for node in world.live), "with the state"
