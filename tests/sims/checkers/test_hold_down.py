"""How long a peer that comes and goes has to wait, as its checker sees it."""

import pytest

from protocols.interface import events as v
from protocols.leader.joins import HOLD_DOWN_S
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.ids import PeerId, PeerInfo
from sims.checkers import World

FLAPPER = PeerId("flapper.1")


@pytest.mark.parametrize(
    ("losses", "waits_s", "found"),
    [(1, 0.0, False), (2, 0.0, True), (2, HOLD_DOWN_S, False), (3, HOLD_DOWN_S, True)],
)
def test_a_peer_that_flaps_waits(*, losses: int, waits_s: float, found: bool) -> None:
    world = World(9, peers=3, outer_steps=30)
    world.run(until_s=8.0)
    (leader,) = world.leaders
    led_term, raft, checker = (
        leader.core.led_term,
        leader.raft,
        world.checkers.leaders.hold_down,
    )
    assert led_term is not None
    checker.check_event(leader, v.DeadlineReached())
    led_term.head.losses = {FLAPPER: losses}
    raft.append(e.Elected(leader.peer))
    checker.check_event(leader, v.DeadlineReached())
    lineage = led_term.head.lineage
    asks = m.Join("flapper", 1, "h9:1", "restarted", "", lineage)
    checker.check_event(leader, v.MessageReceived(FLAPPER, asks))
    world.clock.now += waits_s
    raft.append(e.Cut(PeerInfo(FLAPPER, "flapper", 1, "h9:1", slot=9), (leader.peer,), ()))
    checker.check_event(leader, v.DeadlineReached())
    assert any("lets flapper.1 in" in text for text in world.checkers.violations) == found
