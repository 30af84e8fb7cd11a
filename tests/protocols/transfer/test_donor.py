"""How a donor copies what a cut names, says what it is, and gives it to who asks."""

from dataclasses import replace
from hashlib import sha256

from protocols.interface.commands import CopyState, HashState, ReleaseCopy, Send, ServeCells
from protocols.interface.events import StateCopied, StateHashed
from protocols.messages import log_entries as e
from protocols.messages.peer import CutRoots, FetchLeaves, FetchState, Leaves, NoState
from protocols.messages.transfer import CellSpan
from protocols.state.run_state import RunState
from protocols.transfer.donor import KEEP_S, SPARE_S, StateDonor, root_of
from protocols.types.ids import PeerId, Version
from protocols.types.limits import FRAGMENTS_MAX, LEAF_BYTES, LEAVES_MAX
from tests.protocols.scenes import A, B, C, D, info, state_digest

VERSIONS = (Version(0, 3, state_digest(3)), Version(1, 2, state_digest(2)))
FOR_B = e.Cut(info(B, 1), (A, C), VERSIONS)
OF_OTHERS = e.Cut(info(B, 1), (C, D), VERSIONS)
LEAVES = tuple(b"".join(sha256(bytes([f, x])).digest() for x in range(5)) for f in range(2))
ALL = FetchState(7, (CellSpan(0, 0, 5), CellSpan(1, 2, 3)))


HASH = [HashState(7, 0), HashState(7, 1)]
ROOTS = tuple(map(root_of, LEAVES))


def owing(cut: e.Cut = FOR_B) -> StateDonor:
    """We are A, and have read of a cut."""
    state_donor = StateDonor(A, RunState(index=7))
    assert state_donor.owe(7, cut, 0.0) == []
    return state_donor


def copying(state_donor: StateDonor) -> StateDonor:
    """Both copies are made."""
    state_donor.advance([3, 2], 0.0)
    for fragment in range(2):
        assert state_donor.copied(StateCopied(7, fragment, 5)) == []
    return state_donor


def having(state_donor: StateDonor | None = None) -> StateDonor:
    """And hashed."""
    state_donor = copying(state_donor or owing())
    assert state_donor.advance([3, 2], 0.0)[:2] == HASH
    for fragment, version in enumerate(VERSIONS):
        done = StateHashed(7, fragment, version.state_digest, LEAVES[fragment])
        assert state_donor.hashed(done) == ([], False)
    return state_donor


def test_each_fragment_is_copied_at_the_version_that_the_cut_names() -> None:
    """The last rounds before the cut are committed, and may not be applied here yet."""
    state_donor = owing()
    assert state_donor.advance([3, 1], 0.0) == [CopyState(7, 0, 3)]
    assert state_donor.advance([4, None], 0.0) == [], "that one is copied, and this one changes"
    assert state_donor.advance([5, 2], 0.0) == [CopyState(7, 1, 2)]
    assert state_donor.advance([6, 9], 0.0) == []


def test_a_donor_that_is_beyond_the_cut_says_so_at_once() -> None:
    state_donor = owing()
    assert state_donor.advance([3, 3], 0.0) == [
        CopyState(7, 0, 3),
        ReleaseCopy(B, 7),
        Send(B, NoState(7)),
    ]
    state_donor.asked(B, ALL, 0.0)
    assert state_donor.advance([3, 3], 0.0) == [Send(B, NoState(7))]


def test_the_leader_hears_the_roots_of_a_copy_that_is_hashed() -> None:
    state_donor = copying(owing())
    assert state_donor.advance([3, 2], 0.0) == HASH
    assert state_donor.advance([3, 2], 0.0) == [], "once"
    state_donor.hashed(StateHashed(7, 0, state_digest(3), LEAVES[0]))
    assert state_donor.reports() == []
    state_donor.hashed(StateHashed(7, 1, state_digest(2), LEAVES[1]))
    assert state_donor.reports() == [CutRoots(B, 7, ROOTS)]
    assert root_of(LEAVES[0]) == sha256(LEAVES[0]).hexdigest()


def test_nothing_is_hashed_before_all_of_it_is_copied() -> None:
    state_donor = owing()
    state_donor.advance([3, 1], 0.0)
    state_donor.copied(StateCopied(7, 0, 5))
    assert state_donor.advance([4, 1], 0.0) == []
    assert state_donor.deadline == KEEP_S


def spare() -> StateDonor:
    """Two others are asked before us, and we have copied what the cut names."""
    return copying(owing(e.Cut(info(B, 1), (C, D, A), VERSIONS)))


def test_a_donor_that_need_not_agree_gives_cells_of_what_it_never_hashed() -> None:
    state_donor = spare()
    assert state_donor.advance([3, 2], 0.0) == []
    state_donor.asked(B, ALL, 0.0)
    assert state_donor.advance([3, 2], 0.0) == [ServeCells(B, 7, ALL.cells)]
    assert state_donor.reports() == []


def test_it_hashes_when_the_log_has_no_roots_for_long() -> None:
    state_donor = spare()
    assert state_donor.deadline == SPARE_S
    assert state_donor.advance([3, 2], SPARE_S) == HASH
    assert state_donor.deadline == KEEP_S
    rooted = spare()
    cut = e.Cut(info(B, 1), (C, D, A), VERSIONS, ROOTS)
    rooted._run_state.cuts[B] = (7, cut)
    assert rooted.deadline == KEEP_S
    assert rooted.advance([3, 2], SPARE_S) == []
    rooted._run_state.cuts[B] = (6, cut)
    assert rooted.advance([3, 2], SPARE_S) == HASH, "those are of an earlier cut"


def test_it_hashes_when_somebody_asks_for_its_leaves() -> None:
    state_donor = spare()
    state_donor.asked(B, FetchLeaves(7, 1, 0), 0.0)
    assert state_donor.advance([3, 2], 0.0) == HASH
    state_donor.hashed(StateHashed(7, 0, state_digest(3), LEAVES[0]))
    assert state_donor.advance([3, 2], 0.0) == []
    state_donor.hashed(StateHashed(7, 1, state_digest(2), LEAVES[1]))
    assert state_donor.advance([3, 2], 0.0) == [Send(B, Leaves(7, 1, 0, 5, LEAVES[1]))]


def test_the_leader_hears_that_there_is_no_copy_for_as_long_as_the_cut_stands() -> None:
    """Else it would wait for a second word about the roots until the joiner asks again."""
    state_donor = owing()
    state_donor.advance([3, 3], 0.0)
    assert state_donor.reports() == [CutRoots(B, 7, ())]
    state_donor.owe(9, FOR_B, 1.0)
    assert state_donor.reports() == [], "that is another state"
    state_donor.advance([3, 2], 1.0)
    state_donor.copied(StateCopied(9, 1, 0))
    assert state_donor.reports() == [CutRoots(B, 9, ())]
    state_donor.drop(B)
    assert state_donor.reports() == [], "it is a member now, or gone"


def test_nobody_is_told_of_a_copy_that_is_another_state() -> None:
    """Two would agree on the tree of a damaged one, and a third could give nothing."""
    given_up = [ReleaseCopy(B, 7), Send(B, NoState(7))]
    state_donor = copying(owing())
    state_donor.advance([3, 2], 0.0)
    damaged = StateHashed(7, 0, state_digest(4), LEAVES[0])
    assert state_donor.hashed(damaged) == (given_up, True)
    assert state_donor.hashed(damaged) == ([], False), "that copy is over"
    gone_on = owing()
    gone_on.advance([3, 2], 0.0)
    assert gone_on.copied(StateCopied(6, 0, 0)) == [], "of an earlier cut"
    assert gone_on.copied(StateCopied(7, 0, 0)) == given_up


def test_who_asks_before_the_copies_are_made_waits() -> None:
    run_state = RunState(index=6)
    state_donor = StateDonor(A, run_state)
    state_donor.asked(B, ALL, 0.0)
    state_donor.asked(B, FetchLeaves(7, 1, 0), 0.0)
    assert state_donor.advance([3, 2], 0.0) == [], "we have not read of the cut"
    run_state.index = 7
    state_donor.owe(7, FOR_B, 0.0)
    assert copying(state_donor).advance([3, 2], 0.0) == [*HASH, ServeCells(B, 7, ALL.cells)]
    for fragment, version in enumerate(VERSIONS):
        state_donor.hashed(StateHashed(7, fragment, version.state_digest, LEAVES[fragment]))
    assert state_donor.advance([3, 2], 0.0) == [Send(B, Leaves(7, 1, 0, 5, LEAVES[1]))]
    assert state_donor.advance([3, 2], 0.0) == []


def test_leaves_go_page_by_page() -> None:
    state_donor, leaves = having(), bytes(LEAF_BYTES) * (LEAVES_MAX + 1)
    state_donor.hashed(StateHashed(7, 0, state_digest(3), leaves))
    sizes: list[int] = []
    for first in (0, LEAVES_MAX, LEAVES_MAX + 1):
        state_donor.asked(B, FetchLeaves(7, 0, first), 0.0)
        for command in state_donor.advance([3, 2], 0.0):
            assert isinstance(command, Send)
            assert isinstance(command.message, Leaves)
            assert (command.message.first, command.message.total) == (first, LEAVES_MAX + 1)
            sizes.append(len(command.message.digests) // LEAF_BYTES)
    assert sizes == [LEAVES_MAX, 1], "and nothing beyond the last one"


def test_cells_that_the_state_does_not_have_are_not_served() -> None:
    state_donor = having()
    bad = (CellSpan(0, 4, 6), CellSpan(0, 3, 3), CellSpan(2, 0, 1), CellSpan(1, 0, 1))
    state_donor.asked(B, FetchState(7, bad), 0.0)
    assert state_donor.advance([3, 2], 0.0) == [ServeCells(B, 7, (CellSpan(1, 0, 1),))]


def test_nobody_gets_what_no_cut_names() -> None:
    state_donor = having()
    state_donor.asked(C, ALL, 0.0)
    assert state_donor.advance([3, 2], 0.0) == [Send(C, NoState(7))]
    state_donor.asked(B, FetchState(6, ALL.cells), 0.0)
    assert state_donor.advance([3, 2], 0.0) == [Send(B, NoState(6))], "an earlier cut"


def test_a_copy_is_kept_until_nobody_needs_it() -> None:
    assert having().drop(B) == [ReleaseCopy(B, 7)]
    assert having().asked(B, FetchState(7, ()), 0.0) == [ReleaseCopy(B, 7)], "it has everything"
    assert having().drop_all() == [ReleaseCopy(B, 7)]
    assert owing().drop(B) == [], "nothing was copied yet"
    state_donor = having()
    assert state_donor.owe(9, FOR_B, 1.0) == [ReleaseCopy(B, 7)], "a newer cut of the same peer"
    assert state_donor.advance([3, 2], 1.0) == [CopyState(9, 0, 3), CopyState(9, 1, 2)]


def test_a_snapshot_in_which_a_cut_is_over_ends_what_we_know_of_it() -> None:
    """Seed 2546125660: we hashed a copy for nobody, and told the leader of its tree."""
    stands = having()
    stands._run_state.cuts[B] = (7, FOR_B)
    assert stands.jumped(is_member=True, now=0.0) == []
    assert stands.reports() == [CutRoots(B, 7, ROOTS)]
    lost, unable = having(), owing()
    assert lost.jumped(is_member=True, now=0.0) == [ReleaseCopy(B, 7)], "B has no cut any more"
    assert lost.reports() == []
    unable.advance([3, 3], 0.0)
    unable._run_state.cuts[B] = (9, OF_OTHERS)
    assert unable.jumped(is_member=True, now=0.0) == []
    assert unable.reports() == []


def test_a_snapshot_with_a_cut_that_names_us_asks_for_our_word() -> None:
    """The leader would wait for it until the transfer's time is over."""
    able, beyond, left, late = (StateDonor(A, RunState(index=9)) for _ in range(4))
    for state_donor in (able, beyond, left, late):
        state_donor._run_state.cuts[B] = (9, FOR_B)
    assert able.jumped(is_member=True, now=0.0) == []
    assert able.advance([3, 2], 0.0) == [CopyState(9, 0, 3), CopyState(9, 1, 2)]
    assert beyond.jumped(is_member=True, now=0.0) == []
    assert beyond.advance([4, 2], 0.0) == [Send(B, NoState(9))]
    assert beyond.reports() == [CutRoots(B, 9, ())]
    assert left.jumped(is_member=False, now=0.0) == []
    assert left.advance([4, 2], 0.0) == [], "those donors are an earlier life of ours"
    late._run_state.cuts[B] = (9, replace(FOR_B, roots=ROOTS))
    assert late.jumped(is_member=True, now=0.0) == []
    assert late.advance([3, 2], 0.0) == [], "the others have said it"


def test_what_was_asked_before_a_snapshot_is_answered() -> None:
    state_donor = having()
    state_donor.asked(B, FetchState(9, ALL.cells), 0.0)
    state_donor._run_state.index = 9
    state_donor._run_state.cuts[B] = (9, OF_OTHERS)
    assert state_donor.jumped(is_member=True, now=0.0) == [ReleaseCopy(B, 7)]
    assert state_donor.advance([3, 2], 0.0) == [Send(B, NoState(9))], "it asks others"


def test_a_copy_that_nobody_asks_for_is_dropped_in_the_end() -> None:
    state_donor = having()
    state_donor.asked(B, ALL, 5.0)
    assert state_donor.deadline == 5.0 + KEEP_S
    state_donor.advance([3, 2], 5.0)
    assert state_donor.advance([3, 2], state_donor.deadline) == [ReleaseCopy(B, 7)]
    assert state_donor.deadline == float("inf")


def test_a_request_dies_with_its_connection() -> None:
    state_donor = having()
    state_donor.asked(B, ALL, 0.0)
    state_donor.disconnected(B)
    assert state_donor.advance([3, 2], 0.0) == []


def test_requests_cost_bounded_memory() -> None:
    state_donor, stranger = StateDonor(A, RunState()), PeerId("e.5")
    for fragment in range(2 * FRAGMENTS_MAX):
        state_donor.asked(stranger, FetchLeaves(1 << 40, fragment, 0), 0.0)
    assert len(state_donor._asked[stranger]) == FRAGMENTS_MAX + 1
