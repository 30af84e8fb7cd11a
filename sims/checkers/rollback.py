"""A run goes back only if it must, and no further than it must.

It must if no connected member holds the committed state; it then goes back to the reported
checkpoint with the most tokens. Not checked here: forks (branches.py), stepwise runs, in which the
ranks hold the state, and gossip runs, in which the states of peers differ. Must NOT judge whether a
restored state is one that the run went through (agreement.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.state import RunState
from protocols.types import PeerId
from sims.checkers.agreement import Agreement
from sims.checkers.transfer_checks import TransferChecks
from sims.node.node import Node

Life = tuple[PeerId, int]


@dataclass(slots=True)
class TermReports:
    """The reports to a leader in one term, and the progress of the run at the last check."""

    term: int
    seen: int
    lineage: int
    committed: tuple[int, ...]
    kept: dict[Life, m.Kept] = field(default_factory=dict[Life, m.Kept])
    have: dict[tuple[Life, int], m.Have] = field(default_factory=dict[tuple[Life, int], m.Have])
    """By (incarnation, fragment)."""
    asking: set[Life] = field(default_factory=set[Life])
    """Incarnations of members that asked for a state: the run cannot go on from theirs."""


class RollbackChecks:
    """Checks the Restores of all leaders."""

    def __init__(
        self, found: Callable[[str], None], agreement: Agreement, transfers: TransferChecks
    ) -> None:
        """`agreement` knows each state that the run went through, and whether a fault has corrupted
        a state; `transfers`, the donors that lied."""
        self._found = found
        self._agreement = agreement
        self._transfers = transfers
        self._reigns: dict[PeerId, TermReports] = {}

    def check_event(self, node: Node, event: v.Event) -> None:
        """A core handled an event."""
        raft, led_term = node.raft, node.core.led_term
        run = led_term.head.run if led_term is not None else None
        if led_term is None or run is None or led_term.head.stepwise or run.gossip:
            return
        head, reign = led_term.head, self._reigns.get(node.peer)
        if reign is None or reign.term != raft.term:
            # Entries of its first event as leader are not checked.
            reign = TermReports(raft.term, raft.log.last_index, head.lineage, _committed(head))
            self._reigns[node.peer] = reign
        if raft.log.last_index > reign.seen:
            for entry in raft.log.since(max(reign.seen, raft.log.base) + 1):
                if isinstance(entry.body, e.Restore) and not entry.body.fork:
                    self._goes_back(node, reign, entry.body)
            reign.seen, reign.committed = raft.log.last_index, _committed(head)
            reign.lineage = head.lineage
        self._hears(node, reign, event)

    def _hears(self, node: Node, reign: TermReports, event: v.Event) -> None:
        """Record a report, after the check of new entries: these can rest only on earlier
        events."""
        if not isinstance(event, v.MessageReceived):
            return
        message, life = event.message, (event.peer, node.core.links.life(event.peer, 0))
        if isinstance(message, m.Kept):
            reign.kept[life] = message
        elif isinstance(message, m.Have):
            reign.have[life, message.fragment] = message
            reign.asking.discard(life)
        elif isinstance(message, m.Join):
            reign.asking.add(life)

    def _goes_back(self, node: Node, reign: TermReports, restore: e.Restore) -> None:
        if self._agreement.corrupted:
            return  # Then it is not clear which state is right: see agreement.py.
        for peer in sorted(node.raft.up):
            life = node.core.links.life(peer, -1)
            kept = reign.kept.get((peer, life))
            if kept is not None and kept.tokens > restore.tokens and self._stands(kept):
                self._found(
                    f"{node.peer} goes back to {restore.tokens} tokens, and {peer} keeps a "
                    f"checkpoint of {kept.tokens}"
                )
            fragments = range(len(reign.committed))
            have = [reign.have.get(((peer, life), fragment)) for fragment in fragments]
            if peer in self._transfers.liars or (peer, life) in reign.asking:
                continue  # Its state is not the reported one, or is to be replaced.
            if self._is_newest(node, reign, have, peer):
                self._found(f"{node.peer} goes back, and {peer} has the newest state")

    def _stands(self, kept: m.Kept) -> bool:
        """True if the present branch went through the states of this checkpoint."""
        for version in kept.versions:
            origin = self._agreement.origin(version.fragment, version.round)
            made = self._agreement.digest_of(origin, version.fragment, version.round)
            if made != version.state_digest:
                return False
        return True

    def _is_newest(
        self, node: Node, reign: TermReports, have: Sequence[m.Have | None], peer: PeerId
    ) -> bool:
        led_term = node.core.led_term
        assert led_term is not None, "it has just written an entry"
        if peer not in led_term.head.members:
            return False
        return all(
            said is not None
            and (said.lineage, said.round) == (reign.lineage, round_)
            and bool(said.state_digest)
            for said, round_ in zip(have, reign.committed, strict=True)
        )


def _committed(head: RunState) -> tuple[int, ...]:
    return tuple(head.committed(fragment) for fragment in range(head.fragments))
