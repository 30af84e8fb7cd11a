"""What must hold in every run, whatever fails: one method per promise of design.md section 2.

A violation is a line of text; the world that produced it prints the story and the seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols import entries as e
from protocols.ids import PeerId, Stamp
from sims.accounting import Accounting

if TYPE_CHECKING:
    from sims.nodes import Node

PRIME = (1 << 61) - 1
KEPT_MAX = 64
"""Of anything that a peer keeps by round. Healthy runs stay far below."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a peer encoded: steps [first, last) of all that it ever made, worth `delta`."""

    peer: PeerId
    delta: int
    first: int
    last: int
    expected: int
    """What these steps are worth, added up one by one."""


class Checkers:
    """Fed by the world as things happen; `violations` is what was found."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.commits: dict[tuple[int, int], e.Commit] = {}
        """By (lineage, round)."""
        self.log: dict[int, e.Entry] = {}
        self.corrupted = False
        """Some state was changed behind a peer's back: it must be named."""
        self.tainted = False
        """Somebody who held the true state died before the log named it: nobody can know it now."""
        self.accounting = Accounting(self.violations)
        self._contributions: dict[str, Contribution] = {}
        self._states: dict[tuple[int, int], tuple[str, PeerId]] = {}
        self._counted: dict[PeerId, int] = {}
        """How many steps of a peer are counted, or given up before ones that are."""
        self._lineages: list[int] = []
        self._counted_at: dict[tuple[int, int], dict[PeerId, int]] = {}

    def encoded(self, manifest: str, made: Contribution) -> None:
        """A contribution holds exactly the steps since the last counted one (rebase, I5)."""
        self._contributions[manifest] = made
        if made.delta != made.expected:
            self.found(f"{made.peer} contributes {made.delta}, its steps add up to {made.expected}")

    def applied(self, peer: PeerId, lineage: int, index: int, entry: e.Entry) -> None:
        """One log for all, and each inner step is counted at most once (I1, I10)."""
        if index in self.log:
            if self.log[index] != entry:
                first = self.log[index]
                self.found(f"{peer} has another entry {index}: {entry!r}, not {first!r}")
            return
        self.log[index] = entry
        self.accounting.applied(lineage, entry)
        if isinstance(entry, e.Run):
            self.accounting.began(lineage)
            self._lineages.append(lineage)
            self._counted_at[lineage, 0] = {}
        elif isinstance(entry, e.Restore):
            self._restored(lineage, entry)
        elif isinstance(entry, e.Commit):
            self._committed(lineage, entry)

    def _restored(self, lineage: int, restore: e.Restore) -> None:
        """What was counted after the cut is not."""
        (version,) = restore.versions
        origin = next(
            (old for old in reversed(self._lineages) if (old, version.round) in self._counted_at),
            None,
        )
        if origin is None:
            self.found(f"restored to round {version.round}, which never was")
            return
        self._counted = dict(self._counted_at[origin, version.round])
        self._counted_at[lineage, version.round] = dict(self._counted)
        self._lineages.append(lineage)
        self.accounting.restored(origin, lineage, restore)
        digest, who = self._states[origin, version.round]
        self._states[lineage, version.round] = digest, who
        if digest != version.state_digest and not self.tainted:
            self.found(f"restored to another state of round {version.round} than {who} had")

    def _committed(self, lineage: int, commit: e.Commit) -> None:
        if (lineage, commit.round) in self.commits:
            self.found(f"round {commit.round} is committed twice")
        self.commits[lineage, commit.round] = commit
        for term in commit.contributors:
            made = self._contributions[term.manifest]
            counted = self._counted.get(term.peer, 0)
            if made.first < counted or made.last - made.first != term.steps:
                self.found(
                    f"round {commit.round} counts steps {made.first} to {made.last} of "
                    f"{term.peer}, {counted} are counted already"
                )
            self._counted[term.peer] = made.last
        self._counted_at[lineage, commit.round] = dict(self._counted)

    def means(self, stamp: Stamp, means: set[int]) -> None:
        """A round is applied with exactly the contributions of its commit (I2)."""
        terms = self.commits[stamp.lineage, stamp.round].contributors
        total = sum(term.tokens * self._contributions[term.manifest].delta for term in terms)
        expected = total * pow(sum(term.tokens for term in terms), -1, PRIME) % PRIME
        if means != {expected}:
            self.found(f"round {stamp.round} applied as {means}, its commit says {expected}")

    def state(self, peer: PeerId, lineage: int, round_: int, digest: str) -> None:
        """All peers that applied a round hold the same state (I1)."""
        first, who = self._states.setdefault((lineage, round_), (digest, peer))
        if first != digest and not self.tainted:
            self.found(f"round {round_}: {peer} holds {digest}, {who} holds {first}")

    def dropped(self, peer: PeerId, first: int, last: int) -> None:
        """Live ranks start again from the outer state: their steps must be in it (I5)."""
        if first < last and self._counted.get(peer, 0) < last:
            self.found(f"steps {first} to {last} of {peer} are thrown away")

    def memory(self, node: Node) -> None:
        """Nothing grows with the length of the run (the log does)."""
        store, core = node.store, node.core
        sizes = {
            "slices": len(store.slices),
            "results": len(store.results),
            "encoded": len(store.encoded),
            "slice names": sum(len(r.held.slices) for r in core.rounds),
            "result names": sum(len(r.held.results) for r in core.rounds),
            "rounds done": sum(len(r.done) for r in core.rounds),
            "views": len(core.members.views),
            "ranges of samples": len(core.members.ledger.remaining.samples),
            "waiting for the disk": len(core.raft.disk.waiting) // 16,
            "reports": len(core.office.leader.reports.rounds) if core.office else 0,
        }
        for what, size in sizes.items():
            if size > KEPT_MAX:
                self.found(f"{node.peer} keeps {size} {what}")

    def note(self, kind: str, text: str) -> None:
        """Nobody misbehaves in a world without liars, nor differs without a reason."""
        if kind == "misbehaviour" or (kind == "diverged" and not self.corrupted):
            self.found(f"{kind}: {text}")

    def found(self, text: str) -> None:
        self.violations.append(text)
