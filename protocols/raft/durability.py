"""What has to be on the disk before it may be promised to anybody (protocol.md section 1).

Changes collect until the shell gets them in one Persist with a ticket; messages that depend on
them wait for the ticket. Must NOT know what is promised.
"""

from dataclasses import dataclass, field

from protocols.interface.commands import Command, Persist, Send
from protocols.messages.peer import Control
from protocols.messages.persisted import Snapshot
from protocols.raft.log import Log
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId

RETRY_S = 2.0
"""A full disk is tried again after this time."""


@dataclass(slots=True)
class Promises:
    """Of one peer. While its disk does not work it promises nothing: whoever waits asks again."""

    ticket: int = 0
    """The last one given out."""
    safe: int = 0
    """The last one that is on the disk."""
    why: str = ""
    """Why the disk takes nothing; "" if it does."""
    retry_at: float = NEVER
    failures: int = 0
    _mute_until: int = 0
    """Nobody hears anything of us before this ticket is safe."""
    _votes_changed: bool = False
    """Term or vote, since the last ticket."""
    _first: int | None = None
    """The lowest log index that changed since then."""
    _snapshot: Snapshot | None = None
    _covered: int = 0
    """The newest one has every entry up to here: on the disk it takes their place."""
    _under_way: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    """By ticket: its lowest changed index, and up to where the log on the disk is ours with it."""
    waiting: list[tuple[int, Send]] = field(default_factory=list[tuple[int, Send]])
    """(the ticket that it needs, the message)."""

    @property
    def works(self) -> bool:
        return not self.why

    def vote_changed(self) -> None:
        self._votes_changed = True

    def log_changed(self, index: int) -> None:
        """From this index on: of what is under way to the disk, our log has no more than before."""
        self._first = index if self._first is None else min(self._first, index)
        for ticket, (first, end) in self._under_way.items():
            if end >= index:
                self._under_way[ticket] = first, index - 1

    def snapshot_taken(self, snapshot: Snapshot) -> None:
        self._snapshot, self._covered = snapshot, snapshot.index

    def promise(self, peer: PeerId, message: Control) -> None:
        """To be sent once everything that we know now is on the disk."""
        if self.works:
            self.waiting.append((self.ticket + self._is_dirty, Send(peer, message)))

    def mute(self) -> None:
        """We lead. If that took no vote but our own, a crash may make us lead the same term once
        more, with other entries: nobody hears of any before that vote is on the disk."""
        self._mute_until = self.ticket + self._is_dirty

    @property
    def is_mute(self) -> bool:
        return self.safe < self._mute_until

    def release(self, commands: list[Command], persist: Persist | None) -> list[Command]:
        """What the shell may have now, in order, and promises that can be made."""
        if not (commands or persist or self.waiting):
            return []  # As mostly.
        if self.is_mute:
            sends = [command for command in commands if isinstance(command, Send)]
            self.waiting += [(self._mute_until, send) for send in sends]
            commands = [command for command in commands if not isinstance(command, Send)]
        return [*commands, *([persist] if persist is not None else ()), *self.kept()]

    def collect(self, term: int, vote: str, log: Log) -> Persist | None:
        """What the shell shall write now, if there is anything."""
        if not self._is_dirty or self.retry_at < NEVER:
            return None
        self.ticket += 1
        first = log.last_index + 1 if self._first is None else self._first
        first = max(first, log.base + 1, self._covered + 1)
        entries = tuple(log.since(first))
        persist = Persist(self.ticket, term, vote, first, entries, self._snapshot, self.failures)
        self._under_way[self.ticket] = first, log.last_index
        self._votes_changed, self._first, self._snapshot = False, None, None
        return persist

    def kept(self) -> list[Send]:
        """Promises that can be made now."""
        if not self.waiting:
            return []
        ready = [send for needed, send in self.waiting if needed <= self.safe]
        if ready:
            self.waiting = [(n, send) for n, send in self.waiting if n > self.safe]
        return ready

    def persisted(self, ticket: int) -> int | None:
        """Everything up to this ticket is safe: up to which log index? None: nothing is new."""
        self.safe, self.why = ticket, ""
        ends = [self._under_way.pop(t)[1] for t in [t for t in self._under_way if t <= ticket]]
        return ends[-1] if ends else None

    def is_under_way(self, ticket: int) -> bool:
        return ticket in self._under_way

    def failed(self, why: str, now: float, *, durable: int, snapshot: Snapshot | None) -> None:
        """The disk took nothing of what is under way; it is handed over again later.

        `durable`: our log is safe up to here. `snapshot`: the newest one, if there is any.
        """
        self.why, self.retry_at = why, now + RETRY_S
        self.failures += 1
        self.log_changed(min((first for first, _ in self._under_way.values()), default=durable + 1))
        self._votes_changed = True
        self._snapshot = self._snapshot or snapshot
        self._under_way.clear()
        self.waiting.clear()

    def retry(self, now: float) -> None:
        """Perhaps there is room again."""
        if now >= self.retry_at:
            self.retry_at = NEVER

    @property
    def _is_dirty(self) -> bool:
        return self._votes_changed or self._first is not None or self._snapshot is not None
