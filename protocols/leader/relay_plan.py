"""The leader's plan of relays: which voter passes the log to which learner, so that the leader's
load does not grow with the run.

A relay is only a shortcut: a learner that gets nothing through it is served by the leader. Must NOT
pass the log on (links/log_relay.py), nor decide anything about rounds.
"""

from binascii import crc32
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType

from protocols.interface.commands import Command, Send
from protocols.leader.peer_accounts import keep_only
from protocols.leader.reports import Reports
from protocols.links.connections import Connections
from protocols.messages.peer import PassedReports, Relay, Report, Via
from protocols.raft.node import Raft
from protocols.state.run_state import RunState
from protocols.types.clock import NEVER
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import PeerId

LEARNERS_MIN = 8
"""Fewer learners are served by the leader directly, since a relay costs each of them a hop."""
LAG_MAX = 64
"""A learner that lacks more entries reads from the leader until it has caught up."""
DIRECT_ROUNDS = 4
"""A learner that its relay failed is served by the leader for so many reduction timeouts."""


def deal(
    learners: Iterable[PeerId],
    relays: Iterable[PeerId],
    failed: Mapping[PeerId, Set[PeerId]] = MappingProxyType({}),
) -> dict[PeerId, PeerId]:
    """By learner, its relay (rendezvous hashing): the loss of a relay moves only its own
    learners. `failed`: by learner, relays that come last for it."""
    among, none = sorted(relays), frozenset[PeerId]()
    if not among:
        return {}

    def fitness(relay: PeerId, learner: PeerId) -> tuple[bool, int]:
        return relay not in failed.get(learner, none), crc32(f"{relay} {learner}".encode())

    return {learner: max(among, key=lambda x: fitness(x, learner)) for learner in learners}


@dataclass(slots=True)
class RelayPlan:
    """The relays of one leader in one term."""

    raft: Raft
    links: Connections
    run_state: RunState
    """The state after the leader's whole log."""
    reports: Reports
    via: dict[PeerId, PeerId] = field(default_factory=dict[PeerId, PeerId])
    """By learner, its relay."""
    _ever: dict[PeerId, set[PeerId]] = field(default_factory=dict[PeerId, set[PeerId]])
    """By learner, its relays in this term: reports under way may be of an earlier plan."""
    _direct_until: dict[PeerId, float] = field(default_factory=dict[PeerId, float])
    _failed: dict[PeerId, set[PeerId]] = field(default_factory=dict[PeerId, set[PeerId]])
    """By learner, the relays in this term that did not bring it the log: they may be liars."""
    _look_at: float = 0.0

    # Events ---------------------------------------------------------------------------------

    def connected(self, peer: PeerId) -> None:
        """A new connection: orders on the earlier one may be lost, and entries that it passed
        on."""
        self.disconnected(peer)

    def disconnected(self, peer: PeerId) -> None:
        if self.via.pop(peer, None) is not None or peer in self.via.values():
            self._look_at = 0.0

    def reported(self, relay: PeerId, passed: PassedReports) -> list[Report]:
        """The reports that count. Raises RemoteProtocolError if the peer was no relay of a
        learner."""
        if passed.term != self.raft.term:
            return []  # It is of an earlier term: its learners report again in this one.
        for report in passed.reports:
            known = self._ever.get(report.peer)
            if known is None and report.peer not in self.run_state.receivers:
                continue  # The learner is out and forgotten.
            if known is None or relay not in known:
                raise RemoteProtocolError(relay, f"speaks for {report.peer}, and is not its relay")
        return [
            report
            for report in passed.reports
            if report.peer in self._ever
            # Reports of an earlier incarnation do not count.
            if report.peer in self.raft.up and self.links.life(report.peer, 0) == report.incarnation
        ]

    def keep(self, peers: Set[PeerId]) -> None:
        """Forget all other peers as relays and learners."""
        keep_only(peers, self._ever, self._direct_until, self._failed)
        for relays in (*self._ever.values(), *self._failed.values()):
            relays.intersection_update(peers)

    # The plan -------------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """When to check the plan again; NEVER if there are too few learners."""
        return self._look_at if self._has_many else NEVER

    @property
    def _has_many(self) -> bool:
        return bool(self.via) or len(self.run_state.receivers) >= LEARNERS_MIN

    def orders(self, now: float) -> list[Command]:
        """Changes of the plan; checked at each heartbeat, and when a relay or learner is gone."""
        if not self._has_many:
            self._look_at = 0.0
            return []
        return self._changes(now) if now >= self._look_at else []

    def _changes(self, now: float) -> list[Command]:
        rules, log, replication = self.raft.rules, self.raft.log, self.raft.replication
        self._look_at = now + self.links.failure_detector.interval_s
        strayed = replication.take_strayed()
        for peer in self._overdue(now) | strayed:
            self._direct_until[peer] = now + DIRECT_ROUNDS * rules.reduction_timeout_s
        for peer in strayed & self.via.keys():
            self._failed.setdefault(peer, set()).add(self.via[peer])
        failure_detector = self.links.failure_detector
        since = now - rules.election_timeout_s
        relays = [x for x in log.voters if failure_detector.heard_since(x, since)]
        learners = self._learners(now)
        wanted = deal(learners, relays, self._failed) if len(learners) >= LEARNERS_MIN else {}
        changed = {x for x in wanted.keys() | self.via.keys() if wanted.get(x) != self.via.get(x)}
        return self._change(changed, wanted) if changed else []

    def _change(self, changed: set[PeerId], wanted: dict[PeerId, PeerId]) -> list[Command]:
        raft, before = self.raft, self.via
        told = {x for table in (before, wanted) for p in changed if (x := table.get(p))}
        index = min((raft.replication.match(peer) for peer in changed & wanted.keys()), default=0)
        self.via = wanted
        for learner, relay in wanted.items():
            self._ever.setdefault(learner, set()).add(relay)
        raft.relay(wanted)
        commands: list[Command] = []
        for relay in sorted(told & raft.up):
            share = tuple(sorted(x for x, theirs in wanted.items() if theirs == relay))
            commands.append(Send(relay, Relay(raft.term, share, index)))
        for learner in sorted(changed & raft.up):
            commands.append(Send(learner, Via(raft.term, wanted.get(learner, PeerId("")))))
        return commands

    def _learners(self, now: float) -> list[PeerId]:
        """The learners that can be served by a relay."""
        raft, replication = self.raft, self.raft.replication
        least = max(1, raft.commit_index - LAG_MAX)
        direct = {peer for peer, until in self._direct_until.items() if now < until}
        receivers = self.run_state.receivers
        there = (raft.up & receivers.keys()) - direct - set(raft.log.voters)
        return sorted(
            peer for peer in there if peer in self.via or replication.match(peer) >= least
        )

    def _overdue(self, now: float) -> set[PeerId]:
        """Learners with missing reports that others sent long ago. They may be slow, or their relay
        may hold reports back: the leader serves them directly before it excludes any."""
        found: set[PeerId] = set()
        for _, plan, reports in self.reports.all_open():
            if not reports.ready:
                continue
            rules, said = self.raft.rules, reports.ready.keys()
            patience_s, since = rules.round_grace_s / 2, min(reports.ready_at.values())
            if reports.everybody_ready(plan):
                patience_s, since = rules.reduction_timeout_s / 2, reports.plan_since
                said = reports.holders(plan).keys()
            if now >= since + patience_s:
                found |= set(plan.roster) - said
        return found & self.via.keys()
