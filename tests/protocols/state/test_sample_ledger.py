"""Every sample below the frontier is free, held by one life, or committed: whatever happens."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.state.sample_ledger import CLAIM_RANGES_MAX, RANGES_LEFT_MAX, SampleLedger
from protocols.types.ids import PeerId
from protocols.types.sample_ranges import (
    ALL_REMAIN,
    RANGES_MAX,
    Grant,
    Remaining,
    SampleRange,
    Samples,
    count,
    first,
)
from tests.protocols.scenes import A, B, C, info

NOBODY: tuple[PeerId, ...] = ()


def ranges(*pairs: tuple[int, int]) -> Samples:
    return tuple(SampleRange(start, stop) for start, stop in pairs)


def numbers(samples: Samples) -> set[int]:
    return {number for one in samples for number in range(one.start, one.stop)}


def leased(**pairs: tuple[int, int]) -> SampleLedger:
    """To A, B or C, by their letters; each in its first life."""
    ledger = SampleLedger()
    for name, pair in pairs.items():
        grant(ledger, {"a": A, "b": B, "c": C}[name], pair)
    return ledger


def grant(
    ledger: SampleLedger, peer: PeerId, *pairs: tuple[int, int], incarnation: int = 1, came: int = 0
) -> None:
    one = Grant(peer, ranges(*pairs))
    assert ledger.objection([one]) == ""
    ledger.lease(one, incarnation=incarnation, came=came)


def test_what_is_committed_is_nobodys() -> None:
    ledger = leased(a=(0, 10), b=(10, 20))
    ledger.committed(A, ranges((0, 4)))
    assert ledger.held_by(A, 1) == ranges((4, 10))
    assert ledger.remaining == Remaining(20, ranges((4, 20)))
    assert ledger.consumed == 4


def test_a_peer_commits_only_what_it_holds() -> None:
    ledger = leased(a=(0, 10), b=(10, 20))
    ledger.committed(A, ranges((8, 15)))
    assert ledger.held_by(B, 1) == ranges((10, 20))
    assert ledger.consumed == 2


def singles(first: int, many: int) -> Samples:
    """With a gap after each."""
    return ranges(*((first + 2 * n, first + 2 * n + 1) for n in range(many)))


def test_a_contribution_leaves_no_more_pieces_than_messages_hold() -> None:
    ledger, at = leased(a=(0, 1 << 20), b=(1 << 20, 1 << 21)), 1
    while ledger.may_count(A, singles(at, RANGES_MAX)):
        ledger.committed(A, singles(at, RANGES_MAX))
        at += 2 * RANGES_MAX
    pieces = len(ledger.held_by(A, 1))
    assert CLAIM_RANGES_MAX - RANGES_MAX < pieces <= CLAIM_RANGES_MAX
    ledger.committed(A, singles(at, 2 * RANGES_MAX))
    assert len(ledger.held_by(A, 1)) > CLAIM_RANGES_MAX + 2
    assert ledger.may_count(A, ranges((0, 1), (2, 3))), "which only takes pieces away"
    assert ledger.may_count(B, singles((1 << 20) + 1, RANGES_MAX)), "others may still have holes"
    assert not ledger.may_count(B, ranges((0, 1)))


def test_nor_do_all_together() -> None:
    """Who goes leaves its pieces to others, and may come again."""
    free = singles(0, RANGES_LEFT_MAX - 2)
    ledger, start = SampleLedger(), free[-1].stop + 1
    ledger.restore(Remaining(free[-1].stop, free))
    grant(ledger, A, (free[-1].stop, start + 9))
    assert len(ledger.remaining.samples) == RANGES_LEFT_MAX - 2
    assert ledger.may_count(A, singles(start, 2))
    assert not ledger.may_count(A, singles(start, 3))


def test_what_a_lost_peer_held_waits_for_it_and_then_is_free() -> None:
    ledger = leased(a=(0, 10), b=(10, 20))
    ledger.went(B, view=1, until=7)
    for round_ in (1, 6):
        ledger.settle(round_=round_, view=2, roster=(A,))
        assert (ledger.free, ledger.held_by(B, 1)) == ((), ranges((10, 20)))
    ledger.settle(round_=7, view=2, roster=(A,))
    assert (ledger.free, ledger.held_by(B, 1)) == (ranges((10, 20)), ())
    assert ledger.gone == []


def test_while_an_open_roster_names_a_lost_peer_nothing_of_it_is_free() -> None:
    ledger = leased(b=(0, 10))
    ledger.went(B, view=3, until=0)
    ledger.settle(round_=9, view=3, roster=(A, B))
    assert ledger.free == ()
    ledger.committed(B, ranges((0, 4)))  # The dead still counts.
    ledger.settle(round_=10, view=3, roster=(A,))
    assert ledger.free == ranges((4, 10))


@pytest.mark.parametrize(
    ("view", "roster"), [(4, (A, B)), (3, (A,)), (0, NOBODY)], ids=["view", "attempt", "none"]
)
def test_a_new_view_or_an_attempt_without_it_gives_them_back(
    view: int, roster: tuple[PeerId, ...]
) -> None:
    """A later view that names the peer means its next life."""
    ledger = leased(b=(0, 10))
    ledger.went(B, view=3, until=0)
    ledger.settle(round_=9, view=view, roster=roster)
    assert ledger.free == ranges((0, 10))


def test_a_view_from_before_a_life_means_another_one() -> None:
    ledger = SampleLedger()
    grant(ledger, B, (0, 10), came=3)
    ledger.went(B, view=3, until=0)
    ledger.settle(round_=9, view=3, roster=(A, B))
    assert ledger.free == ranges((0, 10))


def test_who_comes_back_in_the_same_life_has_its_samples_again() -> None:
    ledger = leased(b=(0, 10))
    ledger.went(B, view=1, until=7)
    ledger.came(info(B), view=1)
    ledger.settle(round_=99, view=2, roster=(A, B))
    assert ledger.held_by(B, 1) == ranges((0, 10))
    assert ledger.gone == []


def test_a_new_life_holds_nothing_of_the_old_one() -> None:
    ledger = leased(b=(0, 10))
    ledger.came(info(B, incarnation=2), view=1)
    assert ledger.held_by(B, 2) == ()
    assert ledger.claims(B) == ranges((0, 10))  # A round may be open that counts it.
    grant(ledger, B, (10, 20), incarnation=2, came=1)
    assert ledger.claims(B) == ranges((0, 20))
    ledger.settle(round_=1, view=2, roster=(A, B))
    assert (ledger.free, ledger.held_by(B, 2)) == (ranges((0, 10)), ranges((10, 20)))


def test_a_new_life_of_a_lost_peer_does_not_wait_for_its_old_work() -> None:
    ledger = leased(b=(0, 10))
    ledger.went(B, view=1, until=99)
    ledger.came(info(B, incarnation=2), view=1)
    ledger.settle(round_=1, view=1, roster=(A,))
    assert ledger.free == ranges((0, 10))


@pytest.mark.parametrize(("came", "holds"), [(2, True), (3, False), (4, False)])
def test_samples_of_a_void_round_go_to_the_life_that_was_in_its_view(
    came: int, holds: bool
) -> None:
    """A life that came later has not seen them: another peer trains them."""
    ledger = leased(a=(0, 10))
    grant(ledger, B, (10, 20), came=came)
    ledger.committed(B, ranges((10, 15)))
    ledger.take_back([(B, 3, ranges((10, 15)))])
    assert ledger.held_by(B, 1) == (ranges((10, 20)) if holds else ranges((15, 20)))
    assert ledger.free == (() if holds else ranges((10, 15)))


def test_what_was_free_and_is_leased_is_counted() -> None:
    ledger = leased(b=(0, 10))
    ledger.went(B, view=1, until=0)
    ledger.settle(round_=1, view=2, roster=(A,))
    grant(ledger, A, (0, 14))
    assert (ledger.again, ledger.frontier, ledger.free) == (10, 14, ())


def test_a_restore_frees_all_that_is_not_committed_at_the_cut() -> None:
    ledger = leased(a=(0, 10), b=(10, 20))
    ledger.committed(A, ranges((0, 10)))
    ledger.went(B, view=1, until=9)
    ledger.restore(Remaining(12, ranges((5, 12))))
    assert (ledger.frontier, ledger.free) == (12, ranges((5, 12)))
    assert (ledger.held, ledger.gone) == ({}, [])


@pytest.mark.parametrize(
    "pairs",
    [
        [[]],
        [[(3, 4)]],  # A has it.
        [[(21, 30)]],  # 20 would never be leased.
        [[(20, 30)], [(25, 35)]],
        [[(20, 30)], [(30, 35), (36, 40)]],
        [[(12, 14)], [(13, 15)]],
        [[(14, 12)]],
    ],
)
def test_leases_of_what_is_not_free_are_refused(pairs: list[list[tuple[int, int]]]) -> None:
    ledger = leased(a=(0, 10), b=(10, 20))
    ledger.went(B, view=1, until=0)
    ledger.settle(round_=1, view=2, roster=(A,))
    grants = [Grant(peer, ranges(*one)) for peer, one in zip((A, C), pairs, strict=False)]
    assert ledger.objection(grants)


def test_leases_may_reach_over_the_frontier() -> None:
    ledger = leased(a=(0, 10), b=(10, 20))
    ledger.went(B, view=1, until=0)
    ledger.settle(round_=1, view=2, roster=(A,))
    grants = [Grant(C, ranges((10, 12), (15, 25))), Grant(A, ranges((25, 30)))]
    assert ledger.objection(grants) == ""


PEERS = st.sampled_from([A, B, C])
DOINGS = st.lists(
    st.tuples(
        st.sampled_from(["lease", "commit", "lose", "leave", "back", "reborn", "round"]),
        PEERS,
        st.integers(0, 12),
    ),
    max_size=40,
)


class Story:
    """Each sample's fate, one by one, beside the ledger."""

    def __init__(self) -> None:
        self.ledger = SampleLedger()
        self.committed: set[int] = set()
        self.lives = dict.fromkeys((A, B, C), 1)
        self.here = {A, B, C}
        self.round = 0
        self.view = 1

    def do(self, what: str, peer: PeerId, size: int) -> None:
        ledger, me = self.ledger, info(peer, incarnation=self.lives[peer])
        if what == "lease" and size and peer in self.here:
            free = first(ledger.free, size, ranges_max=3)
            new = SampleRange(ledger.frontier, ledger.frontier + size)
            pairs = free or (new,)
            assert ledger.objection([Grant(peer, pairs)]) == ""
            ledger.lease(Grant(peer, pairs), incarnation=me.incarnation, came=0)
        elif what == "commit":
            taken = first(ledger.claims(peer), size, ranges_max=9)
            self.committed |= numbers(taken)
            ledger.committed(peer, taken)
        elif what in ("lose", "leave") and peer in self.here:
            self.here.discard(peer)
            ledger.went(peer, view=self.view, until=self.round + 3 if what == "lose" else 0)
        elif what in ("back", "reborn"):
            self.lives[peer] += what == "reborn"
            self.here.add(peer)
            ledger.came(info(peer, incarnation=self.lives[peer]), view=self.view)
        elif what == "round":
            self.round += 1
            self.view += size % 2
        ledger.settle(round_=self.round, view=self.view, roster=(A, B))

    def check(self) -> None:
        ledger = self.ledger
        parts = [ledger.free, *(held.samples for held in ledger.held.values())]
        parts += [gone.held.samples for gone in ledger.gone]
        everybodys = [number for part in parts for number in numbers(part)]
        assert len(everybodys) == len(set(everybodys))
        assert set(everybodys).isdisjoint(self.committed)
        assert set(everybodys) | self.committed == set(range(ledger.frontier))
        assert ledger.consumed == len(self.committed)
        assert len(ledger.gone) <= 2 * 3


@settings(max_examples=300, deadline=None)
@given(DOINGS)
def test_no_sample_is_lost_or_in_two_places(doings: list[tuple[str, PeerId, int]]) -> None:
    story = Story()
    for doing in doings:
        story.do(*doing)
        story.check()
    again = SampleLedger()
    again.become(story.ledger.books())
    assert again == story.ledger
    # In the end everything that the gone held is somebody else's.
    for peer in (A, B, C):
        story.ledger.went(peer, view=story.view, until=0)
    story.ledger.settle(round_=story.round + 9, view=story.view + 1, roster=NOBODY)
    assert count(story.ledger.free) + len(story.committed) == story.ledger.frontier


def test_a_fresh_ledger_is_the_beginning() -> None:
    assert SampleLedger().remaining == ALL_REMAIN
    restored = leased(a=(0, 10))
    restored.restore(ALL_REMAIN)
    assert replace(restored, again=0) == SampleLedger()
