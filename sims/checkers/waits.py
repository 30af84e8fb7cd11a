"""I4: a waiting peer names the peer or the cause that it waits for, in text for the user.

It is the name or the address of a peer, or a cause on its own node. Must NOT judge the length of a
wait (sims/sweep.py).
"""

from __future__ import annotations

from collections.abc import Callable

from protocols.peer import WaitReason, describe
from protocols.types import PeerId
from sims.node.node import Node

LONG_S = 5.0
"""Seconds of the same wait after which its text is checked."""
LOOK_S = 1.0
ITS_OWN = ("its ranks", "this node", "peers_min", "no member is left")
"""Causes that name no peer. The peers that will come to a run that has not begun are not known."""
OVER = ("finished", "stopping")


class Waits:
    """Checks the wait texts of all peers."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._looked: dict[PeerId, float] = {}
        self._since: dict[PeerId, tuple[WaitReason, float]] = {}
        """By peer: its wait, and since when its text is the same."""

    def looks(self, node: Node) -> None:
        """A deadline of a peer has passed: check its wait text."""
        now = node.now
        if now < self._looked.get(node.peer, 0.0) + LOOK_S:
            return
        self._looked[node.peer] = now
        wait, (said, since) = describe(node.core, now), self._since.get(node.peer, (None, now))
        if said is None or (said.phase, said.reason) != (wait.phase, wait.reason):
            self._since[node.peer] = wait, now
            return
        if wait.phase in OVER or now < max(since, wait.since, node.turns.paused_until) + LONG_S:
            return
        nodes = node.world.nodes
        identities = (one.me for one in nodes.values())
        names = (text for me in identities for text in (me.name, me.address) if text)
        if not any(known in wait.reason for known in (*ITS_OWN, *names)):
            self._found(f"{node.peer} has waited for long and names no peer or cause: {wait}")
