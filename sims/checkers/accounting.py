"""I2, I5 and I10: a round applies the contributions of its commit, and a step counts at most once.

Must NOT compare peers with each other (agreement.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from protocols.messages import log_entries as e
from protocols.types import PeerId, Stamp
from sims.checkers.agreement import Agreement
from sims.node.node import Node
from sims.node.toy_model import PRIME, ToyContribution

Counted = dict[PeerId, int]
"""For each peer, the number of its steps that are counted, or were given up before counted ones."""


class Accounting:
    """Checks how the inner steps of each peer are counted."""

    def __init__(self, found: Callable[[str], None], agreement: Agreement) -> None:
        self.commits: dict[tuple[int, int, int], e.Commit] = {}
        """All commits, by (lineage, fragment, round)."""
        self._found = found
        self._agreement = agreement
        self.contributions: dict[str, ToyContribution] = {}
        """All encoded contributions, by manifest."""
        self._contributed: set[tuple[PeerId, int, int, int, int]] = set()
        """(peer, incarnation, lineage, fragment, round) of each contribution."""
        self._lives: dict[tuple[PeerId, int, int], int] = {}
        """By (peer, lineage, view): the incarnation that contributed to rounds of this view."""
        self._counted: dict[tuple[int, int], Counted] = {}
        """The counted steps now, by (lineage, fragment). In its own lineage, a step that a Restore
        takes back stays counted."""
        self.counted_at: dict[tuple[int, int, int], Counted] = {}
        """The counted steps after each round, by (lineage, fragment, round)."""

    def encoded(self, manifest: str, made: ToyContribution) -> None:
        """Check that a contribution holds exactly the steps since the last counted one (rebase,
        I5)."""
        self.contributions[manifest] = made
        if made.delta != made.expected:
            self._found(
                f"{made.peer} contributes {made.delta}, its steps add up to {made.expected}"
            )

    def contributed(self, node: Node, fragment: int, round_: int) -> None:
        """Check that an incarnation contributes to a round once: else owners would sum other bytes
        than the commit names."""
        given = node.core.rounds[fragment].work.given
        if given is None or given.round != round_:
            return  # A Restore ended its lineage meanwhile, and the core dropped it.
        me = node.me
        key = (me.peer, me.incarnation, node.run_state.lineage, fragment, round_)
        if key in self._contributed:
            self._found(f"{me.peer} contributes to round {round_} a second time")
        self._contributed.add(key)

    def offered(self, node: Node, stamp: Stamp) -> None:
        """Check that only one incarnation of a peer contributes to a view: owners may still have
        the slices of an earlier one."""
        me = node.me
        life = self._lives.setdefault((me.peer, stamp.lineage, stamp.view), me.incarnation)
        if life != me.incarnation:
            self._found(
                f"{me.peer} contributes to {stamp} in its incarnations {life} and {me.incarnation}"
            )

    def began(self, lineage: int, entry: e.Run | e.Restore) -> None:
        """A lineage begins: steps that were counted after its cut do not count in it."""
        if isinstance(entry, e.Run):
            for fragment in range(len(entry.fragment_elements)):
                self._begin(lineage, fragment, 0, {})
            return
        for version in entry.versions:
            fragment, round_ = version.fragment, version.round
            origin = self._agreement.origin_of(lineage, fragment)
            before = self.counted_at.get((origin, fragment, round_), {})
            self._begin(lineage, fragment, round_, before)

    def _begin(self, lineage: int, fragment: int, round_: int, counted: Counted) -> None:
        self._counted[lineage, fragment] = dict(counted)
        self.counted_at[lineage, fragment, round_] = dict(counted)

    def committed(self, lineage: int, commit: e.Commit) -> None:
        """A round is committed: check that each inner step is counted at most once (I10)."""
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
        """Check that a round is applied with exactly the contributions of its commit (I2). `terms`:
        the (weight, manifest) of each contribution."""
        total = sum(weight * self.contributions[manifest].sent for weight, manifest in terms)
        expected = total * pow(sum(weight for weight, _ in terms), -1, PRIME) % PRIME
        if means != {expected}:
            self._found(f"round {stamp.round} applied as {means}, its commit says {expected}")

    def dropped(self, peer: PeerId, fragment: int, steps: tuple[int, int], lineage: int) -> None:
        """Ranks go on without their steps [first, last): check that these are in the outer state
        (I5). `lineage`: that of the peer when it dropped them; the log may have gone back since."""
        first, last = steps
        if first < last and self._counted[lineage, fragment].get(peer, 0) < last:
            self._found(f"steps {first} to {last} of {peer} are thrown away")
