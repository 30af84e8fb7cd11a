"""After an event the core has done all that is possible: it may skip looking only when nothing is.

Here it looks once more at everything. And what its shell does with what the core said last.
"""

import pytest

import sims.node.node
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.peer import wakeups
from protocols.peer.core import PeerCore
from sims.checkers import World
from sims.sweep import MANY_EVERY, MANY_IN, PEERS, run_seed
from tests.marks import few

RELAYED = (69, PEERS)
"""A short run of so many peers that learners read the log through relays."""


class TwiceLooking(PeerCore):
    """Complains when another look would find something to do."""

    def handle(self, event: v.Event, now: float) -> list[c.Command]:
        commands = super().handle(event, now)
        if not self.stopped:
            before, self._out = self._out, []
            self.raised = wakeups.ALL
            self.look(now)
            assert self._out == [], f"after {event!r}: {self._out}"
            self._out = before
        return commands


@pytest.mark.parametrize(
    ("seed", "peers"), few([RELAYED, *((seed, (3, 5)) for seed in range(940, 952))], count=2)
)
def test_another_look_finds_nothing(
    seed: int, peers: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert peers != PEERS or seed % MANY_EVERY in MANY_IN
    monkeypatch.setattr(sims.node.node, "PeerCore", TwiceLooking)
    assert run_seed(seed, peers=peers).violations == []


def test_who_stops_ends_what_was_begun_and_who_is_killed_does_not() -> None:
    """Seed 3650466: the state that it was healed with was still on its way into its memory."""
    world = World(9, peers=3, outer_steps=30)
    world.run(until_s=8.0)
    stops, killed, _ = sorted(world.live, key=lambda node: node.core.leads)
    for node in (stops, killed):
        node.transfers.cells[0, 0] = node.states.outers[0] + 1
        node._do(c.AdoptState(99, 0, node.core.rounds[0].version))
    before = [node.states.outers[0] for node in (stops, killed)]
    stops.core.linked_peers.clear()
    stops.give(v.LeaveRequested("nobody is there"))
    world.kill(killed)
    assert stops.process.outcome
    world.run(until_s=8.5)
    assert [node.states.outers[0] for node in (stops, killed)] == [before[0] + 1, before[1]]
