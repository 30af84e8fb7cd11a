"""Complaints about wrong results, and the peers that follow from them.

A complaint names peers of which one is at fault, unless the complaining peer itself is: it is true
that one of the named peers or the complaining one is at fault, whatever a single peer does. Must
NOT decide what happens to a peer (leader/decisions.py).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass, field

from protocols.state.round_plan import RoundPlan
from protocols.types.frozen import record
from protocols.types.ids import PeerId, Stamp


@record
class Complaint:
    """A peer's report about the result of one part."""

    reporter: PeerId
    stamp: Stamp
    part: int
    peers: frozenset[PeerId]

    def fits(self, plan: RoundPlan) -> bool:
        """Is it about contributors of this plan, among them the owner of the part, and made by
        another one?"""
        others = set(plan.roster) - {self.reporter}
        owner = plan.owner_of(self.part)
        return self.reporter in plan.counted and owner in self.peers and self.peers <= others

    @property
    def suspects(self) -> frozenset[PeerId]:
        """One of these is at fault."""
        return self.peers | {self.reporter}


def least_trusted(complaints: Collection[Complaint], among: Set[PeerId]) -> PeerId | None:
    """Of `among`, the peer that most complaints leave in doubt, if they are about several attempts
    of a round; None if they are about one: then other owners are enough. So a peer that complains
    again and again, and is the only one, is excluded from the round as well."""
    if len({each.stamp for each in complaints}) < 2:
        return None
    doubts = Counter(peer for each in complaints for peer in each.suspects & among)
    return max(sorted(doubts), key=lambda peer: doubts[peer], default=None)


def proved(sets: Iterable[tuple[PeerId, frozenset[PeerId]]]) -> frozenset[PeerId]:
    """The peers at fault by the word of two others: two complaints have only this peer in common,
    and name neither of the two that made them. `sets`: (reporter, named peers)."""
    known = sorted(sets, key=lambda each: (each[0], sorted(each[1])))
    found: set[PeerId] = set()
    for number, (one, first) in enumerate(known):
        for other, second in known[number + 1 :]:
            common = first & second
            if one != other and len(common) == 1 and not {one, other} & (first | second):
                found |= common
    return frozenset(found)


Named = tuple[PeerId, frozenset[PeerId]]
"""(reporter, named peers)."""


@dataclass(slots=True)
class Suspicions:
    """The complaints of one term from which something may follow.

    Those that name several peers count together with others of the same round only: if one peer
    lies and later another one, complaints about the two may have an honest peer in common.
    """

    alone: set[Named] = field(default_factory=set[Named])
    """Complaints that name one peer, of all rounds."""
    several: dict[int, set[Named]] = field(default_factory=dict[int, set[Named]])
    """By fragment, the complaints about its newest round that name several peers."""
    distrusted: set[PeerId] = field(default_factory=set[PeerId])
    """Peers that were proved to be at fault. They own no parts."""
    _lineage: int = 0
    """The lineage of all rounds here: those of another one are forgotten."""
    _rounds: dict[int, int] = field(default_factory=dict[int, int])
    """The rounds of `several`."""
    _explained: dict[tuple[PeerId, int], tuple[int, int, int]] = field(
        default_factory=dict[tuple[PeerId, int], tuple[int, int, int]]
    )
    """By (proved peer, fragment), the attempt (round, view, attempt) of the last complaint that
    proved it."""

    def add(self, complaint: Complaint) -> list[PeerId]:
        """Returns the peers that this complaint proves to be at fault. What led to that is spent: a
        peer that comes back is judged by complaints about later attempts."""
        stamp = complaint.stamp
        if stamp.lineage != self._lineage:
            self._lineage = stamp.lineage
            for table in (self.several, self._rounds, self._explained):
                table.clear()
        at, fragment = (stamp.round, stamp.view, stamp.attempt), stamp.fragment
        if any(at <= self._explained.get((peer, fragment), ()) for peer in complaint.peers):
            return []  # With a later liar it would prove that an honest peer named here is one.
        self._keep(complaint)
        groups = [set[Named](), *self.several.values()]
        found = frozenset[PeerId]().union(*(proved(self.alone | group) for group in groups))
        self.distrusted |= found
        self.alone = {each for each in self.alone if not each[1] & found}
        for key, group in self.several.items():
            self.several[key] = {each for each in group if not each[1] & found}
        self._explained |= {(peer, fragment): at for peer in found}
        return sorted(found)

    def _keep(self, complaint: Complaint) -> None:
        named, stamp = (complaint.reporter, complaint.peers), complaint.stamp
        if len(complaint.peers) == 1:
            self.alone.add(named)
            return
        if self._rounds.get(stamp.fragment, -1) < stamp.round:
            self._rounds[stamp.fragment], self.several[stamp.fragment] = stamp.round, set()
        if self._rounds[stamp.fragment] == stamp.round:
            self.several[stamp.fragment].add(named)
