"""A peer gets a certificate only for a token use in the log, and no peer is admitted twice.

Must NOT interpret seals: shells check them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from protocols.interface import commands as c
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types import PeerId
from sims.node.node import Node


class Admission:
    """Compares the certificates that peers send with the token uses in the log."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._spent: Counter[str] = Counter()
        self._let_in: set[PeerId] = set()

    def handled(self, node: Node, event: object, commands: Sequence[c.Command]) -> None:
        """Check each certificate and key that a peer sends, but not a certificate that it only
        relays."""
        spendings = node.run_state.spendings
        for command in commands:
            certificate = b""
            if isinstance(command, c.Send) and isinstance(command.message, m.Decided):
                certificate = command.message.certificate
            elif isinstance(command, c.Answer) and not _is_relayed(event):
                certificate = command.certificate
            elif isinstance(command, c.GiveKey):
                self._gives_key(node, command.peer)
            peer = PeerId(certificate.decode())
            if peer and peer not in spendings.peers:
                self._found(
                    f"{node.peer} gives {peer} a certificate without a token use in the log"
                )

    def _gives_key(self, node: Node, peer: PeerId) -> None:
        if peer not in node.run_state.voters:
            self._found(f"{node.peer} gives the authority's key to {peer}, which has no vote")

    def applied(self, spent: e.TokenSpent) -> None:
        """The first peer applies the entry of a token use."""
        self._spent[spent.token] += 1
        if self._spent[spent.token] > spent.uses:
            self._found(f"a token for {spent.uses} uses also admits {spent.peer}")
        if spent.peer in self._let_in:
            self._found(f"{spent.peer} is admitted twice")
        self._let_in.add(spent.peer)


def _is_relayed(event: object) -> bool:
    message = getattr(event, "message", None)
    return isinstance(message, m.Decided)
