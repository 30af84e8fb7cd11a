"""Messages wait until the writes that they depend on are on the disk (protocol.md section 1).

Changes collect until the shell gets them in one Persist, with a number. A message that depends on
them is sent when the write is confirmed. Must NOT know what a message promises.
"""

from dataclasses import dataclass, field

from protocols.interface.commands import Command, Persist, Send
from protocols.messages.peer import Control
from protocols.messages.persisted import Snapshot
from protocols.raft.log import Log
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId

RETRY_S = 2.0
"""Seconds until a failed disk is tried again."""
HANG_MIN_S, HANG_MAX_S = 0.8, 3.0
"""Seconds, at least and at most, after which the disk counts as failing if a write has not returned:
other peers learn of it within a second, and go on."""
HANG_TIMES = 4.0
"""In between, so many times the longest write lately: a disk that is often slow is not given up each
time."""
FADES = 0.98
"""Factor by which each further write lowers that longest time: 34 writes halve it."""
PAUSE_S = 0.25
"""Seconds. If this peer wakes so much later than it has to, the whole process stood still, and says
nothing about the disk."""


@dataclass(slots=True)
class _Write:
    """A write under way."""

    first: int
    """Its lowest changed index."""
    end: int
    """Index up to which the disk equals our log after it."""
    since: float
    """When the disk got it, or had done the write before."""


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
    _under_way: dict[int, _Write] = field(default_factory=dict[int, _Write])
    """By number of a write, the oldest one first."""
    _slowest_s: float = 0.0
    """Seconds of the longest write lately."""
    waiting: list[tuple[int, Send]] = field(default_factory=list[tuple[int, Send]])
    """(number of the write that must be on the disk, message)."""

    @property
    def works(self) -> bool:
        return not self.why

    @property
    def deadline(self) -> float:
        """When a failed disk is tried again, or the oldest write under way counts as hanging."""
        if self.why or not self._under_way:
            return self.retry_at
        return self._oldest.since + self._patience_s

    def vote_changed(self) -> None:
        self._votes_changed = True

    def log_changed(self, index: int) -> None:
        """The log has changed from this index on: writes under way are ours only up to the index
        before."""
        self._first = index if self._first is None else min(self._first, index)
        for write in self._under_way.values():
            if write.end >= index:
                write.end = index - 1

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
        if not self._is_dirty or self.retry_at < NEVER or (self.why and self._under_way):
            return None
        self.write_number += 1
        first = log.last_index + 1 if self._first is None else self._first
        first = max(first, log.base + 1, self._covered + 1)
        entries = tuple(log.since(first))
        persist = Persist(
            self.write_number, term, vote, first, entries, self._snapshot, self.failures
        )
        self._under_way[self.write_number] = _Write(first, log.last_index, now)
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

    def persisted(self, write_number: int, now: float) -> int | None:
        """All writes up to this number are on the disk. Returns the durable log index; None if it
        is not new.

        A disk that failed works again with a write that returns in time. If the last one did not,
        term and vote are written once more to find out.
        """
        self.safe = write_number
        done = [number for number in self._under_way if number <= write_number]
        if not done:
            return None
        took_s = now - self._oldest.since
        end = [self._under_way.pop(number).end for number in done][-1]
        if self._under_way:
            self._oldest.since = max(self._oldest.since, now)
        in_time = took_s < self._patience_s
        if self.why or in_time:  # Else this process stood still: `hangs` was not asked.
            self._slowest_s = max(took_s, FADES * self._slowest_s)
        if in_time:
            self.why = ""
        elif self.why and not self._under_way:
            self._votes_changed = True
        return end

    def hangs(self, now: float) -> bool:
        """Whether the disk counts as failing from now on, since a write has not returned. The write
        stays under way, and messages that wait for it stay valid."""
        if self.why or not self._under_way or now < (due := self.deadline):
            return False
        if now >= due + PAUSE_S:
            self._oldest.since = now  # The write gets its whole time again.
            return False
        self.why = (
            f"a write to this node's log has not returned for {now - self._oldest.since:.1f} s: the "
            "disk of its directory hangs, or is too slow"
        )
        return True

    def is_under_way(self, write_number: int) -> bool:
        return write_number in self._under_way

    def failed(self, why: str, now: float, *, durable: int, snapshot: Snapshot | None) -> None:
        """The disk refused all writes under way; they are handed over again later.

        `durable`: index up to which our log is on the disk. `snapshot`: the newest one, if any.
        """
        self.why, self.retry_at = why, now + RETRY_S
        self.failures += 1
        self.log_changed(min((x.first for x in self._under_way.values()), default=durable + 1))
        self._votes_changed = True
        self._snapshot = self._snapshot or snapshot
        self._under_way.clear()
        self.waiting.clear()

    def retry(self, now: float) -> None:
        """Try the failed disk again if it is time."""
        if now >= self.retry_at:
            self.retry_at = NEVER

    @property
    def _oldest(self) -> _Write:
        return next(iter(self._under_way.values()))

    @property
    def _patience_s(self) -> float:
        """Seconds that a write may take."""
        return min(max(HANG_MIN_S, HANG_TIMES * self._slowest_s), HANG_MAX_S)

    @property
    def _is_dirty(self) -> bool:
        return self._votes_changed or self._first is not None or self._snapshot is not None
