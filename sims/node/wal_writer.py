"""Makes the writes of a simulated peer to its disk, one after the other, as
peers/storage/wal_writer.py.

If a write fails, the writes behind it fail too, since they build on missing data. Must NOT decide
what a disk that is full, slow or hangs means: the core does.
"""

from __future__ import annotations

from collections import deque

from protocols.interface import commands as c
from protocols.interface import events as v
from sims.node.node_view import NodeView


class SimulatedWalWriter:
    """The WAL writer of one incarnation of one peer."""

    def __init__(self, node: NodeView) -> None:
        self._node = node
        self.writes = deque[c.Persist]()
        """Tickets not on the disk yet; the disk is writing the first one."""
        self.began_at = 0.0
        """Virtual time at which the disk began with the first of these."""
        self._failures = 0
        """Number of failures, as the core counts them once it knows of the last one."""

    def write(self, persist: c.Persist) -> None:
        self.writes.append(persist)
        if len(self.writes) == 1:
            self._begin()

    def _begin(self) -> None:
        node = self._node
        void = self.writes[0].failures < self._failures
        self.began_at = node.now
        node.after(0.0 if void else node.world.sync_s(node.disk), self._end)

    def _end(self) -> None:
        node, persist = self._node, self.writes[0]
        if persist.failures >= self._failures and node.now < node.disk.hung_until:
            node.at_time(node.disk.hung_until, self._end)
            return
        self.writes.popleft()
        if persist.failures < self._failures or node.now < node.disk.full_until:
            self._failures = max(self._failures, persist.failures + 1)
            node.give(v.PersistFailed(persist.write_number, "no space left"))
        else:
            node.disk.write(persist)
            node.give(v.Persisted(persist.write_number))
        if self.writes:
            self._begin()

    def killed(self, *, synced: bool) -> None:
        """End the process. `synced`: the write under way is completed."""
        node = self._node
        persist = self.writes[0] if self.writes else None
        takes = persist is not None and persist.failures >= self._failures
        if synced and persist is not None and takes and node.now >= node.disk.full_until:
            node.disk.write(persist)
