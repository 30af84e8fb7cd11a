"""How long a healthy round takes, in virtual time and counted in round trips: nothing waits for a
heartbeat, or for the next entry of the log (protocol.md section 3: 3 RTT to its commit)."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.types.ids import PeerId
from sims.checkers import World
from sims.node.node import Node
from sims.node.storage import SimulatedDisk
from sims.node.toy_model import Value

ROUND_TRIPS_MAX = 3.2
SYNC_S = 0.002
"""A disk of today."""
COMPUTE_S = 0.0005


class Clocked(World):
    """A world with even lines and disks; it notes when each round was contributed to, and when its
    commit was known to whom."""

    def __init__(self, *, peers: int, round_trip_s: float) -> None:
        self.contributed: dict[int, float] = {}
        """By round: when its last contribution was bytes."""
        self.known: dict[int, dict[PeerId, float]] = {}
        super().__init__(7, peers=peers, outer_steps=12)
        self.network.delay_s, self.network.jitter = round_trip_s / 2, 0.0
        self.settings = replace(self.settings, compute_s=COMPUTE_S)

    def sync_s(self, disk: SimulatedDisk) -> float:
        return SYNC_S

    def record(self, node: Node, event: v.Event, value: Value, out: Sequence[c.Command]) -> None:
        if isinstance(event, v.Encoded):
            self.contributed[event.round] = self.clock.now
        for command in out:
            if isinstance(command, c.Applied) and isinstance(command.entry, e.Commit):
                self.known.setdefault(command.entry.round, {})[node.peer] = self.clock.now


def waits(world: Clocked, round_trip_s: float) -> dict[int, list[float]]:
    """By round that everybody was counted in: when each knew of its commit, in round trips after
    the last contribution."""
    found: dict[int, list[float]] = {}
    for (_, _, round_), commit in world.checkers.commits.items():
        roster = [term.peer for term in commit.contributors]
        if len(roster) == world.settings.peers_min:
            since = world.contributed[round_]
            found[round_] = [(world.known[round_][p] - since) / round_trip_s for p in roster]
    return found


@pytest.mark.parametrize("peers", [2, 3, 5])
@pytest.mark.parametrize("round_trip_s", [0.1, 0.25])
def test_a_round_is_committed_within_three_round_trips(peers: int, round_trip_s: float) -> None:
    world = Clocked(peers=peers, round_trip_s=round_trip_s)
    world.run(until_s=120.0)
    assert world.finished
    taken = waits(world, round_trip_s)
    assert len(taken) >= 10, "the others are those that a latecomer was not counted in"
    slow = {n: times for n, times in taken.items() if max(times) > ROUND_TRIPS_MAX}
    assert not slow, f"round trips until the commit is known: {slow}"
    assert max(map(max, taken.values())) > 1.9, "too fast to be true"
