"""The relay of the log: a voter passes the log to its learners, and their reports to the leader.

A relay passes on committed entries and collects reports. Nothing depends on it: the leader finds
out if a learner lacks entries, and serves it directly. Must NOT change which leader a peer follows,
nor plan the relays (leader/relay_plan.py).
"""

from dataclasses import dataclass, field

from protocols.interface.commands import Command, Send
from protocols.links.connections import Connections
from protocols.messages.peer import (
    Append,
    Control,
    Hold,
    PassedReports,
    Relay,
    Relayed,
    Report,
    Reported,
    Via,
    WaitsForPeers,
    WrongResult,
)
from protocols.messages.raft import Acknowledgement
from protocols.raft.node import Raft
from protocols.state.log_applier import LogApplier
from protocols.types.clock import NEVER
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import PeerId
from protocols.wire.codec import encode

RESEND = 32
"""Entries that are sent again on a new connection, since the last ones may be lost."""
PASSED_BYTES = 512 << 10
"""Bytes of reports in one message, before the last report is added."""
URGENT = (Hold, WaitsForPeers, WrongResult)
"""Reports that a commit or an attempt waits for. Other reports wait for one of these, or for a
heartbeat."""
URGENT_SHARE = 0.1
"""An urgent report waits for others for this share of a heartbeat interval."""


@dataclass(slots=True)
class LogRelay:
    """The relay state of one peer. It is void in another term, and on a new connection with the
    leader."""

    log_applier: LogApplier
    links: Connections
    share: dict[PeerId, int] = field(default_factory=dict[PeerId, int])
    """Our learners, with the index of the next entry for each."""
    via: PeerId | None = None
    """Our own relay, if we have one."""
    flush_at: float = NEVER
    _term: int = 0
    _pending: list[Report] = field(default_factory=list[Report])
    _pending_bytes: int = 0
    _urgent: set[PeerId] = field(default_factory=set[PeerId])
    """Learners with a pending urgent report."""

    # Events ---------------------------------------------------------------------------------

    def new_leader(self) -> None:
        """A new leader makes a plan of its own: the present one is void."""
        self.share.clear()
        self.via = None
        self._flushed()

    def handle_message(self, peer: PeerId, message: Control, now: float) -> None:
        """Handle a message of the leader, of our relay or of one of our learners; drop those of
        other peers."""
        if isinstance(message, Relay | Via):
            self._told(peer, message)
        elif isinstance(message, Relayed):
            if peer == self.via and self._current:
                self._read(peer, message)
        elif isinstance(message, Reported) and peer in self.share:
            self._collect(peer, message, now)

    def _read(self, relay: PeerId, message: Relayed) -> None:
        """Read entries that our relay passes on. Raises RemoteProtocolError, and has no relay any
        more, if they cannot be the leader's."""
        try:
            self.log_applier.relayed(relay, message)
        except RemoteProtocolError:
            self.via = None
            raise

    def _told(self, peer: PeerId, message: Relay | Via) -> None:
        """The part of the leader's plan that concerns this peer."""
        if peer != self.raft.leader or message.term != self.raft.term:
            return
        self._term = message.term
        if isinstance(message, Via):
            self.via = PeerId(message.relay) if message.relay else None
            return
        first, known = message.index + 1, self.share
        self.share = {peer: known.get(peer, first) for peer in message.learners}

    def connected(self, peer: PeerId) -> None:
        """A new connection: entries that were under way are lost."""
        if peer in self.share:
            self.share[peer] = max(1, self.share[peer] - RESEND)

    def _collect(self, peer: PeerId, message: Reported, now: float) -> None:
        """Collect a learner's report."""
        self._pending.append(Report(peer, self.links.peers[peer].incarnation, message))
        self._pending_bytes += len(encode(message))
        failure_detector = self.links.failure_detector
        interval_s = failure_detector.interval_s
        if isinstance(message, URGENT):
            self._urgent.add(peer)
            interval_s *= URGENT_SHARE
        self.flush_at = min(self.flush_at, now + interval_s)
        if len(self._urgent) >= len(self.share) or self._pending_bytes > PASSED_BYTES:
            self.flush_at = now

    def listener(self, leader: PeerId | None) -> PeerId | None:
        """The peer to which our reports for the leader are sent."""
        through = self._current and self.via in self.raft.up
        return self.via if leader is not None and through else leader

    @property
    def raft(self) -> Raft:
        return self.log_applier.raft

    # Actions --------------------------------------------------------------------------------

    def relay_entries(self, now: float, leader: PeerId | None) -> list[Command]:
        """Send committed entries to our learners, and their reports to the leader."""
        if not self._current:
            return []
        commands = self._forward() if self.share else []
        if leader is not None and now >= self.flush_at:
            commands.append(Send(leader, PassedReports(self.raft.term, tuple(self._pending))))
            self._flushed()
        return commands

    @property
    def deadline(self) -> float:
        if self.flush_at == NEVER:
            return NEVER  # The usual case; this is called after each event.
        return self.flush_at if self._current and self.raft.leader in self.raft.up else NEVER

    @property
    def _current(self) -> bool:
        state = self.raft.term_state
        return self._term == state.term and state.leader is not None and not state.leads

    def _forward(self) -> list[Command]:
        commands: list[Command] = []
        made: dict[int, Relayed | None] = {}
        """By first index: mostly the same message for all learners."""
        raft, end = self.raft, self.raft.commit_index
        if all(first > end for first in self.share.values()):
            return []
        held = raft.commitment.proof(end)
        if raft.proofs.required and not held:
            return []
        for learner, first in self.share.items():
            if first > end or learner not in self.raft.up:
                continue
            if first not in made:
                made[first] = self._piece(first, end, held)
            if (message := made[first]) is not None:
                commands.append(Send(learner, message))
            self.share[learner] = end + 1
        return commands

    def _piece(self, first: int, end: int, held: tuple[Acknowledgement, ...]) -> Relayed | None:
        """A message with the committed entries from `first` to `end`, and those after them that
        the longest acknowledgement is about; None if one message cannot carry them: the leader
        serves the learner."""
        raft, last = self.raft, max((end, *(each.index for each in held)))
        first = max(
            first, raft.log.base + 1
        )  # A learner that lacks earlier entries gets them from the leader.
        previous = first - 1
        term = raft.log.term_at(previous)
        assert term is not None, "we hold what is committed"
        entries = tuple(x for x in raft.log.after(previous) if x.index <= last)
        if previous + len(entries) < last:
            return None
        append = Append(raft.run, raft.term, previous, term, entries, end, held=held)
        return Relayed(append)

    def _flushed(self) -> None:
        self._pending.clear()
        self._urgent.clear()
        self._pending_bytes, self.flush_at = 0, NEVER
