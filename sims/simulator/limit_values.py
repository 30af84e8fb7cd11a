"""Worlds with values at their limits; and a check of each disk, for all worlds.

In some seeds names, addresses, the run's own entry, reasons and contributions are as large as the
limits allow. Reasons are even larger and contain line breaks, as texts of exceptions do; the core
cuts them where they enter. Must NOT know how nodes work.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from protocols.interface import events as v
from protocols.links import Identity
from protocols.messages import log_entries as e
from protocols.types import (
    CONTRIBUTION_TOKENS_MAX,
    JSON_MAX,
    LAYOUT_BYTES_MAX,
    NAME_MAX,
    TEXT_MAX,
    LogError,
    PeerId,
)
from protocols.wire import WireError, codec
from sims.node.node import Node
from sims.node.world_view import WorldView

EXTREME_EVERY, EXTREME_IN = 15, (7, 11)
"""If seed % EXTREME_EVERY is in EXTREME_IN, values stand at their limits."""
REASON = "cannot write /" + "d" * TEXT_MAX + ":\n\x1bno room"
"""Longer than a message allows: the core cuts it, and removes its line breaks."""
LAYOUT, RUN_JSON = bytes(LAYOUT_BYTES_MAX), "x" * JSON_MAX

Explained = v.LeaveRequested | v.TrainersLost | v.PersistFailed | v.PeerDisconnected


class LimitValues:
    """Limit values of one world; `on`: this world has values at their limits."""

    def __init__(self, happened: Counter[str], *, on: bool) -> None:
        self._happened = happened
        self._on = on

    def named(self, me: Identity) -> Identity:
        """The same peer with the longest names that a message may carry."""
        if not self._on:
            return me
        digits = me.peer.rpartition(".")[2]
        name = me.name.ljust(NAME_MAX - len(digits) - 1, "-")
        address = me.address.rjust(NAME_MAX, "h")
        self._happened["limit"] += 3
        return replace(me, peer=PeerId(f"{name}.{digits}"), name=name, address=address)

    def largest_run(self, run: e.Run) -> e.Run:
        """The same run with the largest layout and the longest configuration."""
        if not self._on:
            return run
        self._happened["limit"] += 2
        return replace(run, run_json=RUN_JSON, layout=LAYOUT)

    def event(self, event: v.Event) -> v.Event:
        """The same event with values at their limits, as the shell may report it."""
        if not self._on:
            return event
        if isinstance(event, Explained):
            self._happened["limit"] += 1
            return replace(event, why=REASON)
        if isinstance(event, v.ContributionReady):
            self._happened["limit"] += 1
            return replace(event, tokens=CONTRIBUTION_TOKENS_MAX)
        return event

    def check(self, world: WorldView[Node]) -> None:
        """At the end of a world, check that each entry and each snapshot on a disk can be read
        (I6), and that no log accepts an entry that could not be read."""
        known: set[int] = set()
        for peer, node in world.nodes.items():
            saved = node.disk.saved
            if saved is None:
                continue
            try:
                for entry in saved.entries:
                    if id(entry) not in known:  # Most disks share one object, which stays alive.
                        known.add(id(entry))
                        codec.readable_bytes(entry)
                if saved.snapshot is not None:
                    codec.decode_image(saved.snapshot.image)
            except (LogError, WireError) as error:
                world.observer.found(f"{peer} cannot read its disk: {error}")
        if self._on:
            self._refuses(world)

    def _refuses(self, world: WorldView[Node]) -> None:
        """Check that values beyond a limit are refused and change nothing else."""
        for node in world.nodes.values():
            log = node.raft.log
            last = log.last_index
            for body in (e.Left(node.peer, REASON), e.Elected(PeerId("x" * (NAME_MAX + 1)))):
                try:
                    log.append(body, term=node.raft.term)
                except LogError:
                    self._happened["beyond a limit"] += 1
            if log.last_index != last:
                world.observer.found(
                    f"the log of {node.peer} accepted an entry that no peer can read"
                )
