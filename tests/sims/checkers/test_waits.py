"""Whom a peer names that waits for long."""

import pytest

import protocols.waiting
from protocols.core import PeerCore
from sims.checkers.waits import LONG_S
from sims.world import World


@pytest.mark.parametrize(("reason", "is_right"), [("round 9: the commit", False), ("p1", True)])
def test_a_long_wait_names_a_peer(
    monkeypatch: pytest.MonkeyPatch, reason: str, is_right: bool
) -> None:
    def election(core: PeerCore) -> str:
        return reason

    world = World(9, peers=3, outer_steps=30)
    world.run(until_s=8.0)
    (node,) = world.leaders
    node.core.raft.leader, since = None, node.core.company.leaderless_since
    monkeypatch.setattr(protocols.waiting, "_election", election)
    node.core.company.leaderless_since = since = min(since, world.now)
    world.now = since + LONG_S / 2
    world.checkers.waits.looks(node)
    assert world.checkers.violations == []
    world.now += LONG_S
    world.checkers.waits.looks(node)
    assert bool(world.checkers.violations) is not is_right
