"""A thread that hashes states for those who join, while rounds go on.

It runs at a lower priority than everything else of this process: a round never waits for it. Must
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
from protocols.state.parts import ELEMENT_BYTES

NICE = 10
"""Of the thread: less than everybody's 0."""
T = TypeVar("T")


def elements_of(state: Sequence[Bytes]) -> int:
    """Of buffers that lie side by side."""
    return sum(memoryview(buffer).nbytes for buffer in state) // ELEMENT_BYTES


def num_cells(state: Sequence[Bytes]) -> int:
    """The last one may be shorter."""
    return -(-elements_of(state) // PIECE_ELEMENTS)


def cell_of(state: Sequence[Bytes], number: int) -> memoryview:
    """Of a state, as it travels: 1 MiB. It is copied where it lies in two buffers, and else memory
    of one."""
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
    """All of them."""
    return (cell_of(state, number) for number in range(num_cells(state)))


def leaves_of(state: Sequence[Bytes], give_way: Callable[[], None] = lambda: None) -> bytes:
    """The BLAKE3 of each cell, one after the other. `give_way`: before each, to what matters
    more."""
    found: list[bytes] = []
    for cell in cells(state):
        give_way()
        found.append(digest_of(cell))
    return b"".join(found)


def digest_of(cell: Bytes) -> bytes:
    """A leaf of a state's tree, 32 bytes: BLAKE3, which is as hard to forge as SHA-256 and takes a
    quarter of its time."""
    return blake3(cell).digest()


class EndedError(Exception):
    """Of what was being hashed when its thread was closed. Nobody hears of it."""


class Hashing:
    """One thread, from the first use until `close`."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """`work` in the thread, in order; `done` in the loop, unless this is closed by then. What
        takes longer than a cell calls `go_on` before each."""
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
        """In the thread. Raises EndedError once this is closed."""
        if self._thread is None:
            raise EndedError

    def close(self) -> None:
        """What is being hashed is ended, with the cell that it is at, and nobody hears of it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=True, cancel_futures=True)


def _be_nice() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
