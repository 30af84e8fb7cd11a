"""One attempt at one round: who contributes, who sums what, and what goes to whom for it.

Follows from the log alone (run_state.py makes it). Must NOT know what of it is done.
"""

from collections.abc import Set

from protocols.state.gossip_pairs import Pairs
from protocols.types.frozen import record
from protocols.types.ids import FragmentParts, PeerId, Stamp


@record
class Plan:
    """The same for everybody."""

    stamp: Stamp
    roster: tuple[PeerId, ...]
    parts: FragmentParts
    counted: frozenset[PeerId] = frozenset()
    """Who of the roster still is the member that the view meant."""
    pairs: Pairs = ()
    """In a gossip run: who of the roster exchanges with whom, or is alone. (): all exchange with
    all."""

    @property
    def num_parts(self) -> int:
        return len(self.parts.borders) - 1

    @property
    def summing(self) -> tuple[PeerId, ...]:
        """Who makes sums: in a gossip run each for itself."""
        return self.roster if self.pairs else self.parts.owners

    def summed_by(self, peer: PeerId) -> tuple[PeerId, ...]:
        """Whose contributions are in the sums of this peer, in their order."""
        if not self.pairs:
            return self.roster
        return next((pair for pair in self.pairs if peer in pair), ())

    def owner_of(self, part: int) -> PeerId | None:
        """Who sums this part for all; None: there is no such part, or everybody makes its own."""
        owners = self.parts.owners
        return owners[part] if part < len(owners) else None

    def owned_by(self, peer: PeerId) -> list[int]:
        """The parts that this peer sums."""
        if self.pairs:
            return [0] if peer in self.roster else []
        return [i for i, owner in enumerate(self.parts.owners) if owner == peer]

    def slices_of(self, peer: PeerId) -> list[tuple[int, PeerId]]:
        """(part, who sums it) of this peer's contribution."""
        if self.pairs:
            return [(0, other) for other in self.summed_by(peer)]
        return list(enumerate(self.parts.owners))

    def makers_for(self, peer: PeerId) -> Set[PeerId]:
        """Who has to be there, so that this peer gets a result."""
        return set(self.summed_by(peer) if self.pairs else self.parts.owners)
