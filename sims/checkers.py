"""What must hold in every run, whatever fails: one method per promise of design.md section 2.

A violation is a line of text; the world that produced it prints the story and the seed.
"""

from protocols import entries as e
from protocols.ids import PeerId, Stamp

PRIME = (1 << 61) - 1


class Checkers:
    """Fed by the world as things happen; `violations` is what was found."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.commits: dict[int, e.Commit] = {}
        self.log: dict[int, e.Entry] = {}
        self._deltas: dict[str, int] = {}
        self._states: dict[int, tuple[str, PeerId]] = {}
        self._manifests: dict[str, int] = {}

    def encoded(self, manifest: str, delta: int) -> None:
        """A peer encoded a contribution worth `delta`."""
        self._deltas[manifest] = delta

    def applied(self, peer: PeerId, index: int, entry: e.Entry) -> None:
        """One log for all, and each contribution is counted at most once (I1, I10)."""
        first = self.log.setdefault(index, entry)
        if first != entry:
            self._found(f"{peer} has another entry {index}: {entry!r}, not {first!r}")
        if isinstance(entry, e.Commit) and entry.round not in self.commits:
            self.commits[entry.round] = entry
            for term in entry.contributors:
                if self._manifests.setdefault(term.manifest, entry.round) != entry.round:
                    self._found(f"{term.peer}'s contribution counts in two rounds")

    def means(self, stamp: Stamp, means: set[int]) -> None:
        """A round is applied with exactly the contributions of its commit (I2)."""
        terms = self.commits[stamp.round].contributors
        total = sum(term.tokens * self._deltas[term.manifest] for term in terms)
        expected = total * pow(sum(term.tokens for term in terms), -1, PRIME) % PRIME
        if means != {expected}:
            self._found(f"round {stamp.round} applied as {means}, its commit says {expected}")

    def state(self, peer: PeerId, round_: int, digest: str) -> None:
        """All peers that applied a round hold the same state (I1)."""
        first, who = self._states.setdefault(round_, (digest, peer))
        if first != digest:
            self._found(f"round {round_}: {peer} holds {digest}, {who} holds {first}")

    def note(self, kind: str, text: str) -> None:
        """Nobody misbehaves in a world without liars."""
        if kind in ("diverged", "misbehaviour"):
            self._found(f"{kind}: {text}")

    def _found(self, text: str) -> None:
        self.violations.append(text)
