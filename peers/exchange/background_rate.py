"""How much of a state may leave this node while a round is under way.

While contributions or results move, in or out, cells get a share of their bytes; when they have
been still for a moment, cells go as fast as they can. Hashing waits for that moment. Must NOT send,
nor know to whom.
"""

import asyncio
import time
from collections.abc import Callable

SHARE = 1 / 8
"""Of the bytes of payload. A round on a line that both fill takes an eighth longer."""
QUIET_S = 0.02
"""No payload for so long: a few round trips of a LAN, and hardly a cell's time on a slow line."""
CREDIT_BYTES_MAX = 4 << 20
"""What was not used is not saved up for a burst."""
BUSY_BYTES = 64 << 10
"""Of payload within QUIET_S: what keeps a core busy. Steps of some KiB do not, and never end."""
GIVE_WAY_S_MAX = 1.0
"""So long a state's hashing waits for rounds in all. One that takes longer has a line to wait for,
and leaves a core for it."""


class Pace:
    """Of one node."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake`: cells may be sent again."""
        self._wake = wake
        self._credit_bytes = 0.0
        self._last = float("-inf")
        """When payload moved last."""
        self._busy = float("-inf")
        """When so much did that it takes a core."""
        self._since, self._moved_bytes = float("-inf"), 0
        """What moved since when, at most QUIET_S ago."""
        self._timer: asyncio.TimerHandle | None = None

    def moved(self, size_bytes: int) -> None:
        """So much payload begins to move."""
        now = self._last = asyncio.get_running_loop().time()
        if now >= self._since + QUIET_S:
            self._since, self._moved_bytes = now, 0
        self._moved_bytes += size_bytes
        if self._moved_bytes >= BUSY_BYTES:
            self._busy = now
        self._credit_bytes = min(self._credit_bytes + SHARE * size_bytes, CREDIT_BYTES_MAX)

    def may_send(self, size_bytes: int) -> bool:
        """A cell of this size, now; if not, `wake` comes when it may be so."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._last + QUIET_S:
            return True
        if self._credit_bytes >= size_bytes:
            self._credit_bytes -= size_bytes
            return True
        if self._timer is None:
            self._timer = loop.call_later(QUIET_S, self._look)
        return False

    def giving_way(self) -> Callable[[], None]:
        """For one state's hashing, in a thread of its own: wait while rounds need the cores."""
        left_s = GIVE_WAY_S_MAX

        def give_way() -> None:
            nonlocal left_s
            while left_s > 0 and (wait_s := self._busy + QUIET_S - time.monotonic()) > 0:
                time.sleep(wait_s)
                left_s -= wait_s

        return give_way

    def _look(self) -> None:
        self._timer = None
        self._wake()

    def close(self) -> None:
        """Wake nobody any more, and let nobody wait."""
        self._last = self._busy = float("-inf")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
