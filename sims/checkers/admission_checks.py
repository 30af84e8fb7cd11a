"""A peer gets in only by a token of a rightful issuer that the log has spent, and in its role.

Must NOT interpret signatures: shells check them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.raft import Voters, voters_after
from protocols.state import operator_of
from protocols.types import PeerId
from sims.node.node import Node


class AdmissionChecks:
    """Compares the answers of peers, and the entries of the log, with the token uses in the log."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._spent: Counter[str] = Counter()
        self._let_in: dict[PeerId, e.TokenSpent] = {}
        self._run: e.Run | None = None
        self._voters: Voters = ()
        self._revoked: set[PeerId] = set()
        self._issued: dict[str, e.TokenTerms] = {}
        """Tokens in the log, by number."""
        self._operators: set[str] = set()
        """Public keys of the added ones."""
        self._asks: dict[tuple[PeerId, PeerId, int], PeerId] = {}
        """By (peer that answers, peer that was asked, number): the peer that asks."""

    # Answers --------------------------------------------------------------------------------

    def check_event(self, node: Node, event: object, commands: Sequence[c.Command]) -> None:
        """Check each answer that a peer gives as the leader, but not one that it only relays."""
        if isinstance(event, v.AdmitAsked):
            self._asks[node.peer, node.peer, event.number] = event.admit.peer
        elif isinstance(message := getattr(event, "message", None), m.HandOn):
            asked = PeerId(getattr(event, "peer", ""))
            self._asks[node.peer, asked, message.number] = message.admit.peer
        for command in commands:
            if isinstance(command, c.Send) and isinstance(command.message, m.Decided):
                said = command.message
                self._answers(node, command.peer, said.number, said.why)
            elif isinstance(command, c.AdmissionAnswer) and not _is_relayed(event):
                self._answers(node, node.peer, command.number, command.why)

    def _answers(self, node: Node, asked: PeerId, number: int, why: str) -> None:
        peer = self._asks.pop((node.peer, asked, number), None)
        if not why and peer not in node.run_state.admitted:
            self._found(f"{node.peer} admits {peer} without a token use in the log")

    # The log --------------------------------------------------------------------------------

    def check_entry(self, entry: e.Entry) -> None:
        """The first peer applies an entry."""
        self._voters = voters_after(self._voters, entry)
        match entry:
            case e.Run():
                self._run = entry
            case e.Revoked(peer=peer):
                self._revoked.add(peer)
            case e.TokenIssued(terms=terms):
                self._issued[terms.number] = terms
                if self._run is None or not self._run.voters_issue or not self._votes(terms):
                    self._found(f"the log has a token of {terms.issuer}, which may issue none")
            case e.TokenSpent():
                self._admits(entry)
            case e.Steered(what="add operator", subject=key):
                self._operators.add(key)
            case e.Steered(what="remove operator", subject=key):
                self._operators.discard(key)
            case e.Cut() | e.Member():
                self._takes_part(entry.info.peer, witness=False)
            case e.Witness():
                self._takes_part(entry.info.peer, witness=True)
            case _:
                pass

    def _admits(self, spent: e.TokenSpent) -> None:
        terms = spent.terms
        self._spent[terms.number] += 1
        if self._spent[terms.number] > terms.uses:
            self._found(f"a token for {terms.uses} uses also admits {spent.peer}")
        if spent.peer in self._let_in:
            self._found(f"{spent.peer} is admitted twice")
        self._let_in[spent.peer] = spent
        if not terms.issuer or spent.renews or self._run is None:
            return
        if operator := operator_of(terms.issuer):
            if operator not in self._operators:
                self._found(f"a token of {operator}, which is no operator, admits {spent.peer}")
        elif not self._run.voters_issue:
            self._found(f"a token of {terms.issuer}, which is no operator, admits {spent.peer}")
        elif not self._votes(terms) and self._issued.get(terms.number) != terms:
            self._found(f"a token of {terms.issuer}, which has no vote, admits {spent.peer}")
        elif terms.issuer in self._revoked:
            self._found(f"a token of {terms.issuer}, which is revoked, admits {spent.peer}")

    def _votes(self, terms: e.TokenTerms) -> bool:
        return terms.issuer in self._voters and terms.issuer not in self._revoked

    def _takes_part(self, peer: PeerId, *, witness: bool) -> None:
        if self._run is None or not self._run.root:
            return
        spent = self._let_in.get(peer)
        if spent is None:
            self._found(f"{peer} takes part, and no token admitted it")
        elif spent.terms.witness != witness:
            self._found(f"{peer} takes part in another role than that of its token")


def _is_relayed(event: object) -> bool:
    message = getattr(event, "message", None)
    return isinstance(message, m.Decided)
