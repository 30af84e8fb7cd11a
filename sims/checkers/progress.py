"""I4, progress: once nothing fails any more, rounds go on within a bound, and somebody leads.

Must NOT judge who is right while anything may fail: then nothing is late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sims.world import World

CORRUPT_ROUNDS_MAX = 3
"""The commit after next names the majority's state: who differs asks for it then."""


class Progress:
    """Of the world as a whole."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._term = 0
        """The newest when all was healed."""

    def healed(self, world: World) -> None:
        """Nothing fails from now on."""
        self._term = max(node.core.raft.term for node in world.nodes.values())

    def ended(self, world: World) -> None:
        """The run is over."""
        for node in world.nodes.values():
            # A step's state is in every commit of steps: step_checkers.py looks at those.
            if node.outcome == "finished" and node.corrupt and node.core.rounds:
                rounds = node.core.rounds[0].version - node.corrupt_at
                if rounds > CORRUPT_ROUNDS_MAX:
                    self._found(f"{node.peer} ends with a state corrupted {rounds} rounds ago")
