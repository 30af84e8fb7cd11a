"""Writes what the core must not forget, in order, in a thread of its own.

The loop goes on meanwhile: what depends on a ticket waits in the core. Must NOT decide what a
full disk means.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from peers.storage.wal import Wal, WalError
from protocols.interface.commands import Persist
from protocols.interface.events import Persisted, PersistFailed


class Scribe:
    """`run()` until `stop()`; what was handed over before is written by then."""

    def __init__(self, wal: Wal, feed: Callable[[Persisted | PersistFailed], None]) -> None:
        self._wal = wal
        self._feed = feed
        self._tickets: asyncio.Queue[Persist | None] = asyncio.Queue()
        self._failures = 0
        """As the core counts them, once it has heard of the last one."""
        self._why = ""

    def write(self, persist: Persist) -> None:
        self._tickets.put_nowait(persist)

    def stop(self) -> None:
        self._tickets.put_nowait(None)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="log") as thread:
            while (persist := await self._tickets.get()) is not None:
                if persist.failures < self._failures:
                    # It builds on what is not on the disk: the core hands all of it over again.
                    self._feed(PersistFailed(persist.ticket, self._why))
                    continue
                try:
                    await loop.run_in_executor(thread, self._wal.write, persist)
                except WalError as error:
                    self._failures, self._why = persist.failures + 1, str(error)
                    self._feed(PersistFailed(persist.ticket, self._why))
                else:
                    self._feed(Persisted(persist.ticket))
