"""I4: a peer that waits says whom or what it waits for, in words for people.

A name of a peer, an address, or a cause on its own node. Must NOT judge how long it may wait
(progress.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from protocols.peer.wait_reason import Wait, describe

if TYPE_CHECKING:
    from protocols.types.ids import PeerId
    from sims.node.node import Node

LONG_S = 5.0
"""A person looks after so long."""
LOOK_S = 1.0
ITS_OWN = ("its ranks", "this node", "peers_min", "no member is left")
"""Causes without a name: which peers will come to a run that is to begin is not known."""
OVER = ("finished", "stopping")


class Waits:
    """Of all peers."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._looked: dict[PeerId, float] = {}
        self._since: dict[PeerId, tuple[Wait, float]] = {}
        """What each waits for, and since when it has said just that."""

    def looks(self, node: Node) -> None:
        """Time passes for a peer."""
        now = node.world.now
        if now < self._looked.get(node.peer, 0.0) + LOOK_S:
            return
        self._looked[node.peer] = now
        wait, (said, since) = describe(node.core, now), self._since.get(node.peer, (None, now))
        if said is None or (said.phase, said.reason) != (wait.phase, wait.reason):
            self._since[node.peer] = wait, now
            return
        if wait.phase in OVER or now < max(since, wait.since, node.paused_until) + LONG_S:
            return
        everybody = (one.core.me for one in node.world.nodes.values())
        names = (text for me in everybody for text in (me.name, me.address) if text)
        if not any(known in wait.reason for known in (*ITS_OWN, *names)):
            self._found(f"{node.peer} has waited for long and names nobody: {wait}")
