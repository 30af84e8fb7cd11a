"""I2 in a gossip run: both peers of a pair apply both contributions, or neither is counted.

Must NOT add contributions up (accounting.py).
"""

from __future__ import annotations

from collections.abc import Callable

from protocols.messages import log_entries as e
from protocols.state import pairs_of
from protocols.types import PeerId, Stamp
from sims.node.node import Node


class Pairs:
    """Checks the pairs of each round."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._gossip = False
        self._rosters: dict[tuple[int, int], tuple[PeerId, ...]] = {}
        """The roster of each view, by (lineage, view)."""

    def check_entry(self, lineage: int, entry: e.Entry) -> None:
        """The first peer applies an entry of the log."""
        if isinstance(entry, e.Run):
            self._gossip = entry.gossip
        elif isinstance(entry, e.View):
            self._rosters[lineage, entry.view] = entry.roster

    def terms(self, lineage: int, commit: e.Commit, peer: PeerId) -> list[tuple[int, str]]:
        """The (weight, manifest) of each contribution that this peer's result of a round must
        contain."""
        if not self._gossip:
            return [(term.tokens, term.manifest) for term in commit.contributors]
        counted = {term.peer: term.manifest for term in commit.contributors}
        roster, fragment = self._rosters[lineage, commit.view], commit.fragment
        pairs = pairs_of(roster, counted, fragment=fragment, round_=commit.round)
        (pair,) = (pair for pair in pairs if peer in pair)
        return [(1, counted[each]) for each in pair]

    def skipped(self, node: Node, stamp: Stamp) -> None:
        """A peer keeps its state in a committed round: check that the round has not counted it."""
        commit = node.run_state.commit(stamp.fragment, stamp.round)
        if commit is not None and any(term.peer == node.peer for term in commit.contributors):
            self._found(f"{node.peer} is counted in round {stamp.round}, and does not apply it")
