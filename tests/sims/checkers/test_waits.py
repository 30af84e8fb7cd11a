"""Whom a peer names that waits for long."""

import pytest

import sims.checkers.waits
from protocols.peer.core import PeerCore
from protocols.peer.wait_reason import WaitReason
from sims.checkers import World
from sims.checkers.waits import LONG_S, LOOK_S


def looked(monkeypatch: pytest.MonkeyPatch, *reasons: str) -> list[str]:
    """A peer gives these reasons, each for more than half of LONG_S."""
    world = World(9, peers=3, outer_steps=30)
    world.run(until_s=8.0)
    (node,) = world.leaders
    for reason in reasons:

        def said(core: PeerCore, now: float, reason: str = reason) -> WaitReason:
            return WaitReason("waiting", reason, 0.0, now)

        monkeypatch.setattr(sims.checkers.waits, "describe", said)
        until = world.clock.now + 0.6 * LONG_S
        while world.clock.now < until:
            world.clock.now += LOOK_S
            world.checkers.waits.looks(node)
    return world.checkers.violations


@pytest.mark.parametrize("reason", ["round 9: the commit, from p1", "its ranks", "h2:1"])
def test_a_wait_that_names_something_may_be_long(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    assert looked(monkeypatch, reason, reason) == []


def test_a_long_wait_without_a_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = set(looked(monkeypatch, "the commit", "the commit"))
    assert "names no peer or cause" in found


def test_what_has_just_changed_is_not_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked(monkeypatch, "the commit", "a place in the run") == []
