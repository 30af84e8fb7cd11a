"""I2, I5 and I10: a round is what its commit lists, and each inner step counts once or not at all.

Must NOT compare peers with each other (agreement.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols.messages import log_entries as e
from protocols.types.ids import PeerId, Stamp
from sims.checkers.agreement import Agreement
from sims.node.toy_model import PRIME

if TYPE_CHECKING:
    from sims.node.node import Node


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a peer encoded: steps [first, last) of all that it ever made, worth `delta`."""

    peer: PeerId
    fragment: int
    delta: int
    first: int
    last: int
    expected: int
    """What these steps are worth, added up one by one."""
    sent: int
    """What others got: that, or in a gossip run the parameter itself."""
    base_round: int = 0
    """The state after this round is what the ranks' parameters were moved to last."""


Counted = dict[PeerId, int]
"""How many steps of each peer are counted, or given up before ones that are."""


class Accounting:
    """Of every step of every peer."""

    def __init__(self, found: Callable[[str], None], agreement: Agreement) -> None:
        self.commits: dict[tuple[int, int, int], e.Commit] = {}
        """By (lineage, fragment, round)."""
        self._found = found
        self._agreement = agreement
        self.contributions: dict[str, Contribution] = {}
        """By manifest."""
        self._contributed: set[tuple[PeerId, int, int, int, int]] = set()
        """(peer, incarnation, lineage, fragment, round)."""
        self._lives: dict[tuple[PeerId, int, int], int] = {}
        """By (peer, lineage, view): in which life it contributed to rounds of this view."""
        self._counted: dict[tuple[int, int], Counted] = {}
        """By (lineage, fragment): what a Restore takes back was counted until then."""
        self.counted_at: dict[tuple[int, int, int], Counted] = {}
        """By (lineage, fragment, round)."""

    def encoded(self, manifest: str, made: Contribution) -> None:
        """A contribution holds exactly the steps since the last counted one (rebase, I5)."""
        self.contributions[manifest] = made
        if made.delta != made.expected:
            self._found(
                f"{made.peer} contributes {made.delta}, its steps add up to {made.expected}"
            )

    def contributed(self, node: Node, fragment: int, round_: int) -> None:
        """A life contributes to a round once: owners would sum other bytes than the commit says."""
        given = node.core.rounds[fragment].given
        if given is None or given.round != round_:
            return  # A Restore ended its lineage meanwhile: the core forgets it.
        me = node.core.me
        key = (me.peer, me.incarnation, node.core.members.lineage, fragment, round_)
        if key in self._contributed:
            self._found(f"{me.peer} contributes to round {round_} a second time")
        self._contributed.add(key)

    def offered(self, node: Node, stamp: Stamp) -> None:
        """A view counts one life of a peer: owners may still have what an earlier one sent."""
        me = node.core.me
        life = self._lives.setdefault((me.peer, stamp.lineage, stamp.view), me.incarnation)
        if life != me.incarnation:
            self._found(
                f"{me.peer} contributes in its lives {life} and {me.incarnation} to {stamp}"
            )

    def began(self, lineage: int, entry: e.Run | e.Restore) -> None:
        """A lineage begins; what was counted after its cut is not."""
        if isinstance(entry, e.Run):
            for fragment in range(len(entry.fragment_elements)):
                self._begin(lineage, fragment, 0, {})
            return
        for version in entry.versions:
            fragment, round_ = version.fragment, version.round
            origin = self._agreement.origins.get((lineage, fragment), 0)
            before = self.counted_at.get((origin, fragment, round_), {})
            self._begin(lineage, fragment, round_, before)

    def _begin(self, lineage: int, fragment: int, round_: int, counted: Counted) -> None:
        self._counted[lineage, fragment] = dict(counted)
        self.counted_at[lineage, fragment, round_] = dict(counted)

    def committed(self, lineage: int, commit: e.Commit) -> None:
        """Each inner step is counted at most once (I10)."""
        key = (lineage, commit.fragment, commit.round)
        if key in self.commits:
            self._found(f"round {commit.round} is committed twice")
        self.commits[key] = commit
        steps = self._counted[lineage, commit.fragment]
        for term in commit.contributors:
            made = self.contributions[term.manifest]
            counted = steps.get(term.peer, 0)
            if made.fragment != commit.fragment:
                self._found(f"round {commit.round} counts a contribution to another fragment")
            if made.first < counted or made.last - made.first != term.steps:
                self._found(
                    f"round {commit.round} counts steps {made.first} to {made.last} of "
                    f"{term.peer}, {counted} are counted already"
                )
            steps[term.peer] = made.last
        self.counted_at[key] = dict(steps)

    def means(self, stamp: Stamp, terms: Sequence[tuple[int, str]], means: set[int]) -> None:
        """A round is applied with exactly the contributions of its commit (I2). `terms`: (weight,
        manifest) of each."""
        total = sum(weight * self.contributions[manifest].sent for weight, manifest in terms)
        expected = total * pow(sum(weight for weight, _ in terms), -1, PRIME) % PRIME
        if means != {expected}:
            self._found(f"round {stamp.round} applied as {means}, its commit says {expected}")

    def dropped(self, peer: PeerId, fragment: int, steps: tuple[int, int], lineage: int) -> None:
        """Ranks go on without these steps (first, and the one after the last): they must be in the
        outer state (I5). `lineage`: where the peer was when it said so: the log may have gone back
        meanwhile."""
        first, last = steps
        if first < last and self._counted[lineage, fragment].get(peer, 0) < last:
            self._found(f"steps {first} to {last} of {peer} are thrown away")
