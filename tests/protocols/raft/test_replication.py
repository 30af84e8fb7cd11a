"""How a log gets to everybody who reads it, whatever they had before."""

import pytest

from protocols.interface import commands as c
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.messages.persisted import Snapshot
from protocols.raft.log import Log
from protocols.raft.node import Raft
from protocols.raft.replication import WINDOW, Replication
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import PeerId
from protocols.types.limits import PIECE_BYTES_MAX
from tests.protocols.circle import RULES, Circle, note, stands, votes, voting
from tests.protocols.scenes import A, B, C, D

TIMEOUT_S = RULES.election_timeout_s
UP = {B, C}


def yes(index: int) -> m.Appended:
    return m.Appended(3, matches=True, index=index)


def no(index: int) -> m.Appended:
    return m.Appended(3, matches=False, index=index)


class Sender:
    """A leads in term 3; its log has two entries of term 1 and one of term 3."""

    def __init__(self) -> None:
        self.log = Log()
        self.to = Replication(A, self.log)
        self.commit = 0
        self.grow(note("one"), note("two"), term=1)
        self.grow(note("three"))

    def grow(self, *bodies: e.Entry, term: int = 3) -> None:
        for body in bodies:
            self.log.append(body, term=term)

    def header(self) -> m.Append:
        return m.Append(1, 3, 0, 0, (), self.commit)

    def answered(self, answer: m.Appended, peer: PeerId = B) -> list[tuple[int, int]]:
        return sent(self.to.answered(peer, answer, self.header))


def appends(commands: list[c.Command]) -> list[m.Append]:
    messages = [command.message for command in commands if isinstance(command, c.Send)]
    return [message for message in messages if isinstance(message, m.Append)]


def sent(commands: list[c.Command]) -> list[tuple[int, int]]:
    """(after which entry, how many) of each Append."""
    return [(append.previous_index, len(append.entries)) for append in appends(commands)]


def reading(*, match: int = 3) -> Sender:
    """B reads and has acknowledged so much."""
    sender = Sender()
    sender.to.follow({A, B}, sender.header, UP)
    sender.to.answered(B, yes(match), sender.header)
    return sender


# Finding out what a reader has ----------------------------------------------------------------


def test_a_new_reader_is_asked_whether_it_has_everything() -> None:
    sender = Sender()
    said = sender.to.follow({A, B}, sender.header, UP)
    assert said == [c.Send(B, m.Append(1, 3, 3, 3, (), 0))]
    assert sender.to.follow({A, B}, sender.header, UP) == [], "once"


def test_who_has_everything_may_be_the_heir() -> None:
    sender = reading()
    assert sender.to.complete([A, B, C]) == {B}
    sender.grow(note("four"))
    assert sender.to.complete([A, B, C]) == set()


def test_who_is_not_connected_is_asked_when_it_is() -> None:
    sender = Sender()
    assert sender.to.follow({B}, sender.header, set()) == []
    assert sent(sender.to.beat(B, sender.header())) == [(3, 0)]


def test_a_reader_with_another_log_is_gone_back_with_until_it_matches() -> None:
    sender = Sender()
    sender.to.follow({B}, sender.header, UP)
    assert sender.answered(no(2)) == [(2, 1)]
    assert sender.answered(no(1)) == [(1, 2)]
    assert sender.answered(no(0)) == [(0, 3)]
    assert sender.answered(yes(3)) == []
    assert sender.to.match(B) == 3


def test_going_back_ends_where_the_logs_are_known_to_agree() -> None:
    """An answer that was long under way must not take back what is acknowledged."""
    sender = reading(match=2)
    assert sender.answered(no(0)) == [(2, 1)]
    assert sender.to.match(B) == 2


def test_nobody_matches_further_than_our_log_goes() -> None:
    assert reading(match=99).to.match(B) == 3


def test_a_reader_says_itself_where_to_begin() -> None:
    sender = Sender()
    assert sender.to.begin_from(B, 0, sender.header()) == [], "it does not read"
    sender.to.follow({B}, sender.header, UP)
    assert sent(sender.to.begin_from(B, 0, sender.header())) == [(0, 3)]
    assert sent(sender.to.begin_from(B, 99, sender.header())) == []


# Sending --------------------------------------------------------------------------------------


def test_entries_go_out_as_they_come_up_to_a_window() -> None:
    sender = reading()
    for number in range(WINDOW + 2):
        sender.grow(note(str(number)))
        said = sent(sender.to.publish(sender.header(), UP))
        assert said == ([(3 + number, 1)] if number < WINDOW else [])
    assert sender.answered(yes(4)) == [(3 + WINDOW, 2)], "the rest, in one message"


def test_while_it_is_not_known_what_a_reader_has_one_message_is_under_way() -> None:
    sender = Sender()
    sender.to.follow({B}, sender.header, UP)
    sender.grow(note("four"))
    assert sent(sender.to.publish(sender.header(), UP)) == [(3, 1)]
    sender.grow(note("five"))
    assert sent(sender.to.publish(sender.header(), UP)) == []
    assert sender.answered(yes(4)) == [(4, 1)]


def test_what_was_under_way_on_a_connection_that_ended_is_sent_again() -> None:
    sender = reading()
    sender.grow(note("four"))
    sender.to.publish(sender.header(), UP)
    sender.to.restart(B)
    assert sent(sender.to.beat(B, sender.header())) == [(3, 0)]
    assert sender.answered(yes(3)) == [(3, 1)]


def test_only_readers_that_are_connected_get_anything() -> None:
    sender = reading()
    sender.to.follow({B, C}, sender.header, UP)
    sender.grow(note("four"))
    said = sender.to.publish(sender.header(), {C})
    assert {command.peer for command in said if isinstance(command, c.Send)} == {C}
    assert sender.to.follow({C}, sender.header, UP) == []
    assert sender.to.answered(B, yes(3), sender.header) == [], "it reads no more"
    assert sender.to.match(B) == 0


def test_a_new_term_begins_without_knowing_anything() -> None:
    sender = reading()
    assert sender.to.acknowledged == {B}
    sender.to.begin_term()
    assert (sender.to.match(B), sender.to.acknowledged) == (0, set())
    assert sender.to.answered(B, yes(3), sender.header) == [], "it does not read"


def test_a_commit_reaches_who_has_the_entry_without_waiting_for_a_heartbeat() -> None:
    """A round is over when its commit is known, and the last entry may be followed by nothing."""
    circle = voting(A, B, C)
    circle.append(A, note("x"))
    circle.settle()
    for raft in circle.rafts.values():
        assert raft.commit_index == raft.log.last_index


# Snapshots ------------------------------------------------------------------------------------


def test_who_lacks_more_than_the_log_has_gets_the_snapshot_and_then_what_follows() -> None:
    sender = Sender()
    sender.to.follow({B}, sender.header, UP)
    sender.log.compact(2)
    sender.to.snapshot = Snapshot(2, 1, b"x" * (PIECE_BYTES_MAX + 1))
    said = sender.to.answered(B, no(0), sender.header)
    pieces = [x.message for x in said if isinstance(x, c.Send)]
    assert [(x.offset_bytes, x.index) for x in pieces if isinstance(x, m.Install)] == [
        (0, 2),
        (PIECE_BYTES_MAX, 2),
    ]
    assert sender.answered(yes(2)) == [(2, 1)]


def test_who_has_just_what_the_snapshot_covers_needs_no_snapshot() -> None:
    sender = reading(match=2)
    sender.log.compact(2)
    sender.to.snapshot = Snapshot(2, 1, b"image")
    assert sent(sender.to.begin_from(B, 2, sender.header())) == [(2, 1)]


def test_a_heartbeat_asks_before_it_sends_a_snapshot() -> None:
    """Else all whom relays serve would get one, whenever the leader's log becomes one: it has not
    heard yet how far they are."""
    sender = reading(match=1)
    sender.to.relay([B], sender.header(), UP)
    sender.log.compact(2)
    sender.to.snapshot = Snapshot(2, 1, b"image")
    assert sent(sender.to.beat(B, sender.header())) == [(2, 0)]
    said = sender.to.answered(B, no(1), sender.header)
    assert [type(x.message) for x in said if isinstance(x, c.Send)] == [m.Install]


def test_a_peer_that_was_away_for_long_is_brought_up_by_a_snapshot() -> None:
    circle = voting(A, B, C)
    circle.alone(C)
    circle.append(A, *(note(str(number)) for number in range(9)))
    circle.settle()
    index = circle.rafts[A].commit_index
    circle.compact(A, index - 1, (A, B, C))
    circle.back(C)
    circle.pass_time(1.0)
    late = circle.rafts[C]
    assert (late.log.base, late.commit_index, late.log.voters) == (index - 1, index, (A, B, C))
    circle.crash(C)
    circle.restart(C)
    assert circle.rafts[C].log.base == index - 1
    circle.pass_time(1.0)
    assert circle.rafts[C].commit_index == index


# Logs that differ -----------------------------------------------------------------------------


def test_what_a_deposed_leader_wrote_gives_way() -> None:
    circle = voting(A, B, C)
    circle.alone(A)
    circle.append(A, note("lost 1"), note("lost 2"))
    circle.pass_time(3 * TIMEOUT_S)
    leader = circle.leader()
    circle.append(leader, note("stays"))
    circle.back(A)
    circle.pass_time(TIMEOUT_S)
    assert circle.rafts[A].log.entries == circle.rafts[leader].log.entries
    assert note("stays") in circle.committed(A)
    saved = circle.disks[A].saved
    assert saved is not None
    assert list(saved.entries) == circle.rafts[A].log.entries


def test_what_is_committed_is_not_rewritten_for_anybody() -> None:
    circle = voting(A, B, C)
    raft = circle.rafts[B]
    before = list(raft.log.entries)
    forged = e.LogEntry(2, 7, note("forged"))
    with pytest.raises(RemoteProtocolError, match="rewrites log entry 2"):
        raft.receive(C, m.Append(1, 7, 1, 1, (forged,), 2), circle.now)
    assert raft.log.entries == before


@pytest.mark.parametrize(
    ("index", "term"), [(9, 1), (1, 1), (2, 0), (2, 2)], ids=["gap", "back", "none", "later"]
)
def test_entries_that_cannot_follow_are_the_senders_fault(index: int, term: int) -> None:
    raft = Raft(B)
    entries = (e.LogEntry(1, 1, note("x")), e.LogEntry(index, term, note("y")))
    with pytest.raises(RemoteProtocolError, match=f"sends entry {index} "):
        raft.receive(A, m.Append(1, 1, 0, 0, entries, 0), 0.0)


def test_what_a_bad_message_began_with_is_on_the_disk_or_nowhere() -> None:
    """Else the next acknowledgement would promise an entry that a restart does not find."""
    # Fails while Log.merge raises without saying what it has changed already (node.py then does
    # not tell the disk).
    circle = voting(A, B, C)
    raft = circle.rafts[B]
    index = raft.log.last_index
    entries = (e.LogEntry(index + 1, 1, note("good")), e.LogEntry(index + 9, 1, note("bad")))
    with pytest.raises(RemoteProtocolError):
        raft.receive(A, m.Append(1, 1, index, 1, entries, index), circle.now)
    circle.collect(B)
    circle.settle()
    saved = circle.disks[B].saved
    assert saved is not None
    assert list(saved.entries) == raft.log.entries


# Who knows before the leader can say so ---------------------------------------------------------


def knows(circle: Circle) -> set[PeerId]:
    """To whom the last entry holds."""
    end = circle.rafts[A].log.last_index
    return {peer for peer, raft in circle.rafts.items() if raft.commit_index == end}


@pytest.mark.parametrize(
    ("voters", "who"), [((A, B), {B}), ((A, B, C), {B, C}), ((A, B, C, D), set[PeerId]())]
)
def test_two_disks_are_enough_for_whoever_has_one_of_them(
    voters: tuple[PeerId, ...], who: set[PeerId]
) -> None:
    circle = voting(*voters)
    circle.deaf.add(A)
    circle.append(A, note("x"))
    circle.settle()
    assert knows(circle) == who


@pytest.mark.parametrize(("stuck", "who"), [(A, set[PeerId]()), (B, {C})])
def test_not_before_both_have_it(stuck: PeerId, who: set[PeerId]) -> None:
    circle = voting(A, B, C)
    circle.deaf.add(A)
    circle.stuck.add(stuck)
    circle.append(A, note("x"))
    circle.settle()
    assert knows(circle) == who
    circle.stuck.clear()
    circle.settle()
    assert knows(circle) == {B, C}, "in whichever order they have it"


def test_who_has_no_vote_waits_for_word() -> None:
    circle = Circle(A, B, C)
    circle.begin()
    circle.append(A, votes(B))
    circle.settle()
    circle.deaf.add(A)
    circle.append(A, note("x"))
    circle.settle()
    assert knows(circle) == {B}
    circle.deaf.clear()
    circle.pass_time(RULES.heartbeat_interval_s)
    assert knows(circle) == {A, B, C}


def test_what_held_for_one_alone_holds_for_the_next_leader() -> None:
    circle = voting(A, B, C)
    circle.deaf.update((A, C))
    circle.append(A, note("x"))
    circle.settle()
    assert knows(circle) == {B}
    circle.deaf.clear()
    circle.crash(A)
    stands(circle, C)
    circle.settle()
    assert circle.leaders() == [], "it lacks what holds"
    stands(circle, B)
    circle.settle()
    assert circle.leader() == B
    assert note("x") in circle.committed(C)


def test_who_knows_that_an_entry_holds_is_not_told_so() -> None:
    circle = voting(A, B)
    circle.append(A, note("x"))
    circle.write(A)
    assert circle.sent(m.Append) == [(A, B)] * 2, "the entry, and that our disk has it"
    circle.deliver()
    circle.write(B)
    circle.deliver()
    assert knows(circle) == {B}
    circle.deliver()
    assert (knows(circle), circle.sent(m.Append)) == ({A, B}, [])
    circle.settle()
    circle.append(A, note("y"))
    circle.deliver()
    circle.write(B)
    circle.deliver()
    assert circle.wire == [], "its answer was here before our disk's"
    circle.write(A)
    assert (knows(circle), circle.sent(m.Append)) == ({A}, [(A, B)])
