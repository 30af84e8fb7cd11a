"""A byte pump: joins two connections of this machine into one, for two peers that cannot reach each
other.

Bytes from one end go to the other unchanged; they are encrypted between the two ends. Must NOT look
at a byte, nor keep more than one buffer for each direction: an end that reads nothing stops the
other one.
"""

import asyncio
import socket
from collections.abc import Callable

from peers.sockets.options import tune

BUFFER_BYTES = 256 << 10
"""Bytes that are read at once, and kept at most, for each direction."""
TURN_BYTES_MAX = 1 << 20
"""Bytes of one direction before other tasks have their turn."""


class BytePump:
    """One pair of joined connections: `start`, then `close`."""

    def __init__(
        self,
        one: socket.socket,
        other: socket.socket,
        *,
        moved: Callable[[bool, int], None],
        ended: Callable[["BytePump"], None],
    ) -> None:
        """This object owns the sockets from now on. `moved(forth, bytes)`: `forth` is from `one` to
        `other`. `ended` is called once, whatever the cause. Neither may raise."""
        self.is_open = True
        self._ended = ended
        self._ends = one, other
        self._ways = (
            _Way(one, other, lambda count: moved(True, count), self.close),
            _Way(other, one, lambda count: moved(False, count), self.close),
        )
        for end in self._ends:
            tune(end, bulk=True)

    def start(self) -> None:
        for way in self._ways:
            way.read()

    def close(self) -> None:
        """Close both connections; bytes that the kernel has are still sent. Idempotent."""
        if not self.is_open:
            return
        self.is_open = False
        for way in self._ways:
            way.halt()
        for end in self._ends:
            end.close()
        self._ended(self)


class _Way:
    """One direction."""

    def __init__(
        self,
        source: socket.socket,
        sink: socket.socket,
        moved: Callable[[int], None],
        over: Callable[[], None],
    ) -> None:
        self._source = source
        self._sink = sink
        self._moved = moved
        self._over = over
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._left = self._buffer[:0]
        """Bytes that the sink has not taken yet; until it has, nothing more is read."""
        self._stopped = False

    def read(self) -> None:
        self._loop.add_reader(self._source, self._pump)

    def halt(self) -> None:
        self._stopped = True
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._sink)

    def _pump(self) -> None:
        budget = TURN_BYTES_MAX
        try:
            while budget > 0 and not self._stopped:
                count = self._source.recv_into(self._buffer)
                if not count:
                    self._over()
                    return
                budget -= count
                self._left = self._buffer[:count]
                if not self._send():
                    self._loop.remove_reader(self._source)
                    self._loop.add_writer(self._sink, self._drain)
                    return
        except BlockingIOError:
            return
        except OSError:
            self._over()

    def _drain(self) -> None:
        try:
            done = self._send()
        except OSError:
            self._over()
            return
        if done:
            self._loop.remove_writer(self._sink)
            self.read()

    def _send(self) -> bool:
        """Send the rest; False if the sink takes no more for now. Raises OSError."""
        while self._left:
            try:
                count = self._sink.send(self._left)
            except BlockingIOError:
                return False
            self._moved(count)
            self._left = self._left[count:]
        return True
