"""Nobody gets a certificate but for a use of a token that the log has spent, and none twice.

Must NOT know what a seal is: shells look at them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from protocols.interface import commands as c
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.ids import PeerId

if TYPE_CHECKING:
    from sims.node.node import Node


class Admission:
    """Looks at what leaders let out, and at what the log spends."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._spent: Counter[str] = Counter()
        self._let_in: set[PeerId] = set()

    def handled(self, node: Node, event: object, commands: Sequence[c.Command]) -> None:
        """Certificates that leave; who only relays one knows nothing of it."""
        for command in commands:
            certificate = b""
            if isinstance(command, c.Send) and isinstance(command.message, m.Decided):
                certificate = command.message.certificate
            elif isinstance(command, c.Answer) and not _is_relayed(event):
                certificate = command.certificate
            elif isinstance(command, c.GiveKey):
                self._gives_key(node, command.peer)
            peer = PeerId(certificate.decode())
            if peer and peer not in node.core.members.spendings.peers:
                self._found(f"{node.peer} gives {peer} a certificate that the log knows nothing of")

    def _gives_key(self, node: Node, peer: PeerId) -> None:
        if peer not in node.core.members.voters:
            self._found(f"{node.peer} gives the authority's key to {peer}, who does not vote")

    def applied(self, spent: e.TokenSpent) -> None:
        """The first time that anybody reads it."""
        self._spent[spent.token] += 1
        if self._spent[spent.token] > spent.uses:
            self._found(f"a token for {spent.uses} lets in {spent.peer} too")
        if spent.peer in self._let_in:
            self._found(f"{spent.peer} is let in twice")
        self._let_in.add(spent.peer)


def _is_relayed(event: object) -> bool:
    message = getattr(event, "message", None)
    return isinstance(message, m.Decided)
