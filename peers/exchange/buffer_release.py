"""When the memory of a round that is over is given back, with what the step left for then.

The ranks copy their result as soon as they have it, and go on with it in their hands: the cores and
the memory are theirs until then. Must NOT know what is done with a round.
"""

import asyncio
from collections import deque
from collections.abc import Callable

COPIED_BYTES_PER_S = 2e9
"""Slowly, for memory: ranks have copied what they got by then."""


class Releases:
    """Of one node, in the order in which they were put off."""

    def __init__(self, now: Callable[[int, int], None]) -> None:
        """`now`: give back the memory of this fragment's rounds up to this one."""
        self._now = now
        self._waiting: deque[tuple[int, int, asyncio.TimerHandle]] = deque()
        """(fragment, round, when)."""

    def put_off(self, fragment: int, round_: int, *, copied_bytes: int) -> None:
        """The ranks are told of this round now, and copy so many bytes."""
        delay_s = copied_bytes / COPIED_BYTES_PER_S
        due = asyncio.get_running_loop().call_later(delay_s, self.make, fragment)
        self._waiting.append((fragment, round_, due))

    def make(self, fragment: int | None = None) -> None:
        """Those of this fragment, or all of them: they wait no longer."""
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            at, round_, due = each
            if fragment in (None, at):
                due.cancel()
                self._now(at, round_)
            else:
                self._waiting.append(each)

    def close(self) -> None:
        """There is nobody left to give it back to."""
        while self._waiting:
            self._waiting.popleft()[2].cancel()
