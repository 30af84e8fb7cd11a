"""Writes the tickets of a simulated peer to its disk, one after the other, as
peers/storage/wal_writer.py.

If a ticket fails, the tickets behind it fail too, since they build on missing data. Must NOT decide
what a full or a slow disk means: the core does.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from protocols.interface import commands as c
from protocols.interface import events as v

if TYPE_CHECKING:
    from sims.node.node import Node


class WalWriter:
    """The WAL writer of one incarnation of one peer."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.tickets = deque[c.Persist]()
        """Tickets not on the disk yet; the disk is writing the first one."""
        self._failures = 0
        """Number of failures, as the core counts them once it knows of the last one."""

    def write(self, persist: c.Persist) -> None:
        self.tickets.append(persist)
        if len(self.tickets) == 1:
            self._begin()

    def _begin(self) -> None:
        node = self._node
        void = self.tickets[0].failures < self._failures
        node.after(0.0 if void else node.world.sync_s(node.disk), self._end)

    def _end(self) -> None:
        node, persist = self._node, self.tickets.popleft()
        if persist.failures < self._failures or node.world.now < node.disk.full_until:
            self._failures = max(self._failures, persist.failures + 1)
            node.give(v.PersistFailed(persist.ticket, "no space left"))
        else:
            node.disk.write(persist)
            node.give(v.Persisted(persist.ticket))
        if self.tickets:
            self._begin()

    def killed(self, *, synced: bool) -> None:
        """End the process. `synced`: the ticket that the disk is writing is completed."""
        node = self._node
        persist = self.tickets[0] if self.tickets else None
        takes = persist is not None and persist.failures >= self._failures
        if synced and persist is not None and takes and node.world.now >= node.disk.full_until:
            node.disk.write(persist)
