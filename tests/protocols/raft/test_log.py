"""The log has no gaps, knows its voters at every index, and forgets at both ends."""

from dataclasses import replace

import pytest

from protocols.messages import log_entries as e
from protocols.messages.peer import Append
from protocols.raft.log import EMPTY_HASH, Log, voters_after
from protocols.state.parts import cut_parts
from protocols.types import limits
from protocols.types.errors import LogError, RemoteProtocolError
from protocols.types.ids import PeerId, Version
from protocols.types.sample_ranges import RANGES_MAX, Grant, SampleRange
from protocols.wire import codec
from tests.protocols.scenes import START, A, B, C, D, contributor, run


def left(why: str = "") -> e.Left:
    return e.Left(PeerId("nobody.2"), why)


def voter(peer: PeerId, *, votes: bool = True) -> e.Voter:
    return e.Voter(peer, votes, "")


def grown() -> Log:
    """Three entries of term 1, one of term 3."""
    log = Log()
    log.append(run(), term=1)
    log.append(left("one"), term=1)
    log.append(voter(B), term=1)
    log.append(left("two"), term=3)
    return log


def indices(log: Log) -> list[int]:
    return [entry.index for entry in log.entries]


def fork(name: int) -> e.Restore:
    return e.Restore(1, (), 0, 0, (A,), fork=name, lonely=True, salt=0)


def test_forks_are_named_until_their_entries_are_cut_off() -> None:
    log = grown()
    assert log.forks_after(0) == ()
    log.append(fork(7), term=4)
    log.append(left(), term=4)
    log.append(fork(9), term=5)
    assert [log.forks_after(index) for index in (0, 4, 5, 7)] == [(7, 9), (7, 9), (9,), ()]
    log.cut_off(7)
    assert [log.forks_after(index) for index in (0, 4, 5)] == [(7,), (7,), ()]
    log.cut_off(5)
    log.append(left(), term=6)
    assert log.forks_after(0) == ()


def test_a_restore_of_all_opens_no_fork() -> None:
    log = grown()
    log.append(fork(0), term=4)
    log.append(fork(7), term=4)
    assert log.forks_after(0) == (7,)


def test_entries_have_their_place_and_their_term() -> None:
    log = grown()
    assert (log.last_index, log.last_term, indices(log)) == (4, 3, [1, 2, 3, 4])
    assert [log.term_at(index) for index in range(6)] == [0, 1, 1, 1, 3, None]
    assert log.since(3) == log.entries[2:]
    assert log.since(5) == []


def test_an_empty_log_agrees_with_every_other_at_its_beginning() -> None:
    log = Log()
    assert (log.last_index, log.last_term, log.voters, log.term_at(0)) == (0, 0, (), 0)
    assert log.after(0) == []


def test_a_gap_is_our_own_bug() -> None:
    with pytest.raises(AssertionError, match="no gaps"):
        grown().add(e.LogEntry(6, 3, left()))


# Voters -------------------------------------------------------------------------------------


def test_who_votes_changes_with_the_entry_and_not_with_its_commit() -> None:
    log = Log()
    log.append(run(), term=1)
    assert log.voters == (A,)
    log.append(voter(B), term=1)
    log.append(voter(C), term=1)
    assert (log.voters, log.reconfigured) == ((A, B, C), 3)
    log.append(e.Lost(B, "x"), term=1)
    assert (log.voters, log.reconfigured) == ((A, C), 4)
    log.append(e.Lost(D, "it never voted"), term=1)
    assert log.reconfigured == 4


def test_voters_stand_oldest_first_and_once() -> None:
    assert voters_after((A, B), voter(C)) == (A, B, C)
    assert voters_after((A, B), voter(B)) == (A, B)
    assert voters_after((A, B), voter(A, votes=False)) == (B,)
    assert voters_after((A, B), e.Left(A, "")) == (B,)
    assert voters_after((A, B), voter(C, votes=False)) == (A, B)
    assert voters_after((A, B), e.Elected(B)) == (A, B)


def test_only_a_restore_by_force_names_other_voters() -> None:
    restore = e.Restore(1, (Version(0, 0, START),), 0, 0, (), 0, False, salt=1)
    assert voters_after((A, B), restore) == (A, B)
    assert voters_after((A, B), replace(restore, voters=(C,))) == (C,)


# Forgetting the end -------------------------------------------------------------------------


def test_what_a_newer_leader_does_not_have_is_cut_off() -> None:
    log = grown()
    log.cut_off(3)
    assert (log.last_index, log.last_term, log.voters) == (2, 1, (A,))
    log.append(left("another"), term=4)
    assert [log.term_at(index) for index in (2, 3, 4)] == [1, 4, None]


def test_a_change_of_voters_that_is_cut_off_never_was() -> None:
    """Else a leader would wait for ever for the end of a change that is not in its log."""
    log = grown()
    assert log.reconfigured == 3
    log.append(voter(C), term=3)
    log.cut_off(5)
    assert (log.voters, log.reconfigured) == ((A, B), 3)
    log.cut_off(3)
    assert (log.voters, log.reconfigured) == ((A,), 1)
    log.cut_off(1)
    assert (log.voters, log.reconfigured, log.last_index) == ((), 0, 0)


# Taking over from a leader --------------------------------------------------------------------


def merge(log: Log, *entries: e.LogEntry, after: int, term: int = 9, floor: int = 0) -> int | None:
    return log.merge(entries, A, Append(1, term, after, 1, (), 0), floor=floor)


def test_what_is_there_stays_what_is_new_is_added_and_what_differs_gives_way() -> None:
    log = grown()
    same = log.entries[1:]
    assert merge(log, *same, after=1) is None
    assert merge(log, log.entries[1], after=1) is None, "an old message cuts nothing off"
    assert log.last_index == 4
    new = e.LogEntry(5, 3, left("new"))
    assert merge(log, same[-1], new, after=3) == 5
    other = e.LogEntry(3, 9, left("other"))
    assert merge(log, same[0], other, after=1) == 3
    assert (log.last_index, log.entries[-1], log.voters) == (3, other, (A,))


def test_what_a_snapshot_covers_is_passed_over() -> None:
    log = grown()
    entries = (*log.entries, e.LogEntry(5, 3, left("new")))
    log.compact(2)
    assert merge(log, *entries, after=0) == 5
    assert indices(log) == [3, 4, 5]


def test_what_is_committed_gives_way_to_nobody() -> None:
    log = grown()
    with pytest.raises(RemoteProtocolError, match="rewrites log entry 3"):
        merge(log, e.LogEntry(3, 9, left("forged")), after=2, floor=3)
    assert log.entries == grown().entries


def test_a_whole_term_that_differs_is_skipped_at_once_but_nothing_that_is_committed() -> None:
    log = grown()
    assert log.before_conflict(4, floor=0) == 3
    assert log.before_conflict(3, floor=0) == 0
    assert log.before_conflict(3, floor=2) == 2
    assert log.before_conflict(9, floor=0) == 4, "ours is shorter: perhaps it agrees to its end"


def test_a_majority_is_of_the_voters_only() -> None:
    log = grown()
    assert log.voters == (A, B)
    assert not log.is_majority({A, C, D})
    assert log.is_majority({A, B})
    assert not Log().is_majority({A, B})


# Forgetting the beginning -------------------------------------------------------------------


def test_what_a_snapshot_covers_is_dropped_and_nothing_else_changes() -> None:
    log = grown()
    log.compact(2)
    assert (log.base, log.base_term, indices(log)) == (2, 1, [3, 4])
    assert [log.term_at(index) for index in (1, 2, 3, 4, 5)] == [None, 1, 1, 3, None]
    assert (log.last_index, log.voters, log.reconfigured) == (4, (A, B), 3)
    assert log.after(2) == log.since(3) == log.entries
    log.cut_off(4)
    assert (log.last_index, log.voters) == (3, (A, B))
    log.compact(3)
    assert (log.base, log.last_index, log.last_term, log.voters) == (3, 3, 1, (A, B))
    log.append(left(), term=5)
    assert log.entries[0].index == 4


def test_what_is_committed_cannot_be_cut_off() -> None:
    log = grown()
    log.compact(2)
    with pytest.raises(AssertionError, match="committed"):
        log.cut_off(2)


def test_a_snapshot_takes_the_place_of_a_log_that_is_not_its_own() -> None:
    for log in (Log(), grown()):
        log.begin_at(4, 2, (B, C), EMPTY_HASH)
        assert (log.base, log.base_term, log.entries, log.voters) == (4, 2, [], (B, C))
        assert (log.last_index, log.last_term, log.reconfigured) == (4, 2, 0)
    ahead = grown()
    ahead.begin_at(9, 3, (A,), EMPTY_HASH)
    assert (ahead.last_index, ahead.voters) == (9, (A,))


def test_a_log_that_goes_on_after_a_snapshot_keeps_what_follows() -> None:
    """Else what was acknowledged, and perhaps committed with our help, would be gone."""
    log = grown()
    log.begin_at(2, 1, (A,), EMPTY_HASH)
    assert (log.base, indices(log), log.voters) == (2, [3, 4], (A, B))


# The hash of the log ------------------------------------------------------------------------


def test_logs_with_the_same_entries_have_the_same_hash_however_they_came() -> None:
    log, read = grown(), Log()
    read.merge(log.entries, A, Append(1, log.last_term, 0, 0, (), 0), floor=0)
    assert [read.hash_at(index) for index in range(5)] == [log.hash_at(x) for x in range(5)]
    assert len({log.hash_at(index) for index in range(5)}) == 5
    assert log.hash_at(0) == EMPTY_HASH
    other = grown()
    other.cut_off(2)
    assert other.hash_at(1) == log.hash_at(1)
    for entry in log.entries[1:]:
        other.add(entry)
    assert other.hash_at(4) == log.hash_at(4)
    other.cut_off(4)
    other.add(replace(log.entries[3], signature=b"x"))
    assert other.hash_at(4) != log.hash_at(4), "signatures count"


def test_a_log_that_begins_with_a_snapshot_goes_on_with_its_hash() -> None:
    log, late = grown(), Log()
    end = log.hash_at(4)
    late.begin_at(2, log.entries[1].term, (A, B), log.hash_at(2))
    for entry in log.entries[2:]:
        late.add(entry)
    log.compact(3)
    assert late.hash_at(4) == log.hash_at(4) == end
    assert late.hash_at(3) == log.hash_at(3)


def test_the_hash_with_entries_that_are_not_adopted() -> None:
    log = grown()
    expected = {previous: log.hash_at(4) for previous in range(5)}
    entries = tuple(log.entries)
    assert {x: log.hash_with(x, entries[x:]) for x in range(5)} == expected
    log.compact(3)
    assert {x: log.hash_with(x, entries[x:]) for x in range(5)} == expected
    log.cut_off(4)
    assert log.hash_with(1, entries[1:]) == expected[1]
    assert log.hash_with(3, ()) == log.hash_at(3)


# Messages -----------------------------------------------------------------------------------


def test_after_gives_one_message_worth() -> None:
    log = grown()
    assert log.after(0) == log.entries
    assert log.after(2) == log.entries[2:]
    assert log.after(4) == []


def test_after_never_gives_more_than_a_message_can_carry() -> None:
    """A leader of some hundred peers would have stopped at its own assertion."""
    log = Log()
    log.append(run(), term=1)
    peers = tuple(PeerId(f"a-peer-with-a-long-name-{n:03}.00000001") for n in range(500))
    for number in range(1, 200):
        log.append(e.Attempt(1, 0, 1, number, peers, peers, ""), term=1)
    index = 0
    while entries := log.after(index):
        message = Append(1, 1, index, 1, tuple(entries), index)
        assert len(codec.encode(message)) <= limits.CONTROL_BYTES_MAX
        assert entries[0].index == index + 1
        index = entries[-1].index
    assert index == log.last_index


def test_after_gives_at_most_as_many_as_a_message_may_have() -> None:
    log = grown()
    for _ in range(2 * limits.ENTRIES_MAX):
        log.append(left(), term=3)
    assert len(log.after(0)) == limits.ENTRIES_MAX


def test_an_entry_that_no_message_can_carry_is_refused() -> None:
    log = Log()
    with pytest.raises(LogError, match="fit into a message"):
        log.append(replace(run(), run_json="x" * limits.CONTROL_BYTES_MAX), term=1)
    assert (log.last_index, log.voters) == (0, ())


def test_an_entry_too_big_in_the_middle_of_a_message_leaves_nothing_behind() -> None:
    """What came before it would be in our log, and on no disk: a later leader would be told that
    we have it, and could commit what a crash takes back."""
    log = grown()
    big = e.LogEntry(5, 3, replace(run(), run_json="x" * limits.CONTROL_BYTES_MAX))
    entries = (e.LogEntry(4, 2, left("other")), replace(big, term=2), e.LogEntry(6, 2, left()))
    with pytest.raises(LogError, match="entry 5"):
        log.merge(entries, A, Append(1, 4, 3, 1, entries, 3), floor=3)
    assert (indices(log), log.entries[3].body) == ([1, 2, 3, 4], left("two"))


SAMPLES = tuple(SampleRange(2**40 + 2 * n, 2**40 + 2 * n + 1) for n in range(RANGES_MAX))
IDS = tuple(PeerId(f"a-name-with-thirty-two-letters--.{n:08x}") for n in range(limits.PEERS_MAX))
PARTS = cut_parts(2**40, IDS)
"""Of a fragment of 4 TiB: the most owners."""


@pytest.mark.parametrize(
    "body",
    [
        e.View(9, IDS, (PARTS,) * limits.FRAGMENTS_MAX, (2**30,) * limits.FRAGMENTS_MAX),
        e.Commit(
            *(9, 0, 2**30, 9),
            tuple(replace(contributor(A, 1), peer=peer, tokens=2**40) for peer in IDS),
            *(PARTS.borders, START, START, (SAMPLES,) * len(IDS)),
        ),
        e.Lease(tuple(Grant(peer, SAMPLES) for peer in IDS)),
    ],
    ids=lambda body: type(body).__name__,
)
def test_whatever_a_leader_decides_fits_into_a_message(body: e.Entry) -> None:
    """As many peers, fragments and ranges as there may be: no leader stops at its own entry."""
    log = grown()
    log.append(body, term=3)
    assert [entry.body for entry in log.after(4)] == [body]
