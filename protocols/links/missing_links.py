"""Links that are missing between members who all hear the leader: who takes no part until they are
there again.

A round needs every contributor connected with every owner. The leader leaves out the fewest peers
with whom gone all others are connected with each other: a smallest vertex cover of the missing
links. Must NOT measure anything: members say themselves whom they miss.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from protocols.types.ids import PeerId

STEPS_MAX = 4096
"""Of the search for the smallest cover; what it found by then is taken. Enough for some 20 links
that are missing at random, and more of what a partition leaves."""
SAID_MAX = 3
"""Links that a reason names."""

Gap = tuple[PeerId, PeerId]
"""A link that is missing; the smaller id first."""


@dataclass(slots=True)
class Gaps:
    """What members said of whom they miss."""

    missed: dict[PeerId, frozenset[PeerId]] = field(default_factory=dict[PeerId, frozenset[PeerId]])

    def report(self, peer: PeerId, missed: Iterable[PeerId]) -> None:
        """All whom the peer misses at this moment; nobody: as before."""
        self.forget(peer)
        if found := frozenset(missed) - {peer}:
            self.missed[peer] = found

    def forget(self, peer: PeerId) -> None:
        """It is gone, or another one now."""
        self.missed.pop(peer, None)

    def among(self, peers: Set[PeerId], *, but: PeerId) -> frozenset[Gap]:
        """The links that are missing among these; of `but`, who leads, we know ourselves."""
        concerned = peers - {but}
        return frozenset(
            (min(one, other), max(one, other))
            for one, missed in self.missed.items()
            if one in concerned
            for other in missed & concerned
        )

    def without(self, peers: Set[PeerId], *, but: PeerId, seats: Collection[PeerId]) -> set[PeerId]:
        """Whom to leave out of these. `seats`: members, the longest-lived first: of two the later
        one goes."""
        if not self.missed:
            return set()
        return cover(self.among(peers, but=but), [peer for peer in seats if peer in peers])


def cover(gaps: Set[Gap], order: Sequence[PeerId]) -> set[PeerId]:
    """A smallest set that has an end of every gap, or nearly; of several the one that is found
    first if who comes later in `order` goes first. All ends are in `order`."""
    neighbours: dict[PeerId, set[PeerId]] = {}
    for one, other in gaps:
        neighbours.setdefault(one, set()).add(other)
        neighbours.setdefault(other, set()).add(one)
    return _Search({peer: place for place, peer in enumerate(order)}).cover(neighbours)


class _Search:
    """Depth first, the peer with most gaps first; cut off where it cannot become better."""

    def __init__(self, place: Mapping[PeerId, int]) -> None:
        self._place = place
        self._steps = 0
        self._best: set[PeerId] | None = None

    def cover(self, neighbours: Mapping[PeerId, Set[PeerId]]) -> set[PeerId]:
        pending: list[tuple[dict[PeerId, set[PeerId]], set[PeerId]]] = [
            ({peer: set(others) for peer, others in neighbours.items()}, set())
        ]
        while pending and (self._best is None or self._steps < STEPS_MAX):
            self._steps += 1
            left, chosen = pending.pop()
            if self._best is not None and len(chosen) + _least(left) >= len(self._best):
                continue
            if not left:
                self._best = chosen
                continue
            peer = max(left, key=lambda each: (len(left[each]), self._place[each]))
            others = left[peer]
            if len(others) > 1:  # Else nothing is gained by leaving it in.
                pending.append((_removed(left, others), chosen | others))
            pending.append((_removed(left, {peer}), chosen | {peer}))
        assert self._best is not None, "the first way down is always gone to its end"
        return self._best


def _least(left: Mapping[PeerId, Set[PeerId]]) -> int:
    """At least so many have to go yet."""
    most = max((len(others) for others in left.values()), default=0)
    gaps = sum(len(others) for others in left.values()) // 2
    return -(-gaps // most) if most else 0


def _removed(left: Mapping[PeerId, Set[PeerId]], gone: Set[PeerId]) -> dict[PeerId, set[PeerId]]:
    rest = {peer: set(others - gone) for peer, others in left.items() if peer not in gone}
    return {peer: others for peer, others in rest.items() if others}


def described(gaps: Set[Gap], names: Mapping[PeerId, str]) -> str:
    """ "no link between beta and gamma"."""
    pairs = [f"{names.get(a, a)} and {names.get(b, b)}" for a, b in sorted(gaps)]
    more = f", and {len(pairs) - SAID_MAX} more" if len(pairs) > SAID_MAX else ""
    return f"no link between {', '.join(pairs[:SAID_MAX])}{more}"
