"""A node's state as of one instant: what a checkpoint is made of.

Captured in the order of the work, where no step is half made, and handed on as one object: whoever
writes it reads nothing of the node's present state, which is another one by then. Must NOT decide
when a moment is captured, nor what is written of it (daemon/checkpoint_schedule.py).
"""

from dataclasses import dataclass

from lowcomm.numerics.operations import F32
from protocols.state.run_state import Membership
from protocols.types.ids import Version

FIRST_LINEAGE = 0
"""Of the state that a founder begins with: it is older than every lineage, and stands in each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentMoment:
    """One fragment. Nobody writes to the arrays while this has them. fp32, one-dimensional."""

    version: int
    """The last round (or step) in the arrays."""
    lineage: int
    """In which lineage that round was committed, or in which the state was adopted."""
    state_digest: str
    """Of `outer_P` and `momentum_P`."""
    outer_P: F32
    """Parameters, P elements."""
    momentum_P: F32
    """Everything else of the state: P elements, none without momentum, more in a stepwise run."""
    residue_P: F32 | None
    """What this node's codec left out of all contributions that `version` counts, P elements; None
    without error feedback."""


@dataclass(frozen=True, slots=True)
class Moment:
    """All fragments between the same two pieces of work."""

    fragments: tuple[FragmentMoment, ...]

    @property
    def round(self) -> int:
        """That of fragment 0, the anchor."""
        return self.fragments[0].version

    @property
    def residues(self) -> list[F32]:
        """Of each fragment; none without error feedback."""
        return [each.residue_P for each in self.fragments if each.residue_P is not None]

    def stands(self, members: Membership) -> bool:
        """Is this a state of the run as the log has it? Not one that a Restore took back, although
        its rounds may have the numbers of later ones."""
        versions = tuple(
            Version(number, each.version, each.state_digest)
            for number, each in enumerate(self.fragments)
        )
        lineages = {each.lineage for each in self.fragments} - {FIRST_LINEAGE}
        return all(members.is_kept(lineage, versions) for lineage in lineages)
