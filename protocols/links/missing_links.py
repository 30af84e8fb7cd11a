"""Missing links between members that all hear the leader: chooses the peers to exclude until the
links are back.

In a round every contributor must be connected with every owner. The leader excludes the smallest
set of peers without which all others are connected with each other: a minimum vertex cover of the
missing links. Must NOT measure links: members report which peers they miss.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from protocols.types.ids import PeerId

STEPS_MAX = 4096
"""Steps of the search for the minimum cover; the best one found by then is taken. It is enough for
about 20 links that are missing at random, and for more after a partition."""
SAID_MAX = 3
"""Links that a reason lists by name."""

Gap = tuple[PeerId, PeerId]
"""A missing link; the smaller id comes first."""


@dataclass(slots=True)
class MissingLinks:
    """The missing links that members have reported."""

    missed: dict[PeerId, frozenset[PeerId]] = field(default_factory=dict[PeerId, frozenset[PeerId]])

    def report(self, peer: PeerId, missed: Iterable[PeerId]) -> None:
        """Record all peers that this peer misses now; an empty report clears its earlier one."""
        self.forget(peer)
        if found := frozenset(missed) - {peer}:
            self.missed[peer] = found

    def forget(self, peer: PeerId) -> None:
        """Forget the reports of a peer that is gone or has restarted."""
        self.missed.pop(peer, None)

    def among(self, peers: Set[PeerId], *, but: PeerId) -> frozenset[Gap]:
        """Missing links among these peers, without those of `but`, the leader, which knows its
        own."""
        concerned = peers - {but}
        return frozenset(
            (min(one, other), max(one, other))
            for one, missed in self.missed.items()
            if one in concerned
            for other in missed & concerned
        )

    def without(self, peers: Set[PeerId], *, but: PeerId, seats: Collection[PeerId]) -> set[PeerId]:
        """The peers to exclude from these. `seats`: members in the order in which they joined; of
        two the later one is excluded."""
        if not self.missed:
            return set()
        return cover(self.among(peers, but=but), [peer for peer in seats if peer in peers])


def cover(gaps: Set[Gap], order: Sequence[PeerId]) -> set[PeerId]:
    """A minimum vertex cover of the gaps, or nearly. Of several covers the one is taken that the
    search finds first when it excludes later peers of `order` first. All ends of gaps are in
    `order`."""
    neighbours: dict[PeerId, set[PeerId]] = {}
    for one, other in gaps:
        neighbours.setdefault(one, set()).add(other)
        neighbours.setdefault(other, set()).add(one)
    return _Search({peer: place for place, peer in enumerate(order)}).cover(neighbours)


class _Search:
    """Depth-first branch and bound; the peer with the most gaps comes first."""

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
            if len(others) > 1:  # Otherwise keeping it gains nothing.
                pending.append((_removed(left, others), chosen | others))
            pending.append((_removed(left, {peer}), chosen | {peer}))
        assert self._best is not None, "the first way down is always gone to its end"
        return self._best


def _least(left: Mapping[PeerId, Set[PeerId]]) -> int:
    """A lower bound of the peers that must still be excluded."""
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
