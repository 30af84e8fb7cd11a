"""Nothing is promised that could be forgotten: writes, slow disks, full disks, disks that hang."""

from dataclasses import replace

from protocols.interface.commands import Persist, Send
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.messages.persisted import Snapshot
from protocols.raft.durability import PAUSE_S, RETRY_S, Durability
from protocols.raft.log import EMPTY_HASH, Log
from protocols.raft.term_state import Role
from protocols.raft.writes import HANG_MAX_S, HANG_MIN_S
from protocols.types.clock import NEVER
from tests.protocols.circle import RULES, STEP_S, note, voting
from tests.protocols.scenes import A, B, C, run

TIMEOUT_S = RULES.election_timeout_s
YES, NO = (m.Appended(1, matches, 3) for matches in (True, False))
SNAPSHOT = Snapshot(1, 1, b"image")


def log_with(disk: Durability, *texts: str) -> Log:
    """A log that begins with a Run; all of it is new to the disk."""
    log = Log()
    log.append(run(), term=1)
    disk.log_changed(1)
    grow(disk, log, *texts)
    return log


def grow(disk: Durability, log: Log, *texts: str) -> list[e.LogEntry]:
    made = [log.append(note(text), term=1) for text in texts]
    for entry in made:
        disk.log_changed(entry.index)
    return made


def test_without_a_change_there_is_nothing_to_write_and_promises_are_free() -> None:
    disk = Durability()
    assert disk.collect(1, "", Log(), 0.0) is None
    disk.promise(B, NO)
    assert disk.kept() == [Send(B, NO)]
    assert disk.kept() == []


def test_what_changed_is_written_once_from_the_first_changed_entry_on() -> None:
    disk = Durability()
    log = log_with(disk, "two", "three")
    assert disk.collect(1, A, log, 0.0) == Persist(1, 1, A, 1, tuple(log.entries), None)
    assert disk.collect(1, A, log, 0.0) is None
    four = grow(disk, log, "four")
    assert disk.collect(1, A, log, 0.0) == Persist(2, 1, A, 4, tuple(four), None)
    disk.vote_changed()
    assert disk.collect(2, B, log, 0.0) == Persist(3, 2, B, 5, (), None)


def test_what_was_cut_off_is_void_on_the_disk_too() -> None:
    disk = Durability()
    log = log_with(disk, "two", "three", "four")
    disk.collect(1, A, log, 0.0)
    log.cut_off(3)
    disk.log_changed(3)
    other = grow(disk, log, "another")
    assert disk.collect(2, "", log, 0.0) == Persist(2, 2, "", 3, tuple(other), None)


def test_a_snapshot_takes_the_place_of_what_it_covers() -> None:
    disk = Durability()
    log = log_with(disk, "two", "three")
    log.compact(2)
    disk.snapshot_taken(SNAPSHOT)
    assert disk.collect(1, A, log, 0.0) == Persist(1, 1, A, 3, tuple(log.entries), SNAPSHOT)
    disk.snapshot_taken(SNAPSHOT)
    assert disk.collect(1, A, log, 0.0) == Persist(2, 1, A, 4, (), SNAPSHOT)


def test_what_a_snapshot_covers_is_not_written_though_our_log_still_has_it() -> None:
    disk = Durability()
    log = log_with(disk, "two", "three")
    disk.snapshot_taken(replace(SNAPSHOT, index=2))
    assert disk.collect(1, A, log, 0.0) == Persist(
        1, 1, A, 3, tuple(log.entries[2:]), replace(SNAPSHOT, index=2)
    )
    grow(disk, log, "four")
    disk.failed("no space left", 0.0, snapshot=replace(SNAPSHOT, index=2))
    disk.retry(RETRY_S)
    again = disk.collect(1, A, log, 0.0)
    assert again is not None
    assert (again.first, len(again.entries)) == (3, 2)


def test_a_promise_waits_for_all_that_was_known_when_it_was_made() -> None:
    disk = Durability()
    log = log_with(disk)
    disk.promise(B, YES)
    disk.collect(1, "", log, 0.0)
    grow(disk, log, "two")
    disk.promise(C, YES)
    disk.collect(1, "", log, 0.0)
    assert disk.kept() == []
    disk.persisted(1, 0.0)
    assert disk.durable_index == 1
    assert disk.kept() == [Send(B, YES)], "C's depends on the second write"
    disk.promise(A, NO)
    disk.persisted(2, 0.0)
    assert disk.durable_index == 2
    assert disk.kept() == [Send(C, YES), Send(A, NO)], "in order"


def test_who_is_mute_says_nothing_until_the_disk_holds_what_it_knew_then() -> None:
    disk, beat = Durability(), Send(B, m.Heartbeat())
    disk.vote_changed()
    disk.mute()
    persist = disk.collect(1, A, Log(), 0.0)
    assert persist is not None
    assert disk.release([beat], persist) == [persist]
    disk.promise(C, YES)
    assert disk.release([], None) == []
    disk.persisted(1, 0.0)
    assert disk.release([], None) == [beat, Send(C, YES)]
    assert disk.release([beat], None) == [beat]


def test_one_answer_may_stand_for_several_writes() -> None:
    disk = Durability()
    log = log_with(disk)
    disk.collect(1, "", log, 0.0)
    grow(disk, log, "two", "three")
    disk.collect(1, "", log, 0.0)
    disk.persisted(2, 0.0)
    assert disk.durable_index == 3
    disk.persisted(2, 0.0)
    assert disk.durable_index == 3, "nothing is new"


def test_what_a_disk_did_not_take_is_written_again_and_what_waited_for_it_is_not_said() -> None:
    """Whoever waits for them asks again."""
    disk = Durability()
    log = log_with(disk, "two")
    disk.collect(3, A, log, 0.0)
    disk.persisted(1, 0.0)
    grow(disk, log, "three")
    disk.collect(3, A, log, 0.0)
    grow(disk, log, "four")
    disk.collect(3, A, log, 0.0)
    disk.promise(B, YES)
    disk.failed("no space left", 10.0, snapshot=None)
    assert (disk.works, disk.why, disk.retry_at) == (False, "no space left", 10.0 + RETRY_S)
    disk.promise(C, YES)
    assert disk.collect(3, A, log, 0.0) is None
    disk.retry(10.0)
    assert disk.collect(3, A, log, 0.0) is None, "not yet"
    disk.retry(10.0 + RETRY_S)
    assert disk.collect(3, A, log, 0.0) == Persist(4, 3, A, 3, tuple(log.entries[2:]), None, 1)
    assert disk.retry_at == NEVER
    assert not disk.works, "not before it has taken that"
    disk.persisted(4, 0.0)
    assert disk.durable_index == 4
    assert disk.works
    assert disk.kept() == []


def test_a_failure_is_counted_once_however_many_writes_it_takes_with_it() -> None:
    """The disk refuses by that count what was handed over before we heard of the failure."""
    disk = Durability()
    log = log_with(disk)
    first = disk.collect(1, A, log, 0.0)
    grow(disk, log, "two")
    second = disk.collect(1, A, log, 0.0)
    assert first is not None
    assert second is not None
    assert (first.failures, second.failures) == (0, 0)
    assert disk.is_under_way(second.write_number)
    disk.failed("no space left", 0.0, snapshot=None)
    assert not disk.is_under_way(second.write_number), "its failure is no news"
    disk.retry(RETRY_S)
    again = disk.collect(1, A, log, 0.0)
    assert again is not None
    assert (again.failures, again.first) == (1, 1)


def test_a_snapshot_that_the_disk_did_not_take_is_written_again() -> None:
    """Else the log on the disk would have a gap."""
    disk = Durability()
    log = log_with(disk, "two", "three")
    disk.collect(1, A, log, 0.0)
    disk.persisted(1, 0.0)
    log.compact(2)
    disk.snapshot_taken(SNAPSHOT)
    disk.collect(1, A, log, 0.0)
    disk.failed("no space left", 0.0, snapshot=SNAPSHOT)
    disk.retry(RETRY_S)
    again = disk.collect(1, A, log, 0.0)
    assert again is not None
    assert (again.snapshot, again.first) == (SNAPSHOT, 4)


# A full disk ----------------------------------------------------------------------------------


def test_a_leader_whose_disk_is_full_steps_down_and_does_not_stand_again() -> None:
    circle = voting(A, B, C)
    circle.append(A, note("x"))
    circle.fail(A)
    assert not circle.rafts[A].leads
    circle.stuck.add(A)
    circle.pass_time(4 * TIMEOUT_S)
    assert circle.leader() in (B, C)
    assert not circle.rafts[A].disk.works


def test_a_voter_whose_disk_is_full_promises_nothing_and_the_others_go_on() -> None:
    circle = voting(A, B, C)
    circle.append(A, note("x"))
    while not circle.writes[C]:
        assert circle.step()
    circle.fail(C)
    circle.stuck.add(C)
    circle.wire = [x for x in circle.wire if x[0] != C]
    circle.append(A, note("y"))
    circle.settle()
    assert circle.sent(m.Appended) == []
    assert circle.rafts[A].commit_index == circle.rafts[A].log.last_index
    assert circle.rafts[A].replication.match(C) < circle.rafts[A].log.last_index - 1


def test_when_there_is_room_again_everything_is_written_that_was_not() -> None:
    circle = voting(A, B, C)
    circle.append(A, note("x"))
    while not circle.writes[C]:
        assert circle.step()
    circle.fail(C)
    circle.settle()
    saved = circle.disks[C].saved
    assert saved is not None
    assert len(saved.entries) < circle.rafts[C].log.last_index
    assert circle.rafts[C].deadline <= circle.now + RETRY_S
    circle.pass_time(RETRY_S + 0.5)
    saved = circle.disks[C].saved
    assert saved is not None
    assert list(saved.entries) == circle.rafts[A].log.entries
    assert circle.rafts[C].disk.works
    assert circle.rafts[A].replication.match(C) == circle.rafts[A].log.last_index


def test_a_write_under_way_makes_nothing_durable_that_was_cut_off_meanwhile() -> None:
    disk = Durability()
    log = log_with(disk, "two", "three")
    disk.collect(1, A, log, 0.0)
    log.cut_off(3)
    disk.log_changed(3)
    grow(disk, log, "another three", "four")
    disk.collect(2, A, log, 0.0)
    disk.persisted(1, 0.0)
    assert disk.durable_index == 2, "the disk has the entry that was cut off"
    disk.persisted(2, 0.0)
    assert disk.durable_index == 4


def test_what_a_new_leader_replaces_is_not_durable_before_the_disk_has_it() -> None:
    """Entries of the old leader are on their way to a slow disk when those of the new one come;
    the write of the former ones says nothing about the latter."""
    circle = voting(A, B, C)
    circle.stuck.add(B)
    raft = circle.rafts[B]
    last, term = raft.log.last_index, raft.log.last_term
    for leader, now_term in ((A, 1), (C, 2)):
        body = note(f"of {leader}")
        entry = e.LogEntry(last + 1, now_term, body)
        append = m.Append(raft.run, now_term, last, term, (entry,), 0, 0)
        raft.receive(leader, append, circle.now)
        circle.collect(B)
    assert [persist.write_number for persist in circle.writes[B]] != []
    circle.write(B)
    assert raft.disk.durable_index == last, "the disk has the entry of the old leader"
    circle.write(B)
    assert raft.disk.durable_index == last + 1


def test_a_snapshot_makes_durable_only_what_was_committed_before() -> None:
    """The entries behind that may be of a leader that is gone, on the disk too."""
    circle = voting(A, B, C)
    raft = circle.rafts[B]
    circle.append(A, note("B has it"))
    circle.settle()
    committed = raft.commit_index
    entry = e.LogEntry(raft.log.last_index + 1, 1, note("of a leader that is gone"))
    previous = raft.log.last_index
    raft.receive(A, m.Append(raft.run, 1, previous, 1, (entry,), 0, 0), circle.now)
    circle.collect(B)
    circle.write(B)
    assert raft.disk.durable_index == entry.index > committed
    image = Snapshot(entry.index, 2, b"image")
    raft.installed(C, image, (raft.log.voters, EMPTY_HASH), 2, circle.now)
    assert raft.disk.durable_index == committed
    circle.collect(B)
    circle.write(B)
    assert raft.disk.durable_index == entry.index


def test_a_follower_does_not_conclude_entries_of_an_older_term() -> None:
    """Two disks of three have it, and a leader of a newer term may replace it all the same: it
    holds with the first entry of the new term behind it."""
    circle = voting(A, B, C)
    raft = circle.rafts[B]
    last = raft.log.last_index
    old, begins = e.LogEntry(last + 1, 1, note("old")), e.LogEntry(last + 2, 2, e.Elected(C))
    for append in (
        m.Append(raft.run, 1, last, 1, (old,), last, last),
        m.Append(raft.run, 2, last + 1, 1, (), last, last + 1),
    ):
        raft.receive(A if append.term == 1 else C, append, circle.now)
        circle.collect(B)
        while circle.writes[B]:
            circle.write(B)
    assert (raft.disk.durable_index, raft.commit_index) == (last + 1, last)
    raft.receive(C, m.Append(raft.run, 2, last + 1, 1, (begins,), last, last + 2), circle.now)
    circle.collect(B)
    circle.write(B)
    assert raft.commit_index == last + 2


# A disk that hangs -----------------------------------------------------------------------------


def test_a_write_that_does_not_return_in_time_is_a_failure() -> None:
    disk = Durability()
    log = log_with(disk)
    assert disk.deadline == NEVER
    disk.collect(1, A, log, 5.0)
    assert disk.deadline == 5.0 + HANG_MIN_S
    assert not disk.hangs(disk.deadline - 0.01)
    assert disk.works
    assert disk.hangs(5.0 + HANG_MIN_S)
    assert not disk.works
    assert "has not returned for 0.8 s" in disk.why
    assert not disk.hangs(6.0), "that is no news"
    assert (disk.failures, disk.deadline) == (0, NEVER), "nothing is handed over before it returns"


def test_behind_a_write_that_hangs_changes_are_collected_and_written_once_it_returns() -> None:
    """The write itself is not handed over again: the disk would have it twice."""
    disk = Durability()
    log = log_with(disk)
    disk.collect(1, A, log, 0.0)
    assert disk.hangs(HANG_MIN_S)
    new = [*grow(disk, log, "two"), *grow(disk, log, "three")]
    assert disk.collect(1, A, log, 1.0) is None
    disk.persisted(1, 9.0)
    assert disk.durable_index == 1
    assert not disk.works, "it was late"
    assert disk.collect(1, A, log, 9.0) == Persist(2, 1, A, 2, tuple(new), None, 0)
    disk.persisted(2, 9.1)
    assert disk.durable_index == 3
    assert disk.works


def test_a_disk_that_hung_works_again_when_one_more_write_returns_in_time() -> None:
    """It is slow, and not given up with each of its writes."""
    disk = Durability()
    log = log_with(disk)
    disk.collect(1, A, log, 0.0)
    assert disk.hangs(HANG_MIN_S)
    disk.persisted(1, 4.0)
    for number, begun in ((2, 4.0), (3, 8.0)):
        assert disk.collect(1, A, log, begun) == Persist(number, 1, A, 2, (), None)
        disk.persisted(number, begun + HANG_MAX_S + 1.0)
        assert not disk.works
    disk.collect(1, A, log, 12.0)
    disk.persisted(4, 12.5)
    assert disk.works
    assert disk.collect(1, A, log, 12.5) is None


def test_what_was_promised_before_a_disk_hung_is_sent_when_it_has_it_and_the_rest_is_not() -> None:
    """Else the messages that wait would grow without limit."""
    disk, beat = Durability(), Send(B, m.Heartbeat())
    disk.vote_changed()
    disk.promise(B, YES)
    disk.mute()
    persist = disk.collect(1, A, Log(), 0.0)
    assert disk.release([beat], persist) == [persist]
    assert disk.hangs(HANG_MIN_S)
    for _ in range(9):
        disk.promise(C, YES)
        assert disk.release([beat], None) == []
    disk.persisted(1, 9.0)
    assert disk.release([], None) == [Send(B, YES), beat]


def test_a_process_that_stood_still_does_not_blame_its_disk() -> None:
    disk = Durability()
    log = log_with(disk)
    disk.collect(1, A, log, 0.0)
    late = HANG_MIN_S + PAUSE_S
    assert not disk.hangs(late)
    assert disk.deadline == late + HANG_MIN_S
    assert disk.hangs(late + HANG_MIN_S)
    other = Durability()
    log = log_with(other)
    other.collect(1, A, log, 0.0)
    other.persisted(1, 30.0)
    assert other.works
    grow(other, log, "two")
    other.collect(1, A, log, 30.0)
    assert other.deadline == 30.0 + HANG_MIN_S, "nor was it slow"


def test_a_hung_write_that_fails_in_the_end_is_handed_over_again() -> None:
    disk = Durability()
    log = log_with(disk, "two")
    disk.collect(1, A, log, 0.0)
    assert disk.hangs(HANG_MIN_S)
    disk.failed("input/output error", 30.0, snapshot=None)
    assert (disk.why, disk.deadline) == ("input/output error", 30.0 + RETRY_S)
    disk.retry(30.0 + RETRY_S)
    again = disk.collect(1, A, log, 30.0 + RETRY_S)
    assert again is not None
    assert (again.first, len(again.entries), again.failures) == (1, 2, 1)


def test_a_leader_whose_disk_hangs_hands_over_to_a_voter_with_the_whole_log() -> None:
    """No election timeout passes, and nothing that a majority has is lost."""
    circle = voting(A, B, C)
    circle.stuck.add(A)
    circle.append(A, note("two disks of three have it"))
    circle.settle()
    assert circle.rafts[A].deadline <= circle.now + HANG_MIN_S
    circle.now += HANG_MIN_S
    circle.look(A)
    circle.settle()
    assert circle.leader() == B
    assert note("two disks of three have it") in circle.committed(C)
    circle.pass_time(4 * TIMEOUT_S)
    assert circle.leader() == B
    circle.stuck.clear()
    circle.pass_time(2 * STEP_S)
    assert circle.rafts[A].disk.works
    assert circle.committed(A) == circle.committed(B)


def test_a_candidate_whose_disk_hangs_does_not_lead_with_a_vote_that_is_late() -> None:
    circle = voting(A, B, C)
    circle.crash(A)
    circle.stuck.add(B)
    circle.now = max(circle.now, circle.rafts[B].deadline)
    while circle.rafts[B].election.state.role is not Role.CANDIDATE:
        circle.look(B)
        circle.settle()
        circle.now += STEP_S
    circle.now = circle.rafts[B].disk.deadline
    circle.look(B)
    assert circle.rafts[B].election.state.role is Role.FOLLOWER
    circle.stuck.clear()
    circle.settle()
    assert not circle.rafts[B].leads
    circle.pass_time(4 * TIMEOUT_S)
    assert circle.leader() in (B, C)
