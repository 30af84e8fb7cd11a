"""Messages wait until the writes that they depend on are on the disk (protocol.md section 1).

Changes collect until the shell gets them in one Persist, with a number. A message that depends on
them is sent when the write is confirmed. Must NOT know what a message promises.
"""

from dataclasses import dataclass, field

from protocols.interface.commands import Command, Persist, Send
from protocols.messages.peer import Control
from protocols.messages.persisted import Snapshot
from protocols.raft.log import Log
from protocols.raft.writes import Writes
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId

RETRY_S = 2.0
"""Seconds until a failed disk is tried again."""
PAUSE_S = 0.25
"""Seconds. If this peer wakes so much later than it has to, the whole process stood still, and says
nothing about the disk."""


@dataclass(slots=True)
class Durability:
    """Tickets and waiting messages of one peer. While its disk fails or hangs nothing is sent,
    and other peers ask again."""

    write_number: int = 0
    """The number of the last write that the shell got."""
    safe: int = 0
    """The number of the last write that is on the disk."""
    why: str = ""
    """Why the disk fails; "" if it works."""
    retry_at: float = NEVER
    failures: int = 0
    _mute_until: int = 0
    """Nothing at all is sent before the write of this number is on the disk."""
    _votes_changed: bool = False
    """Term or vote have changed since the last write."""
    _first: int | None = None
    """The lowest log index that has changed since the last write."""
    _snapshot: Snapshot | None = None
    _covered: int = 0
    """Index that the newest snapshot covers: on the disk it replaces the entries up to there."""
    _writes: Writes = field(default_factory=Writes)
    """Those that the shell got and has not confirmed."""
    waiting: list[tuple[int, Send]] = field(default_factory=list[tuple[int, Send]])
    """(number of the write that must be on the disk, message)."""

    @property
    def works(self) -> bool:
        return not self.why

    @property
    def deadline(self) -> float:
        """When a failed disk is tried again, or the oldest write under way counts as hanging."""
        return self.retry_at if self.why else self._writes.due

    @property
    def durable_index(self) -> int:
        """Index up to which our log is on the disk."""
        return self._writes.durable_index

    def loaded(self, index: int) -> None:
        """The log up to this index came from the disk."""
        self._writes.durable_index = index

    def vote_changed(self) -> None:
        self._votes_changed = True

    def log_changed(self, index: int) -> None:
        """The log has changed from this index on: writes under way are ours only up to the index
        before."""
        self._first = index if self._first is None else min(self._first, index)
        self._writes.log_changed(index)

    def snapshot_taken(self, snapshot: Snapshot) -> None:
        self._snapshot, self._covered = snapshot, snapshot.index

    def promise(self, peer: PeerId, message: Control) -> None:
        """Send the message once all changes up to now are on the disk."""
        if self.works:
            self.waiting.append((self.write_number + self._is_dirty, Send(peer, message)))

    def mute(self) -> None:
        """Send nothing before our own vote is on the disk. A leader elected by its own vote alone
        could lead the same term again after a crash, with other entries."""
        self._mute_until = self.write_number + self._is_dirty

    @property
    def is_mute(self) -> bool:
        return self.safe < self._mute_until

    def release(self, commands: list[Command], persist: Persist | None) -> list[Command]:
        """These commands, with the Persist in its place and the messages that may be sent now."""
        if not (commands or persist or self.waiting):
            return []  # The usual case.
        if self.is_mute:
            if self.works:
                sends = [command for command in commands if isinstance(command, Send)]
                self.waiting += [(self._mute_until, send) for send in sends]
            commands = [command for command in commands if not isinstance(command, Send)]
        return [*commands, *([persist] if persist is not None else ()), *self.kept()]

    def collect(self, term: int, vote: str, log: Log, now: float) -> Persist | None:
        """The Persist for all changes since the last one; None if there are none. A disk that fails
        gets one write at a time: behind a write that hangs, changes would pile up."""
        if not self._is_dirty or self.retry_at < NEVER or (self.why and self._writes):
            return None
        self.write_number += 1
        first = log.last_index + 1 if self._first is None else self._first
        first = max(first, log.base + 1, self._covered + 1)
        entries = tuple(log.since(first))
        persist = Persist(
            self.write_number, term, vote, first, entries, self._snapshot, self.failures
        )
        self._writes.begin_write(self.write_number, first, log.last_index, now)
        self._votes_changed, self._first, self._snapshot = False, None, None
        return persist

    def kept(self) -> list[Send]:
        """Waiting messages that may be sent now."""
        if not self.waiting:
            return []
        ready = [send for needed, send in self.waiting if needed <= self.safe]
        if ready:
            self.waiting = [(n, send) for n, send in self.waiting if n > self.safe]
        return ready

    def persisted(self, write_number: int, now: float) -> None:
        """All writes up to this number are on the disk.

        A disk that failed works again with a write that returns in time. If the last one did not,
        term and vote are written once more to find out.
        """
        self.safe = write_number
        if not self._writes.reached(write_number):
            return
        took_s = self._writes.done(write_number, now)
        in_time = took_s < self._writes.patience_s
        if self.why or in_time:  # Else this process stood still: `hangs` was not asked.
            self._writes.took(took_s)
        if in_time:
            self.why = ""
        elif self.why and not self._writes:
            self._votes_changed = True

    def hangs(self, now: float) -> bool:
        """Whether the disk counts as failing from now on, since a write has not returned. The write
        stays under way, and messages that wait for it stay valid."""
        due = self._writes.due
        if self.why or now < due:
            return False
        if now >= due + PAUSE_S:
            self._writes.restart(now)
            return False
        waited_s = self._writes.waited_s(now)
        self.why = (
            f"a write to this node's log has not returned for {waited_s:.1f} s: the disk of its "
            "directory hangs, or is too slow"
        )
        return True

    def is_under_way(self, write_number: int) -> bool:
        return write_number in self._writes

    def failed(self, why: str, now: float, *, snapshot: Snapshot | None) -> None:
        """The disk refused all writes under way; they are handed over again later. `snapshot`: the
        newest one, if any."""
        self.why, self.retry_at = why, now + RETRY_S
        self.failures += 1
        self.log_changed(self._writes.first)
        self._votes_changed = True
        self._snapshot = self._snapshot or snapshot
        self._writes.clear()
        self.waiting.clear()

    def retry(self, now: float) -> None:
        """Try the failed disk again if it is time."""
        if now >= self.retry_at:
            self.retry_at = NEVER

    @property
    def _is_dirty(self) -> bool:
        return self._votes_changed or self._first is not None or self._snapshot is not None
