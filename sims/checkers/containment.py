"""I9, containment: no collection grows with the run, and no peer is accused without a reason.

Must NOT count bytes: here, a peer keeps only names and numbers for each round.
"""

from __future__ import annotations

from collections.abc import Callable

from protocols.types import PeerId
from sims.checkers.agreement import Agreement
from sims.node.node import Node

KEPT_MAX = 64
"""Items of one kind that a peer may keep for each fragment. Healthy runs stay far below."""


class Containment:
    """Checks each peer by itself."""

    def __init__(self, found: Callable[[str], None], agreement: Agreement) -> None:
        """`agreement` knows whether a fault has changed a state."""
        self.claimants: set[PeerId] = set()
        """Peers that a fault makes claim to lead: notes about them are expected."""
        self._found = found
        self._agreement = agreement

    def memory(self, node: Node) -> None:
        """Check that no collection grows with the length of the run (only the log does)."""
        store, core, led_term = node.data_plane.store, node.core, node.core.led_term
        exchanges = [rounds.exchange for rounds in core.rounds]
        ledger, disk = node.run_state.ledger, node.raft.disk
        sizes = {
            "slices": len(store.slices),
            "results": len(store.results),
            "encoded": len(store.encoded),
            "slice names": sum(len(x.held.slices) for x in exchanges),
            "result names": sum(len(x.held.results) for x in exchanges),
            "rounds done": sum(len(x.done.by_round) for x in exchanges),
            "views": len(core.run_state.views),
            "ranges of samples": len(ledger.free),
            "waiting for the disk": len(disk.waiting) // 16,
            "reports": len(led_term.reports.rounds) if led_term else 0,
        }
        for what, size in sizes.items():
            if size > KEPT_MAX * max(1, len(core.rounds)):
                self._found(f"{node.peer} keeps {size} {what}")

    def note(self, kind: str, text: str) -> None:
        """Check that no honest peer is reported for misbehaviour, and none as diverged unless a
        state was corrupted."""
        honest = text.partition(":")[0] not in self.claimants
        sound = not self._agreement.corrupted
        if (kind == "misbehaviour" and honest) or (kind == "diverged" and sound):
            self._found(f"{kind}: {text}")
