"""A thread that hashes states for those who join, while rounds go on.

It runs at a lower priority than everything else of this process: a round never waits for it. Must
NOT know what it hashes, nor keep it.
"""

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from peers.pieces import spans
from peers.work import Bytes
from protocols.reduction import ELEMENT_BYTES

NICE = 10
"""Of the thread: less than everybody's 0."""
T = TypeVar("T")


def cells(state: Bytes) -> Iterator[memoryview]:
    """Of a state, as they travel: 1 MiB each, the last one may be shorter."""
    view = memoryview(state).cast("B")
    for start, stop in spans(view.nbytes // ELEMENT_BYTES):
        yield view[ELEMENT_BYTES * start : ELEMENT_BYTES * stop]


def leaves_of(state: Bytes) -> bytes:
    """The SHA-256 of each cell, one after the other."""
    return b"".join(digest_of(cell) for cell in cells(state))


def digest_of(cell: Bytes) -> bytes:
    """A leaf of a state's tree."""
    return hashlib.sha256(cell).digest()


class Hashing:
    """One thread, from the first use until `close`."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """`work` in the thread, in order; `done` in the loop, unless this is closed by then."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "hash", initializer=_be_nice)
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        future.add_done_callback(partial(self._done, done=done))

    def _done(self, future: "asyncio.Future[T]", *, done: Callable[[T], None]) -> None:
        if self._thread is not None and not future.cancelled():
            done(future.result())

    def close(self) -> None:
        """What is being hashed is ended, and nobody hears of it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=True, cancel_futures=True)


def _be_nice() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
