"""Finds ranks that make no step for much longer than their steps take.

A stall is no fault: other peers do not wait for the node until its ranks step again. Time is
counted in ticks, so that a node that was stopped as a whole has not stalled. Must NOT end an
attempt (`peers/ranks/attempt.py`), nor touch a process or a clock.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

TICK_S = 0.1
"""Seconds between two looks at the step counters."""
LEAST_S = 1.5
"""A rank has not stalled before; shorter pauses are usual on a busy machine."""
FACTOR = 4.0
"""A rank has stalled after this multiple of the longest of its last steps."""
STEPS_KEPT = 20
STEPS_KNOWN = 5
"""Steps before a rank is judged: the first ones may be compiled."""


@dataclass(slots=True)
class _Pace:
    step: int = 0
    ticks: int = 0
    """Ticks since the counter moved, or since the rank began to train."""
    durations: deque[int] = field(default_factory=lambda: deque[int](maxlen=STEPS_KEPT))
    """Ticks of the last steps."""


class StallWatch:
    """The paces of all ranks of one attempt; call `tick` every `tick_s` seconds."""

    def __init__(self, ranks: int, *, tick_s: float = TICK_S) -> None:
        self.stalled: dict[int, str] = {}
        """By rank that has stalled, what is known of it."""
        self._tick_s = tick_s
        self._paces = [_Pace() for _ in range(ranks)]

    def tick(self, steps: Sequence[int], trains: Collection[int]) -> None:
        """Compare the step counters with those of the last tick. `trains`: the ranks that have to
        make steps now."""
        for rank, (pace, step) in enumerate(zip(self._paces, steps, strict=True)):
            pace.ticks += 1
            moved, pace.step = step != pace.step, step
            if moved and rank in trains:
                pace.durations.append(pace.ticks)
            if moved or rank not in trains:
                pace.ticks = 0
                self.stalled.pop(rank, None)
            elif len(pace.durations) >= STEPS_KNOWN and rank not in self.stalled:
                self._judge(rank, pace)

    def _judge(self, rank: int, pace: _Pace) -> None:
        longest = max(pace.durations)
        if pace.ticks >= max(LEAST_S / self._tick_s, FACTOR * longest):
            self.stalled[rank] = (
                f"rank {rank} has made no step for {pace.ticks * self._tick_s:.1f} s (at step "
                f"{pace.step}; its last steps took at most {longest * self._tick_s:.1f} s)"
            )
