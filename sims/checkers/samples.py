"""Every sample is committed once, and none is lost for good (I10, protocol.md section 9).

Knows by itself which samples each step saw, and which rounds may still count them: what the ledger
of protocols/ says is compared with that. A violation is a line of text. Must NOT ask the ledger
what it should be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols.messages import log_entries as e
from protocols.types import sample_ranges as s
from protocols.types.ids import PeerId

if TYPE_CHECKING:
    from sims.node.node import Node

ALIVE = 1 << 40
"""Newer than any view."""


@dataclass(slots=True)
class Made:
    """A contribution, by what its steps saw."""

    peer: PeerId
    incarnation: int
    round: int
    samples: frozenset[int]
    repeats: bool
    """Two of its steps saw the same one."""
    last_view: int = ALIVE
    """The newest one when its maker went away: no later one counts it."""


class Samples:
    """Fed with each entry of the log once, in order; appends to `violations`."""

    def __init__(self, violations: list[str]) -> None:
        self._violations = violations
        self.made: dict[str, Made] = {}
        """By manifest."""
        self._open: list[Made] = []
        """Of rounds that are not committed."""
        self._spent: set[int] = set()
        self.spent_at: dict[tuple[int, int], frozenset[int]] = {}
        """By (lineage, round)."""
        self._committed = self._lineage = 0
        self._views: list[e.View] = []
        self._attempt: e.Attempt | None = None
        self._named: dict[int, tuple[PeerId, ...]] = {}
        """By lineage that a Restore ended: who could be counted then."""

    def encoded(self, node: Node, manifest: str, round_: int, samples: Sequence[int]) -> None:
        """A node made a contribution to this round; its steps saw these since the last counted."""
        me = node.core.me
        saw = frozenset(samples)
        made = Made(me.peer, me.incarnation, round_, saw, repeats=len(saw) < len(samples))
        self.made[manifest] = made
        given = node.core.rounds[0].given
        counts = given is not None and given.round == round_
        # It may not have read yet that the run went back: no round of the new lineage counts it.
        if counts and node.core.members.lineage == self._lineage:
            self._open.append(made)

    def began(self, lineage: int) -> None:
        self._lineage = lineage
        self.spent_at[lineage, 0] = frozenset()

    def applied(self, lineage: int, entry: e.Entry) -> None:
        match entry:
            case e.View():
                self._views.append(entry)
            case e.Attempt(fragment=0):
                self._attempt = entry
            case e.Left(peer=peer) | e.Lost(peer=peer):
                self._went(peer, 0)
            case e.Cut(info=info) | e.Member(info=info):
                self._went(info.peer, info.incarnation)
            case e.Commit(fragment=0):
                self._commit(lineage, entry)
            case e.Lease():
                self._lease(entry)
            case _:
                pass

    def restored(self, origin: int, lineage: int, restore: e.Restore) -> None:
        """The log goes back to a round of lineage `origin`."""
        round_, remaining = restore.versions[0].round, restore.remaining
        spent = self.spent_at.get((origin, round_), frozenset())
        claimed = set(range(remaining.frontier)) - _numbers(remaining.samples)
        self._found(f"restored to round {round_} with other samples", claimed ^ spent)
        self._spent, self.spent_at[lineage, round_] = set(spent), spent
        self._named[restore.parent_lineage] = self._roster()
        self._committed, self._views, self._attempt, self._open = round_, [], None, []
        self._lineage = lineage

    def at_the_end(self, nodes: Iterable[Node]) -> None:
        """Whoever finished: all below its frontier is committed, or somebody has it, or it is
        free; and what could be given back was."""
        for node in nodes:
            if node.outcome == "finished":
                self._close(node)

    def _close(self, node: Node) -> None:
        members, ledger = node.core.members, node.core.members.ledger
        round_, remaining = members.committed(0), ledger.remaining
        listed = set(range(ledger.frontier)) - _numbers(remaining.samples)
        spent = self.spent_at.get((members.lineage, round_), frozenset[int]())
        self._found(f"{node.peer} takes for committed what is not, or not so", listed ^ spent)
        holders = [x.samples for x in ledger.held.values()]
        holders += [ledger.free, *(gone.held.samples for gone in ledger.gone)]
        if sum(map(s.count, holders)) != s.count(remaining.samples):
            self._violations.append(f"two hold the same samples in the ledger of {node.peer}")
        # Who finished before a Restore gave back what could be given back then.
        named = self._named.get(members.lineage, self._roster())
        for gone in ledger.gone:
            if gone.until <= round_ and gone.held.peer not in named:
                self._violations.append(f"what {gone.held.peer} held is never given back")

    def _went(self, peer: PeerId, incarnation: int) -> None:
        """It left, or is back in this life (0: none): what another one made counts no longer in a
        new view."""
        newest = self._views[-1].view if self._views else 0
        for made in self._open:
            if made.peer == peer:
                same = made.incarnation == incarnation
                made.last_view = ALIVE if same else min(made.last_view, newest)

    def _commit(self, lineage: int, commit: e.Commit) -> None:
        covered = commit.samples or ((),) * len(commit.contributors)
        for term, samples in zip(commit.contributors, covered, strict=True):
            made, said = self.made.get(term.manifest), _numbers(samples)
            if made is None:
                continue  # checkers.py says that nobody encoded it.
            what = f"round {commit.round} does not say what the steps of {term.peer} saw"
            self._found(what, said ^ made.samples)
            if made.repeats:
                self._violations.append(f"{term.peer} sees a sample twice in one contribution")
            what = f"round {commit.round} commits again, of {term.peer}"
            self._found(what, made.samples & self._spent)
            self._spent |= made.samples
        self._committed = commit.round
        self.spent_at[lineage, commit.round] = frozenset(self._spent)
        self._open = [made for made in self._open if made.round > commit.round]

    def _lease(self, lease: e.Lease) -> None:
        for grant in lease.grants:
            numbers = _numbers(grant.samples)
            self._found(f"{grant.peer} is leased what is committed", numbers & self._spent)
            for made in self._open:
                if self._may_count(made):
                    what = f"{grant.peer} is leased what a contribution of {made.peer} covers"
                    self._found(what, numbers & made.samples)

    def _may_count(self, made: Made) -> bool:
        """Is it of the open round, whose latest roster names the life that made it?"""
        view = self._view()
        in_time = view is not None and view.view <= made.last_view
        return in_time and made.round == self._committed + 1 and made.peer in self._roster()

    def _view(self) -> e.View | None:
        """The latest one for the open round."""
        round_ = self._committed + 1
        return next((x for x in reversed(self._views) if x.first_round[0] <= round_), None)

    def _roster(self) -> tuple[PeerId, ...]:
        view, attempt = self._view(), self._attempt
        if view is None:
            return ()
        latest = (view.view, self._committed + 1)
        if attempt is not None and (attempt.view, attempt.round) == latest:
            return attempt.roster
        return view.roster

    def _found(self, what: str, samples: set[int] | frozenset[int]) -> None:
        """Unless there are none."""
        if samples:
            shown = ", ".join(map(str, sorted(samples)[:5]))
            self._violations.append(f"{what}: {len(samples)} samples ({shown}, ...)")


def _numbers(samples: s.Samples) -> set[int]:
    return {number for one in samples for number in range(one.start, one.stop)}
