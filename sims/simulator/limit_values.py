"""Worlds in which values stand at their limits; and what must hold of each disk, in every world.

In some seeds names, addresses, the run's own entry, reasons and contributions are as large as they
may be, and reasons larger and with line breaks, as texts of exceptions are: these are cut where
they enter. Must NOT know how nodes work.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from protocols.interface import events as v
from protocols.links.handshake import Identity
from protocols.messages import log_entries as e
from protocols.types.errors import LogError
from protocols.types.ids import PeerId
from protocols.types.limits import (
    CONTRIBUTION_TOKENS_MAX,
    JSON_MAX,
    LAYOUT_BYTES_MAX,
    NAME_MAX,
    TEXT_MAX,
)
from protocols.wire import codec
from protocols.wire.validators import WireError

if TYPE_CHECKING:
    from sims.simulator.world import World

EXTREME_EVERY, EXTREME_IN = 15, (7, 11)
"""Of so many seeds, in these values stand at their limits."""
REASON = "cannot write /" + "d" * TEXT_MAX + ":\n\x1bno room"
"""Beyond what travels: it is cut, and its line breaks go."""
LAYOUT, RUN_JSON = bytes(LAYOUT_BYTES_MAX), "x" * JSON_MAX

Explained = v.LeaveRequested | v.TrainersLost | v.PersistFailed | v.PeerDisconnected


class Extremes:
    """Of one world; `on`: in this one values stand at their limits."""

    def __init__(self, happened: Counter[str], *, on: bool) -> None:
        self._happened = happened
        self._on = on

    def named(self, me: Identity) -> Identity:
        """The same peer under names that no message could have longer."""
        if not self._on:
            return me
        digits = me.peer.rpartition(".")[2]
        name = me.name.ljust(NAME_MAX - len(digits) - 1, "-")
        address = me.address.rjust(NAME_MAX, "h")
        self._happened["limit"] += 3
        return replace(me, peer=PeerId(f"{name}.{digits}"), name=name, address=address)

    def run(self, run: e.Run) -> e.Run:
        """What its peers agree on, with the largest layout and the longest configuration."""
        if not self._on:
            return run
        self._happened["limit"] += 2
        return replace(run, run_json=RUN_JSON, layout=LAYOUT)

    def event(self, event: v.Event) -> v.Event:
        """As the shell may say it."""
        if not self._on:
            return event
        if isinstance(event, Explained):
            self._happened["limit"] += 1
            return replace(event, why=REASON)
        if isinstance(event, v.ContributionReady):
            self._happened["limit"] += 1
            return replace(event, tokens=CONTRIBUTION_TOKENS_MAX)
        return event

    def check(self, world: World) -> None:
        """At the end: each entry and each snapshot on a disk can be read (I6), and no log takes
        an entry that could not."""
        known: set[int] = set()
        for peer, disk in world.disks.items():
            saved = disk.saved
            if saved is None:
                continue
            try:
                for entry in saved.entries:
                    if id(entry) not in known:  # The same object on most disks: they keep it alive.
                        known.add(id(entry))
                        codec.readable_bytes(entry)
                if saved.snapshot is not None:
                    codec.decode_image(saved.snapshot.image)
            except (LogError, WireError) as error:
                world.checkers.found(f"{peer} cannot read its disk: {error}")
        if self._on:
            self._refuses(world)

    def _refuses(self, world: World) -> None:
        """Values beyond a limit: nothing else changes."""
        for node in world.nodes.values():
            log = node.core.raft.log
            last = log.last_index
            for body in (e.Left(node.peer, REASON), e.Elected(PeerId("x" * (NAME_MAX + 1)))):
                try:
                    log.append(body, term=node.core.raft.term)
                except LogError:
                    self._happened["beyond a limit"] += 1
            if log.last_index != last:
                world.checkers.found(f"the log of {node.peer} took what nobody could read")
