"""What work is too old: it began from a state of more than STALE_ROUNDS rounds before.

Such work is neither counted in a round nor moved along to a newer state: its gradient belongs to
another model. Must NOT look at which steps a contribution has (accounting.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from protocols.messages import log_entries as e

if TYPE_CHECKING:
    from protocols.types.ids import PeerId
    from sims.checkers.accounting import Accounting

STALE_ROUNDS = 4
"""`staleness_rounds_max` of protocol.md."""


class Staleness:
    """Of the work of all ranks."""

    def __init__(self, found: Callable[[str], None], accounting: Accounting) -> None:
        """`accounting` knows all contributions."""
        self._found = found
        self._accounting = accounting

    def committed(self, commit: e.Commit) -> None:
        """A round counts contributions."""
        for term in commit.contributors:
            age = commit.round - 1 - self._accounting.contributions[term.manifest].base_round
            if age > STALE_ROUNDS:
                self._found(f"round {commit.round} counts work of {term.peer}, {age} rounds old")

    def kept(self, peer: PeerId, *, base_round: int, round_: int) -> None:
        """Ranks go on from the state after `round_` with work that they did on an earlier one."""
        age = round_ - base_round
        if age > STALE_ROUNDS:
            self._found(f"{peer} takes work along to round {round_}, {age} rounds old")
