"""No work is used that began from a state more than STALE_ROUNDS rounds old.

Older work is neither counted in a round nor kept on a newer state: its gradient belongs to another
model. Must NOT check the steps of a contribution (accounting.py).
"""

from __future__ import annotations

from collections.abc import Callable

from protocols.messages import log_entries as e
from protocols.types import PeerId
from sims.checkers.accounting import Accounting

STALE_ROUNDS = 4
"""Rounds: `staleness_rounds_max` of protocol.md."""


class Staleness:
    """Checks the age of the work of all ranks."""

    def __init__(self, found: Callable[[str], None], accounting: Accounting) -> None:
        """`accounting` has all contributions."""
        self._found = found
        self._accounting = accounting

    def committed(self, commit: e.Commit) -> None:
        """A round is committed: check the age of its contributions."""
        for term in commit.contributors:
            age = commit.round - 1 - self._accounting.contributions[term.manifest].base_round
            if age > STALE_ROUNDS:
                self._found(f"round {commit.round} counts work of {term.peer}, {age} rounds old")

    def kept(self, peer: PeerId, *, base_round: int, round_: int) -> None:
        """Ranks go on from the state after `round_` with work from the state after `base_round`."""
        age = round_ - base_round
        if age > STALE_ROUNDS:
            self._found(f"{peer} takes work along to round {round_}, {age} rounds old")
