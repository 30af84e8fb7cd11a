"""I4, progress: a corrupted state is replaced within a bounded number of rounds.

Must NOT judge which state is right while no state has a majority: then nothing is late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from protocols.messages import log_entries as e
from sims.checkers.agreement import Agreement
from sims.node.node import Node
from sims.node.world_view import WorldView

CORRUPT_ROUNDS_MAX = 3
"""Rounds in which a corrupted state is replaced. The commit after the next one names the majority's
state; a diverged peer asks for it then."""


class ProgressChecks:
    """Checks the world as a whole."""

    def __init__(self, found: Callable[[str], None], agreement: Agreement) -> None:
        """`agreement` knows whether the true state may be lost."""
        self._found = found
        self._agreement = agreement
        self._term = 0
        """The newest term at the end of all faults."""
        self._decided: set[tuple[int, int]] = set()
        """(fragment, round): rounds after which most members held one state."""

    def healed(self, world: WorldView[Node]) -> None:
        """No fault happens from now on."""
        self._term = max(node.raft.term for node in world.nodes.values())

    def named(self, world: WorldView[Node], commit: e.Commit, *, members: int) -> None:
        """The first peer reads a commit; some states may be corrupt. If all holders of the true
        state died before the log named it, and all live peers hold the state that this commit
        names, then that is the run's state from now on, and none of its holders is corrupt."""
        fragment, version = commit.fragment, commit.round - 1
        held = [node for node in world.live if _version(node, fragment) == version]
        digests = Counter(
            world.settings.digest_of(version, node.states.outers[fragment]) for node in held
        )
        if 2 * max(digests.values(), default=0) > members:
            self._decided.add((fragment, version))
        if self._agreement.tainted and digests.keys() == {commit.previous_state_digest}:
            for node in held:
                node.states.corrupt.pop(fragment, None)

    def run_ended(self, world: WorldView[Node]) -> None:
        """The run is over: check that no corrupted state has lasted too long. Only rounds after
        which most members held one state count. There are others: a holder of the true state may
        have been dead and not yet excluded, or receiving another state."""
        for node in world.nodes.values() if not self._agreement.tainted else ():
            # In a stepwise run each commit names the state: step_runs.py checks it.
            if node.process.outcome != "finished" or not node.core.rounds:
                continue
            for fragment, since in node.states.corrupt.items():
                passed = range(since, node.core.rounds[fragment].version)
                rounds = sum((fragment, round_) in self._decided for round_ in passed)
                if rounds > CORRUPT_ROUNDS_MAX:
                    self._found(f"{node.peer} ends with a state corrupted {rounds} rounds ago")


def _version(node: Node, fragment: int) -> int | None:
    """The round of the state that a node holds; None if it has no rounds."""
    rounds = node.core.rounds
    return rounds[fragment].version if rounds else None
