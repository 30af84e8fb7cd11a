"""Delays freeing a round's buffers, and the rest of its step, until the ranks have copied the
result.

The ranks copy their result as soon as they are told of it; until then they need the cores and the
memory bandwidth. Must NOT know what is done with a round.
"""

import asyncio
from collections import deque
from collections.abc import Callable

COPIED_BYTES_PER_S = 2e9
"""A low estimate, after which the ranks have copied the result."""


class BufferReleases:
    """The delayed releases of one node, in order."""

    def __init__(self, now: Callable[[int, int], None]) -> None:
        """`now(fragment, round)`: frees the buffers of this fragment's rounds up to this one."""
        self._now = now
        self._waiting: deque[tuple[int, int, asyncio.TimerHandle]] = deque()
        """(fragment, round, timer)."""

    def put_off(self, fragment: int, round_: int, *, copied_bytes: int) -> None:
        """The ranks are told of this round now, and copy so many bytes."""
        delay_s = copied_bytes / COPIED_BYTES_PER_S
        due = asyncio.get_running_loop().call_later(delay_s, self.make, fragment)
        self._waiting.append((fragment, round_, due))

    def make(self, fragment: int | None = None) -> None:
        """Make the releases of this fragment, or all, at once."""
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            at, round_, due = each
            if fragment in (None, at):
                due.cancel()
                self._now(at, round_)
            else:
                self._waiting.append(each)

    def close(self) -> None:
        """Cancel all releases: the run is over."""
        while self._waiting:
            self._waiting.popleft()[2].cancel()
