"""Divides a fragment into parts, each with one owner that sums it.

The leader fixes parts and owners in a View or Attempt. Must NOT be used to choose them locally.
"""

from collections.abc import Sequence

from protocols.messages.log_entries import Run
from protocols.types.ids import FragmentParts, PeerId

PART_BYTES_MIN = 1 << 20
"""Bytes of fp32: a smaller part is not worth another owner."""
OWNERS_MAX = 16
ELEMENT_BYTES = 4


def divide(run: Run, owners: Sequence[PeerId]) -> tuple[FragmentParts, ...]:
    """The parts of each fragment, for a view in which these peers may own parts."""
    if run.gossip:
        return tuple(map(undivided, run.fragment_elements))
    return tuple(cut_parts(size, owners, grain=run.grain) for size in run.fragment_elements)


def undivided(elements: int) -> FragmentParts:
    """One part without an owner: in a gossip run each peer sums the whole fragment for itself."""
    return FragmentParts(owners=(), borders=(0, elements))


def cut_parts(elements: int, among: Sequence[PeerId], *, grain: int = 1) -> FragmentParts:
    """Divide a fragment of `elements` fp32 values evenly among owners, chosen from these peers.

    Parts begin at multiples of the codec's `grain` (elements that are encoded together).
    """
    assert among, "a view without a roster has no owners"
    wanted = -(-elements * ELEMENT_BYTES // PART_BYTES_MIN)
    count = max(1, min(len(among), wanted, OWNERS_MAX))
    grains = -(-elements // grain)
    borders = [min(elements, grains * i // count * grain) for i in range(count)]
    return FragmentParts(owners=tuple(sorted(among)[:count]), borders=(*borders, elements))


def replace_owners(parts: FragmentParts, live: Sequence[PeerId]) -> tuple[PeerId, ...]:
    """Owners for the same borders: each part of a lost owner goes to the live peer with the fewest
    parts.

    Live owners keep their parts, since they have received slices of these already.
    """
    assert live, "no live peer can own anything"
    load = {peer: sum(owner == peer for owner in parts.owners) for peer in live}
    owners: list[PeerId] = []
    for owner in parts.owners:
        if owner in load:
            owners.append(owner)
        else:
            heir = min(load, key=lambda peer: (load[peer], peer))
            load[heir] += 1
            owners.append(heir)
    return tuple(owners)
