"""Containment of lying owners: no falsified result is committed, and no honest peer is blamed.

Must NOT check that results contain the right contributions (accounting.py).
"""

from __future__ import annotations

from collections.abc import Callable

from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types import PeerId, Stamp
from sims.node.node import Node

STRUCK = "falsified"
"""A word in the reasons of all entries that remove a peer for its results."""


class Owners:
    """Compares commits and complaints with the lies of the run."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._false: dict[tuple[int, int, int, int, int], PeerId] = {}
        """By attempt (lineage, fragment, round, view, attempt), an owner that falsified a whole
        result of it."""
        self._liars: set[PeerId] = set()

    def falsified(self, node: Node, stamp: Stamp | None) -> None:
        """A peer lies: about a whole result of this attempt, or (None) about anything else."""
        self._liars.add(node.peer)
        if stamp is not None:
            key = (stamp.lineage, stamp.fragment, stamp.round, stamp.view, stamp.attempt)
            self._false[key] = node.peer

    def complained(self, node: Node, message: m.WrongResult) -> None:
        """Check that each complaint names a liar."""
        if not self._liars & set(message.peers):
            self._found(f"{node.peer} complains about {message.peers}, which tell the truth")

    def committed(self, lineage: int, commit: e.Commit) -> None:
        """Check that no attempt with a falsified result is committed."""
        key = (lineage, commit.fragment, commit.round, commit.view, commit.attempt)
        if key in self._false:
            self._found(f"round {commit.round} commits a result that {self._false[key]} falsified")

    def struck(self, lost: e.Lost) -> None:
        """Check that a peer that was removed for its results is a liar."""
        if STRUCK in lost.why and lost.peer not in self._liars:
            self._found(f"{lost.peer} is removed, and tells the truth: {lost.why}")
