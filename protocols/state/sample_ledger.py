"""Who trains which samples: a pure function of the log, like the membership that owns it (I10).

A sample below the frontier is held by one life of one peer, free, or committed; what is committed
is what is left over, so that nothing here grows with the run. Must NOT know what the samples are,
nor decide who gets some (leader/sample_leases.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from protocols.messages.snapshot import Books, Gone, Held
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
"""Of one peer. Ranks draw the lowest first, so that a lease of at most 33 ranges
(leader/sample_leases.py) gets shorter from its beginning, and only a crash leaves a hole: several
lives of one make fewer."""
RANGES_LEFT_MAX = REMAINING_MAX // 2
"""Of all: beyond that, in one round each of 64 peers may still leave as many as its contribution
has ranges."""
assert RANGES_LEFT_MAX + 64 * RANGES_MAX <= REMAINING_MAX


@dataclass(slots=True)
class Ledger:
    """Changed by run_state.py alone, entry by entry."""

    frontier: int = 0
    """The first sample that nobody was ever given in this lineage."""
    free: Samples = ()
    """Below the frontier: nobody holds them, and no commit has them. They are leased first."""
    held: dict[PeerId, Held] = field(default_factory=dict[PeerId, Held])
    """By the present life of each."""
    gone: list[Gone] = field(default_factory=list[Gone])
    """By lives that are over, or seem so: they may still be counted."""
    again: int = 0
    """How many samples were leased that somebody had held before."""

    # Questions ------------------------------------------------------------------------------

    def of(self, peer: PeerId, incarnation: int) -> Samples:
        """What this life may train; also while it is lost, since it may come back with its work."""
        held = self.held.get(peer)
        if held is not None and held.incarnation == incarnation:
            return held.samples
        lost = (gone.held for gone in self.gone)
        same = (x.samples for x in lost if (x.peer, x.incarnation) == (peer, incarnation))
        return next(same, ())

    def claims(self, peer: PeerId) -> Samples:
        """What a commit may count for this peer: of its earlier lives too."""
        held = self.held.get(peer)
        samples = held.samples if held is not None else ()
        for gone in self.gone:
            if gone.held.peer == peer:
                samples = union(samples, gone.held.samples)
        return samples

    def may_count(self, peer: PeerId, samples: Samples) -> bool:
        """The peer has claims on all of them, and does not tear them up: what it leaves behind has
        to fit into a message, with what all others do."""
        claims = self.claims(peer)
        if not contains(claims, samples):
            return False
        left = len(subtract(claims, samples))
        more = left - len(claims)
        if more <= 0:
            return True  # As mostly.
        whole = len(self.remaining.samples) + more
        return left <= CLAIM_RANGES_MAX and whole <= RANGES_LEFT_MAX

    @property
    def remaining(self) -> Remaining:
        """What is not committed, whoever has it."""
        held = (*self.held.values(), *(gone.held for gone in self.gone))
        return Remaining(self.frontier, union_of((self.free, *(x.samples for x in held))))

    @property
    def consumed(self) -> int:
        """How many samples are committed in this lineage."""
        return self.frontier - count(self.remaining.samples)

    def objection(self, grants: Iterable[Grant]) -> str:
        """Why these cannot be leased now; "": they can."""
        free, new = self.free, list[SampleRange]()
        for grant in grants:
            if not grant.samples or not well_formed(grant.samples):
                return f"leases no set of samples to {grant.peer}"
            old = subtract(grant.samples, (SampleRange(self.frontier, grant.samples[-1].stop),))
            if not contains(free, old):
                return f"leases samples to {grant.peer} that are not free"
            free = subtract(free, old)
            new += subtract(grant.samples, old)
        length = sum(x.stop - x.start for x in new)
        following = (SampleRange(self.frontier, self.frontier + length),) if new else ()
        whole = merged(sorted(new, key=START)) == following
        return "" if whole else "leases new samples twice, or leaves some out"

    # What the log says ----------------------------------------------------------------------

    def lease(self, grant: Grant, *, incarnation: int, came: int) -> None:
        """These are the peer's, in this life; `came`: the newest view when it came (back)."""
        old = self.held.get(grant.peer)
        before = old if old is not None else Held(grant.peer, incarnation, came, ())
        self.held[grant.peer] = before.having(union(before.samples, grant.samples))
        self.again += count(intersection(grant.samples, self.free))
        self.free = subtract(self.free, grant.samples)
        self.frontier = max(self.frontier, grant.samples[-1].stop)

    def committed(self, peer: PeerId, samples: Samples) -> None:
        """They are part of the model, whichever life of the peer saw them."""
        held = self.held.get(peer)
        if held is not None:
            self.held[peer] = held.having(subtract(held.samples, samples))
        for place, gone in enumerate(self.gone):
            if gone.held.peer == peer:
                rest = gone.held.having(subtract(gone.held.samples, samples))
                self.gone[place] = replace(gone, held=rest)

    def went(self, peer: PeerId, *, view: int, until: int) -> None:
        """The peer is gone. What it holds is kept for it until this round is committed: if it
        comes back by then, its work counts."""
        held = self.held.pop(peer, None)
        if held is not None:
            self.gone.append(Gone(held, view, until))

    def came(self, info: PeerInfo, *, view: int) -> None:
        """The peer gets in (again). What an earlier life of it had trained is gone with it."""
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
        """`round_` is committed, and this roster of this view takes part in the next one.

        While it names a life that is gone, the bytes which that life sent may still be counted:
        to lease its samples again would count them twice.
        """
        named = set(roster)
        for gone in list(self.gone):
            counts = gone.held.peer in named and gone.held.came < view <= gone.view
            if not counts and round_ >= gone.until:
                self.gone.remove(gone)
                self.free = union(self.free, gone.held.samples)

    def restore(self, remaining: Remaining) -> None:
        """The run went back: what was committed after the cut, and all that is held, is free."""
        self.frontier, self.free = remaining.frontier, remaining.samples
        self.held, self.gone = {}, []

    def take_back(self, counted: Iterable[tuple[PeerId, int, Samples]]) -> None:
        """These contributions (who, in which view, what they saw) are not committed after all: who
        made them and is still in has them to make again. Views are numbered anew."""
        for peer, view, samples in counted:
            held = self.held.get(peer)
            if held is not None and held.came < view:
                self.held[peer] = held.having(union(held.samples, samples))
            else:
                self.free = union(self.free, samples)
        self.held = {peer: replace(held, came=0) for peer, held in self.held.items()}
        self.gone = [replace(x, held=replace(x.held, came=0), view=0) for x in self.gone]

    # Plain data -----------------------------------------------------------------------------

    def books(self) -> Books:
        """Everything, for a snapshot."""
        return Books(
            frontier=self.frontier,
            free=self.free,
            held=tuple(self.held.values()),
            gone=tuple(self.gone),
            again=self.again,
        )

    def become(self, books: Books) -> None:
        self.frontier, self.free, self.again = books.frontier, books.free, books.again
        self.held = {held.peer: held for held in books.held}
        self.gone = list(books.gone)
