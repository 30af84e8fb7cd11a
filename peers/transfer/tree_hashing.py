"""A thread that hashes states for joiners while rounds go on.

It has a lower priority than all other threads of this process, so that no round waits for it. Must
NOT know what it hashes, nor keep it.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from blake3 import blake3

from peers.exchange.interfaces import Bytes
from peers.exchange.pieces import PIECE_ELEMENTS
from protocols.state import ELEMENT_BYTES

NICE = 10
"""The nice value of the thread; all others have 0."""
T = TypeVar("T")


def elements_of(state: Sequence[Bytes]) -> int:
    """Number of fp32 elements of consecutive buffers."""
    return sum(memoryview(buffer).nbytes for buffer in state) // ELEMENT_BYTES


def num_cells(state: Sequence[Bytes]) -> int:
    """Number of cells; the last one may be shorter."""
    return -(-elements_of(state) // PIECE_ELEMENTS)


def cell_of(state: Sequence[Bytes], number: int) -> memoryview:
    """A cell of a state, 1 MiB. It is a view, or a copy if it lies in two buffers."""
    first = number * PIECE_ELEMENTS * ELEMENT_BYTES
    last = first + PIECE_ELEMENTS * ELEMENT_BYTES
    found: list[memoryview] = []
    for buffer in state:
        view = memoryview(buffer).cast("B")
        if first < view.nbytes and last > 0:
            found.append(view[max(first, 0) : last])
        first, last = first - view.nbytes, last - view.nbytes
    return found[0] if len(found) == 1 else memoryview(b"".join(found))


def cells(state: Sequence[Bytes]) -> Iterator[memoryview]:
    """All cells, in order."""
    return (cell_of(state, number) for number in range(num_cells(state)))


def leaves_of(state: Sequence[Bytes], give_way: Callable[[], None] = lambda: None) -> bytes:
    """The BLAKE3 digests of all cells, concatenated. `give_way`: called before each cell."""
    found: list[bytes] = []
    for cell in cells(state):
        give_way()
        found.append(digest_of(cell))
    return b"".join(found)


def digest_of(cell: Bytes) -> bytes:
    """A leaf of a state's tree: 32 bytes of BLAKE3, as hard to forge as SHA-256 in a quarter of the
    time."""
    return blake3(cell).digest()


class EndedError(Exception):
    """Ends the present hashing when its thread is closed; it is not reported."""


class TreeHashing:
    """One thread, from the first use until `close`."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run `work` in the thread, in order; then `done` in the event loop, unless closed by then.
        Long work calls `go_on` before each cell."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "hash", initializer=_be_nice)
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        future.add_done_callback(partial(self._done, done=done))

    def _done(self, future: "asyncio.Future[T]", *, done: Callable[[T], None]) -> None:
        if future.cancelled() or isinstance(future.exception(), EndedError):
            return
        if self._thread is not None:
            done(future.result())

    def go_on(self) -> None:
        """Called in the thread. Raises EndedError once this object is closed."""
        if self._thread is None:
            raise EndedError

    def close(self) -> None:
        """End the present hashing after its present cell, without a report."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=True, cancel_futures=True)


def _be_nice() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
