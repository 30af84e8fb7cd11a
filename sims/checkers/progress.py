"""I4, progress: once nothing fails any more, rounds go on within a bound, and somebody leads.

Must NOT judge who is right while anything may fail: then nothing is late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from protocols.messages import log_entries as e

if TYPE_CHECKING:
    from sims.node.node import Node
    from sims.simulator.world import World

CORRUPT_ROUNDS_MAX = 3
"""The commit after next names the majority's state: who differs asks for it then."""


class Progress:
    """Of the world as a whole."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._term = 0
        """The newest when all was healed."""
        self._decided: set[tuple[int, int]] = set()
        """(fragment, round): after it most members held one state."""

    def healed(self, world: World) -> None:
        """Nothing fails from now on."""
        self._term = max(node.core.raft.term for node in world.nodes.values())

    def named(self, world: World, commit: e.Commit, *, members: int) -> None:
        """The first one reads a commit, and some states may be corrupt. When all who held the true
        one have died before the log named it, what is left is the run's state: everybody takes it
        from there, and nobody can know better."""
        fragment, version = commit.fragment, commit.round - 1
        held = [node for node in world.live if _version(node, fragment) == version]
        digests = Counter(world.digest_of(version, node.outers[fragment]) for node in held)
        if 2 * max(digests.values(), default=0) > members:
            self._decided.add((fragment, version))
        if world.checkers.tainted and digests.keys() == {commit.previous_state_digest}:
            for node in held:
                node.corrupt.pop(fragment, None)

    def ended(self, world: World) -> None:
        """The run is over. While one that held the true state was dead, and not lost yet, or was
        being given another one, no state was that of most; the last rounds may have come in that
        time."""
        for node in world.nodes.values() if not world.checkers.tainted else ():
            # A step's state is in every commit of steps: step_runs.py looks at those.
            if node.outcome != "finished" or not node.core.rounds:
                continue
            for fragment, since in node.corrupt.items():
                passed = range(since, node.core.rounds[fragment].version)
                rounds = sum((fragment, round_) in self._decided for round_ in passed)
                if rounds > CORRUPT_ROUNDS_MAX:
                    self._found(f"{node.peer} ends with a state corrupted {rounds} rounds ago")


def _version(node: Node, fragment: int) -> int | None:
    """The round whose state it holds."""
    rounds = node.core.rounds
    return rounds[fragment].version if rounds else None
