"""I1, agreement: all peers have one log, and all that applied a round have one state.

Must NOT check the contributions to a state (accounting.py).
"""

from __future__ import annotations

from collections.abc import Callable

from protocols.messages import log_entries as e
from protocols.types import PeerId


class Agreement:
    """Compares each applied entry and each state with that of the first peer."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self.log: dict[int, e.Entry] = {}
        self.tainted = False
        """A peer with the true state may have died before the log named that state: no peer can
        know the true state now."""
        self.corrupted = False
        """A fault has changed the state of some peer: notes about diverged states are expected."""
        self.states: dict[tuple[int, int, int], tuple[str, PeerId]] = {}
        """By (lineage, fragment, round): the digest of the state, and the first peer that held
        it."""
        self._found = found
        self._parents: dict[int, tuple[int, tuple[int, ...]]] = {}
        """By lineage: its parent lineage, and the rounds of the parent that it went back to, by
        fragment."""
        self._lineage = 0
        self.origins: dict[tuple[int, int], int] = {}
        """By (lineage, fragment): the lineage in which its initial state was made."""

    def check_entry(self, peer: PeerId, lineage: int, index: int, entry: e.Entry) -> bool:
        """Check an entry that a peer applies. False if a peer applied this index before."""
        if index in self.log:
            first = self.log[index]
            if first is not entry and first != entry:
                self._found(f"{peer} has another entry {index}: {entry!r}, not {first!r}")
            return False
        self.log[index] = entry
        if isinstance(entry, e.Run):
            self._lineage = lineage
        elif isinstance(entry, e.Restore):
            self._restored(lineage, entry)
        elif isinstance(entry, e.Commit):
            self._named(lineage, entry)
        return True

    @property
    def rollbacks(self) -> int:
        """The number of times that the run went back to a checkpoint."""
        return len(self._parents)

    def state(self, peer: PeerId, lineage: int, fragment: int, round_: int, digest: str) -> None:
        """Check that all peers that applied a round hold the same state."""
        first, who = self.states.setdefault((lineage, fragment, round_), (digest, peer))
        if first != digest and not self.tainted:
            self._found(f"round {round_}: {peer} holds {digest}, {who} holds {first}")

    def origin_of(self, lineage: int, fragment: int) -> int:
        """The lineage in which a lineage's initial state was made; 0 if it was made in none."""
        return self.origins.get((lineage, fragment), 0)

    def digest_of(self, lineage: int, fragment: int, round_: int) -> str | None:
        """The digest of the state after a round; None if no peer held it."""
        known = self.states.get((lineage, fragment, round_))
        return known[0] if known is not None else None

    def is_corrupt(self, lineage: int, fragment: int, round_: int, digest: str) -> bool:
        """True if this is not the digest of the true state. While half of the members are corrupt,
        two equal reports may name a wrong state."""
        known = self.digest_of(lineage, fragment, round_)
        return self.corrupted and known not in (None, digest)

    def origin(self, fragment: int, round_: int) -> int:
        """The lineage in which the present branch went through this round; 0 if there is none."""
        lineage, left_at = self._lineage, round_
        while lineage:
            if round_ <= left_at and (lineage, fragment, round_) in self.states:
                return lineage
            lineage, rounds = self._parents.get(lineage, (0, ()))
            left_at = min(left_at, rounds[fragment]) if rounds else 0
        return 0

    def _restored(self, lineage: int, restore: e.Restore) -> None:
        """Check that a Restore goes back to a state of the present branch. A state that an earlier
        Restore took back is none."""
        for version in restore.versions:
            fragment, round_ = version.fragment, version.round
            origin = self.origin(fragment, round_)
            if not origin:
                self._found(f"restored to round {round_}, which never was")
                continue
            self.origins[lineage, fragment] = origin
            digest, who = self.states[origin, fragment, round_]
            self.states[lineage, fragment, round_] = digest, who
            if digest != version.state_digest and not self.tainted:
                self._found(f"restored to another state of round {round_} than {who} had")
        rounds = tuple(version.round for version in restore.versions)
        self._parents[lineage] = self._lineage, rounds
        self._lineage = lineage

    def _named(self, lineage: int, commit: e.Commit) -> None:
        """Check that a commit names the state that a majority had before it, not that of a diverged
        peer."""
        known = self.states.get((lineage, commit.fragment, commit.round - 1))
        named = commit.previous_state_digest
        if known is not None and named not in ("", known[0]) and not self.tainted:
            self._found(f"the log says that round {commit.round - 1} led to {named}, not {known}")
