"""Writes the core's Persist commands to the disk, in order, in a thread of its own.

The event loop goes on meanwhile: messages that depend on a write wait in the core. Must NOT decide
what a full disk means.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from peers.storage.wal import Wal, WalError
from protocols.interface import Persist, Persisted, PersistFailed

LOG_THREAD = "log"
"""Name of the thread, also for the tools of the kernel (`top -H`, /proc/PID/task/*/comm)."""


class WalWriter:
    """`run()` until `stop()`; all writes handed over before are on the disk by then."""

    def __init__(self, wal: Wal, feed: Callable[[Persisted | PersistFailed], None]) -> None:
        self._wal = wal
        self._feed = feed
        self._writes: asyncio.Queue[Persist | None] = asyncio.Queue()
        self._failures = 0
        """Failures, as the core counts them once it knows of the last one."""
        self._why = ""

    def write(self, persist: Persist) -> None:
        self._writes.put_nowait(persist)

    def stop(self) -> None:
        self._writes.put_nowait(None)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(
            1, thread_name_prefix=LOG_THREAD, initializer=_name_thread
        ) as thread:
            while (persist := await self._writes.get()) is not None:
                if persist.failures < self._failures:
                    # It builds on data that is not on the disk: the core hands it over again.
                    self._feed(PersistFailed(persist.write_number, self._why))
                    continue
                try:
                    await loop.run_in_executor(thread, self._wal.write, persist)
                except WalError as error:
                    self._failures, self._why = persist.failures + 1, str(error)
                    self._feed(PersistFailed(persist.write_number, self._why))
                else:
                    self._feed(Persisted(persist.write_number))


def _name_thread() -> None:
    """Python 3.11 names a thread for itself only."""
    with contextlib.suppress(OSError):  # Not on Linux.
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(LOG_THREAD)
