"""The log grows without gaps, never changes, and names its lineage."""

import pytest

from protocols import entries as e
from protocols import wire
from protocols.errors import LogError, RemoteProtocolError
from protocols.ids import PeerId
from protocols.log import Log
from protocols.messages import Append

LEADER = PeerId("a.1")


def run(number: int = 1) -> e.Run:
    return e.Run(number, "{}", "", 1, 10, 1, (), (8,))


def left(why: str = "") -> e.Left:
    return e.Left(PeerId("b.2"), why)


def grown() -> Log:
    log = Log()
    log.append(run())
    log.append(left("one"))
    log.append(left("two"))
    return log


def test_a_follower_takes_over_what_is_new_and_skips_the_rest() -> None:
    leader, follower = grown(), Log()
    assert follower.accept(leader.entries[:2], sender=LEADER) == leader.entries[:2]
    assert follower.accept(leader.entries, sender=LEADER) == leader.entries[2:]
    assert follower.accept(leader.entries, sender=LEADER) == []
    assert (follower.entries, follower.lineage) == (leader.entries, leader.lineage)


def test_a_gap_is_not_filled_with_anything() -> None:
    follower = Log()
    assert follower.accept(grown().entries[1:], sender=LEADER) == []
    assert follower.last_index == 0


def test_history_cannot_be_rewritten() -> None:
    follower, other = Log(), Log()
    follower.accept(grown().entries, sender=LEADER)
    other.append(run())
    other.append(left("another"))
    with pytest.raises(RemoteProtocolError, match="rewrites log entry 2"):
        follower.accept(other.entries, sender=LEADER)
    assert follower.entries == grown().entries


def test_a_log_starts_with_run() -> None:
    bogus = e.LogEntry(1, 1, left())
    with pytest.raises(RemoteProtocolError, match="does not start with Run"):
        Log().accept([bogus], sender=LEADER)


def test_only_run_and_restore_open_a_lineage_and_the_parent_is_hashed_in() -> None:
    log = grown()
    first = log.lineage
    log.append(left("three"))
    assert log.lineage == first
    restore = e.Restore(first, (), 0, 0, (), salt=1)
    log.append(restore)
    second = log.lineage
    assert second != first
    other = Log()
    other.append(run(2))
    for entry in log.entries[1:]:
        other.append(entry.body)
    assert other.lineage != second, "the same entry after another parent is another lineage"


def test_after_gives_one_message_worth() -> None:
    log = grown()
    assert log.after(0) == log.entries
    assert log.after(2) == log.entries[2:]
    assert log.after(3) == []


def test_after_never_gives_more_than_a_message_can_carry() -> None:
    """A leader of some hundred peers would have stopped at its own assertion."""
    log = Log()
    log.append(run())
    peers = tuple(PeerId(f"a-peer-with-a-long-name-{n:03}.00000001") for n in range(500))
    for number in range(1, 200):
        log.append(e.Attempt(1, 0, 0, 1, number, peers, peers, ""))
    index = 0
    while entries := log.after(index):
        assert len(wire.encode(Append(1, tuple(entries)))) <= wire.CONTROL_BYTES_MAX
        assert entries[0].index == index + 1
        index = entries[-1].index
    assert index == log.last_index


def test_after_gives_at_most_as_many_as_a_message_may_have() -> None:
    log = grown()
    for _ in range(2 * wire.ENTRIES_MAX):
        log.append(left())
    assert len(log.after(0)) == wire.ENTRIES_MAX


def test_an_entry_that_no_message_can_carry_is_refused() -> None:
    log = Log()
    with pytest.raises(LogError, match="fit into a message"):
        log.append(e.Run(1, "x" * wire.CONTROL_BYTES_MAX, "", 1, 10, 1, (), (8,)))
    assert log.last_index == 0
