"""A core that leads, and what its followers tell it: for the tests of the leader's decisions.

The followers have no disk, so A stays the only voter and what it decides holds at once: how an
entry is committed is a matter of test_raft.py and test_core.py. Must NOT judge anything.
"""

from dataclasses import replace
from typing import Any, TypeVar

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.leader.decisions import Leader
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.ids import PeerId, digest_text
from protocols.types.rules import ProtocolConfig
from tests.protocols.scenes import (
    RULES,
    START,
    A,
    B,
    C,
    D,
    Scene,
    caught_up,
    contributor,
    join,
    run,
)

DIGEST = digest_text("a result")

Entry = TypeVar("Entry", bound=e.Entry)


class Led(Scene):
    """A core that leads a run alone."""

    def __init__(
        self,
        *,
        peers_min: int = 1,
        outer_steps: int = 9,
        hidden: bool = False,
        gossip: bool = False,
        asks: bool = False,
        operators: bool = False,
        rules: ProtocolConfig = RULES,
    ) -> None:
        """`operators`: only they revoke."""
        super().__init__(A, join=False, hidden=hidden)
        self.on(v.RunAccepted(rules))
        began = run(peers_min=peers_min, outer_steps=outer_steps)
        began = replace(began, gossip=gossip, asks=asks, voters_revoke=not operators)
        self.on(v.Bootstrap(began, (START,)))

    def joins(self, peer: PeerId, *, able: bool = True, incarnation: int = 1) -> None:
        """A peer comes, gets the state from whomever the cut names, and becomes a member."""
        self.comes(peer, incarnation=incarnation)
        self.hears(peer, m.ReadLog(0))
        self.hears(peer, join(peer, incarnation=incarnation))
        index, cut = self.core.run_state.cuts[peer]
        version = cut.versions[0]
        self.hears(peer, m.Have(self.lineage, 0, version.round, version.state_digest))
        self.hears(peer, caught_up(peer, index, incarnation=incarnation))
        if able:
            self.hears(peer, m.ReadyToTrain())
        self.hears(peer, m.ReportsComplete(self.core.raft.term))

    def comes(self, peer: PeerId, *, incarnation: int = 1) -> None:
        """It connects, and will never be a voter."""
        self.meets(peer, leader="", incarnation=incarnation)
        self.hears(peer, m.Durable(works=False, why="it has no disk"))

    @property
    def lineage(self) -> int:
        return self.core.run_state.lineage

    @property
    def leader(self) -> Leader:
        assert self.core.led_term is not None
        return self.core.led_term.leader

    def entries(self, kind: type[e.Entry]) -> list[e.Entry]:
        """Appended in the last answer."""
        return [x.entry for x in self.all(c.Applied) if isinstance(x.entry, kind)]


def leading(*others: PeerId, peers_min: int = 1, **said: Any) -> Led:
    """A leads, the others are members, all are able: view 1 stands. `said`: to `Led`."""
    scene = Led(peers_min=max(peers_min, 1 + len(others)), **said)
    scene.on(v.TrainersReady())
    for other in others:
        scene.joins(other)
    return scene


def ready(scene: Led, *peers: PeerId, round_: int = 1, attempt: int = 0, number: int = 1) -> None:
    stamp = scene.stamp(round_, attempt=attempt, number=number)
    for peer in peers:
        scene.hears(peer, m.ContributionOffered(stamp, contributor(peer, round_)))


def hold(scene: Led, *peers: PeerId, round_: int = 1, attempt: int = 0, number: int = 1) -> None:
    stamp = scene.stamp(round_, attempt=attempt, number=number)
    for peer in peers:
        scene.hears(peer, m.Hold(stamp, DIGEST))


def written(scene: Led, kind: type[Entry], *, since: int = 0) -> list[Entry]:
    """Entries of the whole log."""
    return [x.body for x in scene.core.raft.log.entries[since:] if isinstance(x.body, kind)]


def last(scene: Led, kind: type[Entry]) -> Entry:
    """The newest entry of a kind."""
    return written(scene, kind)[-1]


def a_rests(scene: Led) -> None:
    """A, whose own part these scenes do not play, is no part of the roster any more."""
    scene.on(v.TrainersLost("rests"))


def three(*, outer_steps: int = 9) -> Led:
    """B, C and D contribute; A leads and trains nothing."""
    scene = leading(B, C, D, outer_steps=outer_steps)
    a_rests(scene)
    assert last(scene, e.View).roster == (B, C, D)
    return scene


def of(scene: Led) -> int:
    """The newest view's number."""
    return scene.core.run_state.views[-1].view


def say(scene: Led, what: str, *peers: PeerId, round_: int = 1, attempt: int = 0) -> None:
    act = {"ready": ready, "hold": hold}[what]
    act(scene, *peers, round_=round_, attempt=attempt, number=of(scene))


def keep_alive(scene: Led, seconds: float, *peers: PeerId) -> None:
    """Time passes, and these are heard of."""
    for _ in range(int(seconds)):
        for peer in peers:
            scene.hears(peer, m.Heartbeat())
        scene.waits(1.0)
