"""What a relay does for its learners, and how a learner speaks to the leader through one.

A relay passes on what it holds to be committed, and collects what its learners report. It answers
for nothing: what it does not do, the leader finds out and does itself. Must NOT make anybody follow
a leader, nor plan who relays for whom (leader/relay_plan.py).
"""

from dataclasses import dataclass, field

from protocols.interface.commands import Command, Send
from protocols.links.connections import Links
from protocols.messages.peer import (
    Append,
    Control,
    Hold,
    Passed,
    Relay,
    Relayed,
    Report,
    Reported,
    Via,
    Waiting,
)
from protocols.raft.node import Raft
from protocols.state.log_applier import Logbook
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId
from protocols.wire.codec import encode

RESEND = 32
"""Entries that are sent once more on a new connection: the last ones may be lost."""
PASSED_BYTES = 512 << 10
"""Of reports in one message, and less than as much again for the last one."""
URGENT = (Hold, Waiting)
"""A commit or an attempt waits for these; the others wait for them, or for a heartbeat."""
URGENT_SHARE = 0.1
"""Of a heartbeat interval: how long an urgent report waits for others."""


@dataclass(slots=True)
class Relaying:
    """Of one peer; all of it is void in another term, and on a new connection with the leader."""

    book: Logbook
    links: Links
    share: dict[PeerId, int] = field(default_factory=dict[PeerId, int])
    """Our learners, and which entry each gets next."""
    via: PeerId | None = None
    """Who relays for us."""
    flush_at: float = NEVER
    _term: int = 0
    _pending: list[Report] = field(default_factory=list[Report])
    _pending_bytes: int = 0
    _urgent: set[PeerId] = field(default_factory=set[PeerId])
    """Whose urgent reports are pending."""

    # What happens ---------------------------------------------------------------------------

    def new_leader(self) -> None:
        """It begins with a plan of its own."""
        self.share.clear()
        self.via = None
        self._flushed()

    def take(self, peer: PeerId, message: Control, now: float) -> None:
        """Of the leader, our relay or a learner of ours; anybody else's is dropped."""
        if isinstance(message, Relay | Via):
            self._told(peer, message)
        elif isinstance(message, Relayed):
            if peer == self.via and self._current:
                self.book.relayed(peer, message.append)
        elif isinstance(message, Reported) and peer in self.share:
            self._collect(peer, message, now)

    def _told(self, peer: PeerId, message: Relay | Via) -> None:
        """The leader's plan, as far as it concerns us."""
        if peer != self.raft.leader or message.term != self.raft.term:
            return
        self._term = message.term
        if isinstance(message, Via):
            self.via = PeerId(message.relay) if message.relay else None
            return
        first, known = message.index + 1, self.share
        self.share = {peer: known.get(peer, first) for peer in message.learners}

    def connected(self, peer: PeerId) -> None:
        """What was under way is lost."""
        if peer in self.share:
            self.share[peer] = max(1, self.share[peer] - RESEND)

    def _collect(self, peer: PeerId, message: Reported, now: float) -> None:
        """A learner reports something."""
        self._pending.append(Report(peer, self.links.peers[peer].incarnation, message))
        self._pending_bytes += len(encode(message))
        interval_s = self.raft.rules.heartbeat_interval_s
        if isinstance(message, URGENT):
            self._urgent.add(peer)
            interval_s *= URGENT_SHARE
        self.flush_at = min(self.flush_at, now + interval_s)
        if len(self._urgent) >= len(self.share) or self._pending_bytes > PASSED_BYTES:
            self.flush_at = now

    def listener(self, leader: PeerId | None) -> PeerId | None:
        """Who hears what we have to say to the leader."""
        through = self._current and self.via in self.raft.up
        return self.via if leader is not None and through else leader

    @property
    def raft(self) -> Raft:
        return self.book.raft

    # What we do -----------------------------------------------------------------------------

    def advance(self, now: float, leader: PeerId | None) -> list[Command]:
        """Bring our learners what is committed; bring the leader what they said."""
        if not self._current:
            return []
        commands = self._forward() if self.share else []
        if leader is not None and now >= self.flush_at:
            commands.append(Send(leader, Passed(self.raft.term, tuple(self._pending))))
            self._flushed()
        return commands

    @property
    def deadline(self) -> float:
        if self.flush_at == NEVER:
            return NEVER  # As mostly, and it is asked after each event.
        return self.flush_at if self._current and self.raft.leader in self.raft.up else NEVER

    @property
    def _current(self) -> bool:
        raft = self.raft
        return self._term == raft.term and raft.leader is not None and not raft.leads

    def _forward(self) -> list[Command]:
        commands: list[Command] = []
        made: dict[int, tuple[Relayed, int]] = {}
        """By first entry: mostly the same for all."""
        last = self.raft.commit_index
        for learner, first in self.share.items():
            while first <= last and learner in self.raft.up:
                if first not in made:
                    made[first] = self._piece(first, last)
                message, first = made[first]  # noqa: PLW2901 (the next one)
                commands.append(Send(learner, message))
            self.share[learner] = first
        return commands

    def _piece(self, first: int, last: int) -> tuple[Relayed, int]:
        """What is committed from an entry on, as much as one message holds; and what follows it."""
        raft = self.raft
        first = max(first, raft.log.base + 1)  # Who lacks more than we have asks the leader.
        previous = first - 1
        term = raft.log.term_at(previous)
        assert term is not None, "we hold what is committed"
        entries = tuple(x for x in raft.log.after(previous) if x.index <= last)
        append = Append(raft.run, raft.term, previous, term, entries, last)
        return Relayed(append), previous + len(entries) + 1

    def _flushed(self) -> None:
        self._pending.clear()
        self._urgent.clear()
        self._pending_bytes, self.flush_at = 0, NEVER
