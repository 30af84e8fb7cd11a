"""The writes that a disk has not confirmed yet, and how long it may take for one.

Must NOT know what is written, nor decide what a write that takes too long means (durability.py).
"""

from dataclasses import dataclass, field

from protocols.types.clock import NEVER

HANG_MIN_S, HANG_MAX_S = 0.8, 1.6
"""Seconds, at least and at most, after which a write without an answer means that the disk fails:
other peers learn of it within a second if the disk was quick before, and commit within two."""
HANG_TIMES = 4.0
"""In between, so many times the longest write lately: a disk that is slow at times is not given up
each time."""
FADES = 0.98
"""Factor by which each further write lowers that longest time: 34 writes halve it."""


@dataclass(slots=True)
class Write:
    """A write under way."""

    first: int
    """Its lowest changed log index."""
    end: int
    """Index up to which the disk equals our log after it."""
    since: float
    """When the disk got it, or had done the write before."""


@dataclass(slots=True)
class Writes:
    """The writes under way, the oldest one first."""

    _writes: dict[int, Write] = field(default_factory=dict[int, Write])
    """By number."""
    durable_index: int = 0
    """Index up to which our log is on the disk."""
    _slowest_s: float = 0.0
    """Seconds of the longest write lately."""

    def __contains__(self, number: int) -> bool:
        return number in self._writes

    def __bool__(self) -> bool:
        return bool(self._writes)

    def reached(self, number: int) -> bool:
        """Is there a write with this number or a lower one?"""
        return any(each <= number for each in self._writes)

    def begin_write(self, number: int, first: int, end: int, now: float) -> None:
        self._writes[number] = Write(first, end, now)

    def log_changed(self, index: int) -> None:
        """The log has changed from this index on."""
        self.durable_index = min(self.durable_index, index - 1)
        for write in self._writes.values():
            if write.end >= index:
                write.end = index - 1

    def done(self, number: int, now: float) -> float:
        """All writes up to this number are done; there is at least one. Returns the seconds that
        this took."""
        took_s = self.waited_s(now)
        ends = [self._writes.pop(each).end for each in list(self._writes) if each <= number]
        self.durable_index = ends[-1]
        if self._writes:
            self.restart(now)
        return took_s

    def took(self, seconds: float) -> None:
        """The disk took so long for a write."""
        self._slowest_s = max(seconds, FADES * self._slowest_s)

    def restart(self, now: float) -> None:
        """The oldest write has its whole time from now on."""
        self._oldest.since = max(self._oldest.since, now)

    def clear(self) -> None:
        self._writes.clear()

    @property
    def first(self) -> int:
        """The lowest log index that a write under way changes, or that the disk lacks."""
        missing = self.durable_index + 1
        return min((write.first for write in self._writes.values()), default=missing)

    def waited_s(self, now: float) -> float:
        """Seconds since the disk began with the oldest write."""
        return now - self._oldest.since

    @property
    def due(self) -> float:
        """When the oldest write must be done; NEVER if there is none."""
        return self._oldest.since + self.patience_s if self._writes else NEVER

    @property
    def patience_s(self) -> float:
        """Seconds that a write may take."""
        return min(max(HANG_MIN_S, HANG_TIMES * self._slowest_s), HANG_MAX_S)

    @property
    def _oldest(self) -> Write:
        return next(iter(self._writes.values()))
