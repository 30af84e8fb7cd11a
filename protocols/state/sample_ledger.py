"""The sample ledger: which peer holds which samples, as a pure function of the log (I10).

A sample below the frontier is held by one incarnation of a peer, or free, or committed. Committed
samples are all the others, so nothing here grows with the run. Must NOT know what a sample is, nor
decide which peer gets it (leader/sample_leases.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from protocols.messages.snapshot import DepartedSamples, HeldSamples, SampleLedgerSnapshot
from protocols.types.ids import PeerId, PeerInfo
from protocols.types.sample_ranges import (
    RANGES_MAX,
    REMAINING_MAX,
    START,
    Grant,
    Remaining,
    SampleRange,
    Samples,
    contains,
    count,
    intersection,
    merged,
    subtract,
    union,
    union_of,
    well_formed,
)

CLAIM_RANGES_MAX = 256
"""Ranges that one peer may have claims on. Ranks draw the lowest samples first, so a lease of at
most 33 ranges (leader/sample_leases.py) gets shorter from its beginning, and only a crash leaves a
hole: a peer that follows the rules has fewer ranges."""
RANGES_LEFT_MAX = REMAINING_MAX // 2
"""Ranges of all peers. Beyond it there is room for 64 peers that leave, in one round, as many
ranges as their contributions have."""
assert RANGES_LEFT_MAX + 64 * RANGES_MAX <= REMAINING_MAX


@dataclass(slots=True)
class SampleLedger:
    """Only run_state.py changes it, entry by entry."""

    frontier: int = 0
    """The first sample that was never leased in this lineage."""
    free: Samples = ()
    """Samples below the frontier that are neither held nor committed. They are leased first."""
    held: dict[PeerId, HeldSamples] = field(default_factory=dict[PeerId, HeldSamples])
    """Samples that present incarnations hold, by peer."""
    gone: list[DepartedSamples] = field(default_factory=list[DepartedSamples])
    """Samples of incarnations that are over, or seem to be: a commit may still count them."""
    again: int = 0
    """Number of leased samples that another incarnation had held before."""

    # Queries --------------------------------------------------------------------------------

    def held_by(self, peer: PeerId, incarnation: int) -> Samples:
        """Samples that this incarnation may train; also while it is lost, since it may return with
        its work."""
        held = self.held.get(peer)
        if held is not None and held.incarnation == incarnation:
            return held.samples
        lost = (gone.held for gone in self.gone)
        same = (x.samples for x in lost if (x.peer, x.incarnation) == (peer, incarnation))
        return next(same, ())

    def claims(self, peer: PeerId) -> Samples:
        """Samples that a commit may count for this peer, also of its earlier incarnations."""
        held = self.held.get(peer)
        samples = held.samples if held is not None else ()
        for gone in self.gone:
            if gone.held.peer == peer:
                samples = union(samples, gone.held.samples)
        return samples

    def may_count(self, peer: PeerId, samples: Samples) -> bool:
        """May a commit count these samples for the peer? It needs a claim on all of them, and the
        remaining ranges of all peers must fit into a message."""
        claims = self.claims(peer)
        if not contains(claims, samples):
            return False
        left = len(subtract(claims, samples))
        more = left - len(claims)
        if more <= 0:
            return True  # The usual case.
        whole = len(self.remaining.samples) + more
        return left <= CLAIM_RANGES_MAX and whole <= RANGES_LEFT_MAX

    @property
    def remaining(self) -> Remaining:
        """All samples that are not committed."""
        held = (*self.held.values(), *(gone.held for gone in self.gone))
        return Remaining(self.frontier, union_of((self.free, *(x.samples for x in held))))

    @property
    def consumed(self) -> int:
        """Number of committed samples in this lineage."""
        return self.frontier - count(self.remaining.samples)

    def objection(self, grants: Iterable[Grant]) -> str:
        """Why these grants cannot be leased now; "" if they can."""
        free, new = self.free, list[SampleRange]()
        for grant in grants:
            if not grant.samples or not well_formed(grant.samples):
                return f"leases an invalid set of samples to {grant.peer}"
            old = subtract(grant.samples, (SampleRange(self.frontier, grant.samples[-1].stop),))
            if not contains(free, old):
                return f"leases samples to {grant.peer} that are not free"
            free = subtract(free, old)
            new += subtract(grant.samples, old)
        length = sum(x.stop - x.start for x in new)
        following = (SampleRange(self.frontier, self.frontier + length),) if new else ()
        whole = merged(sorted(new, key=START)) == following
        return "" if whole else "leases new samples twice, or leaves some out"

    # Entries of the log ---------------------------------------------------------------------

    def lease(self, grant: Grant, *, incarnation: int, came: int) -> None:
        """Lease samples to this incarnation of a peer; `came`: the newest view when it
        (re)joined."""
        old = self.held.get(grant.peer)
        before = old if old is not None else HeldSamples(grant.peer, incarnation, came, ())
        self.held[grant.peer] = before.having(union(before.samples, grant.samples))
        self.again += count(intersection(grant.samples, self.free))
        self.free = subtract(self.free, grant.samples)
        self.frontier = max(self.frontier, grant.samples[-1].stop)

    def committed(self, peer: PeerId, samples: Samples) -> None:
        """Commit samples of this peer, of whichever of its incarnations."""
        held = self.held.get(peer)
        if held is not None:
            self.held[peer] = held.having(subtract(held.samples, samples))
        for place, gone in enumerate(self.gone):
            if gone.held.peer == peer:
                rest = gone.held.having(subtract(gone.held.samples, samples))
                self.gone[place] = replace(gone, held=rest)

    def went(self, peer: PeerId, *, view: int, until: int) -> None:
        """The peer is gone. Its samples are kept until round `until` is committed: if it returns by
        then, its work counts."""
        held = self.held.pop(peer, None)
        if held is not None:
            self.gone.append(DepartedSamples(held, view, until))

    def came(self, info: PeerInfo, *, view: int) -> None:
        """The peer (re)joins. Work of its earlier incarnations is lost."""
        held = self.held.get(info.peer)
        if held is not None and held.incarnation != info.incarnation:
            self.went(info.peer, view=view, until=0)
        for place, gone in enumerate(self.gone):
            if gone.held.peer != info.peer:
                continue
            if gone.held.incarnation == info.incarnation:
                del self.gone[place]
                self.held[info.peer] = gone.held
                return
            self.gone[place] = replace(gone, until=0)

    def settle(self, *, round_: int, view: int, roster: Iterable[PeerId]) -> None:
        """`round_` is committed, and this roster of this view takes part in the next round.

        While the roster names an incarnation that is gone, a commit may still count its
        contribution; its samples are not leased again before, as they would count twice.
        """
        named = set(roster)
        for gone in list(self.gone):
            counts = gone.held.peer in named and gone.held.came < view <= gone.view
            if not counts and round_ >= gone.until:
                self.gone.remove(gone)
                self.free = union(self.free, gone.held.samples)

    def restore(self, remaining: Remaining) -> None:
        """A rollback: samples that were committed later, and all held samples, are free."""
        self.frontier, self.free = remaining.frontier, remaining.samples
        self.held, self.gone = {}, []

    def take_back(self, counted: Iterable[tuple[PeerId, int, Samples]]) -> None:
        """An in-memory rollback: these contributions (peer, view, samples) are not committed after
        all. A peer that is still in holds its samples again; for others they are free. Views are
        numbered anew."""
        for peer, view, samples in counted:
            held = self.held.get(peer)
            if held is not None and held.came < view:
                self.held[peer] = held.having(union(held.samples, samples))
            else:
                self.free = union(self.free, samples)
        self.held = {peer: replace(held, came=0) for peer, held in self.held.items()}
        self.gone = [replace(x, held=replace(x.held, came=0), view=0) for x in self.gone]

    # Plain data -----------------------------------------------------------------------------

    def books(self) -> SampleLedgerSnapshot:
        """The whole ledger as plain records, for a snapshot."""
        return SampleLedgerSnapshot(
            frontier=self.frontier,
            free=self.free,
            held=tuple(self.held.values()),
            gone=tuple(self.gone),
            again=self.again,
        )

    def become(self, books: SampleLedgerSnapshot) -> None:
        self.frontier, self.free, self.again = books.frontier, books.free, books.again
        self.held = {held.peer: held for held in books.held}
        self.gone = list(books.gone)
