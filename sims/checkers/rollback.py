"""A run goes back only when it must, and no further than it must.

It must when no member that the leader hears holds the committed state; and it goes back to the cut
of most tokens that the leader was told of. Of a fork the branch decides (branches.py); in a
stepwise run the ranks hold the state, and in one of pairs the states of two peers differ. Must NOT
judge whether a cut is one the run went through (agreement.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.ids import PeerId

if TYPE_CHECKING:
    from protocols.state.run_state import Membership
    from sims.checkers.agreement import Agreement
    from sims.node.node import Node

Life = tuple[PeerId, int]


@dataclass(slots=True)
class Reign:
    """What a leader was told in one term, and where the run was when we looked last."""

    term: int
    seen: int
    lineage: int
    committed: tuple[int, ...]
    kept: dict[Life, m.Kept] = field(default_factory=dict[Life, m.Kept])
    have: dict[tuple[Life, int], m.Have] = field(default_factory=dict[tuple[Life, int], m.Have])
    """By fragment, too."""
    asking: set[Life] = field(default_factory=set[Life])
    """Members that asked for a state: what they hold is none to go on from."""


class Rollback:
    """Of all leaders."""

    def __init__(self, found: Callable[[str], None], agreement: Agreement) -> None:
        """`agreement` knows each state that the run went through."""
        self._found = found
        self._agreement = agreement
        self._reigns: dict[PeerId, Reign] = {}

    def handled(self, node: Node, event: v.Event) -> None:
        """A core took an event."""
        raft, office = node.core.raft, node.core.office
        run = office.head.run if office is not None else None
        if office is None or run is None or office.head.stepwise or run.gossip:
            return
        head, reign = office.head, self._reigns.get(node.peer)
        if reign is None or reign.term != raft.term:
            # What it wrote in its first moment is not looked at.
            reign = Reign(raft.term, raft.log.last_index, head.lineage, _committed(head))
            self._reigns[node.peer] = reign
        if raft.log.last_index > reign.seen:
            for entry in raft.log.since(max(reign.seen, raft.log.base) + 1):
                if isinstance(entry.body, e.Restore) and not entry.body.fork:
                    self._goes_back(node, reign, entry.body)
            reign.seen, reign.committed = raft.log.last_index, _committed(head)
            reign.lineage = head.lineage
        self._hears(node, reign, event)

    def _hears(self, node: Node, reign: Reign, event: v.Event) -> None:
        """Only what came in an earlier event could be known when an entry was written."""
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

    def _goes_back(self, node: Node, reign: Reign, restore: e.Restore) -> None:
        if node.world.checkers.corrupted:
            return  # Which state is the right one is another question then: containment.py.
        for peer in sorted(node.core.raft.up):
            life = node.core.links.life(peer, -1)
            kept = reign.kept.get((peer, life))
            if kept is not None and kept.tokens > restore.tokens and self._stands(kept):
                self._found(
                    f"{node.peer} goes back to {restore.tokens} tokens, and {peer} keeps a "
                    f"checkpoint of {kept.tokens}"
                )
            fragments = range(len(reign.committed))
            have = [reign.have.get(((peer, life), fragment)) for fragment in fragments]
            if peer in node.world.checkers.transfers.liars or (peer, life) in reign.asking:
                continue  # Its state was not what it had reported: it is as if it had none.
            if self._is_newest(node, reign, have, peer):
                self._found(f"{node.peer} goes back, and {peer} has the newest state")

    def _stands(self, kept: m.Kept) -> bool:
        """The branch that the run is on went through these states."""
        for version in kept.versions:
            origin = self._agreement.origin(version.fragment, version.round)
            made = self._agreement.states.get((origin, version.fragment, version.round))
            if made is None or made[0] != version.state_digest:
                return False
        return True

    def _is_newest(
        self, node: Node, reign: Reign, have: Sequence[m.Have | None], peer: PeerId
    ) -> bool:
        office = node.core.office
        assert office is not None, "it has just written an entry"
        if peer not in office.head.members:
            return False
        return all(
            said is not None
            and (said.lineage, said.round) == (reign.lineage, round_)
            and bool(said.state_digest)
            for said, round_ in zip(have, reign.committed, strict=True)
        )


def _committed(head: Membership) -> tuple[int, ...]:
    return tuple(head.committed(fragment) for fragment in range(head.fragments))
