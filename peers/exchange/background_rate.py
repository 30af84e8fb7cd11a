"""The rate at which cells of states may leave this node while rounds are under way.

While contributions or results move, cells get a share of their bytes; after a moment without them,
cells go as fast as they can. Hashing waits for such a moment. Must NOT send, nor know receivers.
"""

import asyncio
import time
from collections.abc import Callable

SHARE = 1 / 8
"""Bytes of cells for each byte of payload. On a full line a round takes an eighth longer."""
QUIET_S = 0.02
"""Seconds without payload: a few round trips of a LAN, and hardly the time of a cell on a slow
line."""
CREDIT_BYTES_MAX = 4 << 20
"""Bytes of unused share that are kept, so that no burst follows."""
BUSY_BYTES = 64 << 10
"""Bytes of payload within QUIET_S that keep a core busy. Steps of some KiB do not, and never
pause."""
GIVE_WAY_S_MAX = 1.0
"""Seconds that the hashing of a state waits for rounds in all. A longer round waits for a line, and
leaves a core free."""


class BackgroundRate:
    """The rate of one node."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake`: called when cells may be sent again."""
        self._wake = wake
        self._credit_bytes = 0.0
        self._last = float("-inf")
        """When payload moved last."""
        self._busy = float("-inf")
        """When so much payload moved that it keeps a core busy."""
        self._since, self._moved_bytes = float("-inf"), 0
        """Payload bytes since a time at most QUIET_S ago."""
        self._timer: asyncio.TimerHandle | None = None

    def moved(self, size_bytes: int) -> None:
        """So many bytes of payload begin to move."""
        now = self._last = asyncio.get_running_loop().time()
        if now >= self._since + QUIET_S:
            self._since, self._moved_bytes = now, 0
        self._moved_bytes += size_bytes
        if self._moved_bytes >= BUSY_BYTES:
            self._busy = now
        self._credit_bytes = min(self._credit_bytes + SHARE * size_bytes, CREDIT_BYTES_MAX)

    def may_send(self, size_bytes: int) -> bool:
        """May a cell of this size be sent now? If not, `wake` follows when it may."""
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
        """A function for the hashing thread of one state: it waits while rounds need the cores."""
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
        """Cancel wake-ups, and let waiting threads go on."""
        self._last = self._busy = float("-inf")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
