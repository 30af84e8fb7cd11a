"""The plan of one attempt at a round: contributors, owners of parts, and receivers of results.

It follows from the log alone (run_state.py makes it). Must NOT know what of it is done.
"""

from collections.abc import Set

from protocols.state.gossip_pairs import Pairs
from protocols.types.frozen import record
from protocols.types.ids import FragmentParts, PeerId, Stamp


@record
class RoundPlan:
    """The plan is the same on all peers."""

    stamp: Stamp
    roster: tuple[PeerId, ...]
    parts: FragmentParts
    counted: frozenset[PeerId] = frozenset()
    """Peers of the roster that still count in the view (RunState.counts)."""
    pairs: Pairs = ()
    """In a gossip run, the pairs of the roster; a peer may be alone. (): all exchange with all."""

    @property
    def num_parts(self) -> int:
        return len(self.parts.borders) - 1

    @property
    def summing(self) -> tuple[PeerId, ...]:
        """The peers that make sums; in a gossip run each peer, for itself."""
        return self.roster if self.pairs else self.parts.owners

    def summed_by(self, peer: PeerId) -> tuple[PeerId, ...]:
        """The contributors in the sums of this peer, in the order of the sum."""
        if not self.pairs:
            return self.roster
        return next((pair for pair in self.pairs if peer in pair), ())

    def owner_of(self, part: int) -> PeerId | None:
        """The owner of this part; None if there is no such part, or each peer makes its own."""
        owners = self.parts.owners
        return owners[part] if part < len(owners) else None

    def owned_by(self, peer: PeerId) -> list[int]:
        """The parts that this peer sums."""
        if self.pairs:
            return [0] if peer in self.roster else []
        return [i for i, owner in enumerate(self.parts.owners) if owner == peer]

    def slices_of(self, peer: PeerId) -> list[tuple[int, PeerId]]:
        """(part, the peer that sums it) for each slice of this peer's contribution."""
        if self.pairs:
            return [(0, other) for other in self.summed_by(peer)]
        return list(enumerate(self.parts.owners))

    def makers_for(self, peer: PeerId) -> Set[PeerId]:
        """The peers that must be connected so that this peer gets a result."""
        return set(self.summed_by(peer) if self.pairs else self.parts.owners)
