"""A node's state at one instant, from which a checkpoint is made.

A Moment is captured between two tasks of the worker thread, when no step is half done. Its writer
reads nothing else of the node, because the present state is a later one by then. Must NOT decide
when a moment is captured, nor which of it is written (daemon/checkpoint_schedule.py).
"""

from dataclasses import dataclass

from lowcomm.numerics.operations import F32
from protocols.state import RunState
from protocols.types import Version

FIRST_LINEAGE = 0
"""Lineage of the state that a founder begins with: it is older than every lineage, and valid in
each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentMoment:
    """The state of one fragment. Arrays are fp32, one-dimensional, and do not change as long as
    this object holds them."""

    version: int
    """The last round (or step) in the arrays."""
    lineage: int
    """The lineage in which that round was committed, or in which the state was adopted."""
    state_digest: str
    """Digest of `outer_P` and `momentum_P`."""
    outer_P: F32
    """Parameters, P elements."""
    momentum_P: F32
    """The rest of the state: P elements, none without momentum, more in a stepwise run."""
    residue_P: F32 | None
    """The residue of this node's error feedback, after all contributions that `version` counts, P
    elements; None without error feedback."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of all fragments between the same two tasks of the worker thread."""

    fragments: tuple[FragmentMoment, ...]

    @property
    def round(self) -> int:
        """The last round of fragment 0, the anchor."""
        return self.fragments[0].version

    @property
    def residues(self) -> list[F32]:
        """The residue of each fragment; empty without error feedback."""
        return [each.residue_P for each in self.fragments if each.residue_P is not None]

    def stands(self, run_state: RunState) -> bool:
        """Whether the log still contains this state. False if a rollback has discarded it, although
        later rounds may have the same numbers."""
        versions = tuple(
            Version(number, each.version, each.state_digest)
            for number, each in enumerate(self.fragments)
        )
        lineages = {each.lineage for each in self.fragments} - {FIRST_LINEAGE}
        return all(run_state.is_kept(lineage, versions) for lineage in lineages)
