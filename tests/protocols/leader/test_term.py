"""Who leads holds an office for one term: what it decides, and what it knows when it begins."""

from dataclasses import replace

import pytest

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.peer import wakeups
from protocols.peer.core import PeerCore
from protocols.peer.wait_reason import describe
from protocols.raft.log import Log
from protocols.types.errors import LogError
from protocols.types.ids import PeerId, Version
from protocols.types.limits import TEXT_MAX
from tests.protocols.led import Led, a_rests, leading, say
from tests.protocols.room import RULES, Room, is_message
from tests.protocols.scenes import START, A, B, C, D, identity, info, join, run, state_digest

LONG = "x" * (TEXT_MAX + 1)


def test_a_leader_that_dies_in_a_round_is_replaced_and_the_round_is_made_without_it() -> None:
    room = Room("abc")
    room.contribute("b")
    room.contribute("c")
    room.kill("a")
    room.wait(RULES.election_timeout_s + 1)
    leader = room.leader()
    assert leader in "bc"
    assert room.log(e.Elected, of=leader)[-1] == e.Elected(room.ids[leader])
    assert len(room.log(e.Lost, of=leader)) == 1
    assert room.rosters() == [["b", "c"]]
    assert len(room.digests()) == 1
    room.all_contribute()
    assert room.rosters() == [["b", "c"]] * 2


def test_a_leader_that_was_cut_off_follows_when_it_is_back() -> None:
    """And what it wrote meanwhile never was."""
    room = Room("abc")
    for other in "bc":
        room.cut("a", other)
    room.wait(2 * RULES.election_timeout_s + 1)
    leader = room.leader()
    assert leader != "a"
    for other in "bc":
        room.meet("a", other)
    room.wait(1.0)
    assert {core.leader_id for core in room.peers.values()} == {room.ids[leader]}
    assert room.bodies("a") == room.bodies(leader)
    room.all_contribute()
    assert len(room.digests()) == 1


def test_a_leader_that_is_asked_to_leave_hands_over_first() -> None:
    room = Room("abc")
    room.feed("a", v.LeaveRequested("maintenance"))
    assert room.leader() != "a", "without any waiting"
    assert room.log(e.Left, of=room.leader()) == [e.Left(room.ids["a"], "maintenance")]
    assert room.last("a", c.Stop) == c.Stop("maintenance", "left")
    room.kill("a")
    room.all_contribute()
    assert room.rosters() == [["b", "c"]]


def test_of_two_voters_the_one_that_is_left_waits_for_the_other() -> None:
    """It may come back; only later the other goes on alone (test_forks.py)."""
    room = Room("ab")
    room.kill("a")
    room.wait(RULES.lonely_after_s / 2)
    core = room.peers["b"]
    assert (core.stopped, core.leads) == (False, False)
    reason = describe(core, room.now).reason
    assert reason == "a majority of the voters: a cannot be reached"
    room.restart("a", incarnation=2)
    room.meet("a", "b")
    room.wait(3 * RULES.election_timeout_s)
    room.feed("a", v.TrainersAble())
    assert {x.leader_id for x in room.peers.values()} == {room.ids[room.leader()]}
    room.all_contribute()
    assert room.rosters() == [["a", "b"]]


def test_a_run_of_which_everybody_was_killed_goes_back_to_its_best_checkpoint() -> None:
    room = Room("abc")
    for _ in range(3):
        room.all_contribute()
    lineage = room.peers["a"].run_state.lineage
    digest = {n: room.log(e.Commit)[n].previous_state_digest for n in (1, 2)}
    kept = {
        name: m.Kept(lineage, (Version(0, n, digest[n]),), 10 * n, 300 * n)
        for name, n in (("a", 1), ("b", 2), ("c", 2))
    }
    for name in "abc":
        room.kill(name)
    for name in "abc":
        room.restart(name, incarnation=2, kept=kept[name])
    for one, two in ("ab", "bc", "ac"):
        room.meet(one, two)
    room.wait(RULES.silence_timeout_s + 3 * RULES.election_timeout_s)
    [restore] = room.log(e.Restore, of=room.leader())
    assert (restore.versions, restore.tokens) == (kept["b"].versions, 600)
    assert [core.rounds[0].version for core in room.peers.values()] == [2, 2, 2]
    room.all_contribute()
    assert room.rosters()[-1] == ["a", "b", "c"]
    assert len(room.digests()) == 1


def test_a_round_of_one_is_committed_though_its_result_came_before_the_other_could_read() -> None:
    """Seeds 1804296, 2005144: the other one dropped the result, and it was not sent again."""
    room = Room("ab")
    room.all_contribute()
    core = room.peers["a"]
    version = Version(0, 1, core.rounds[0].state_digest)
    kept = m.Kept(core.run_state.lineage, (version,), 10, 200)
    for name in "ab":
        room.kill(name)
    for name in "ab":
        room.restart(name, incarnation=2, kept=kept)
    room.feed("a", v.TrainersLost("crash"))
    room.meet("a", "b")
    room.wait(RULES.silence_timeout_s + 3 * RULES.election_timeout_s)
    assert room.log(e.View)[-1].roster == (room.ids["b"],)
    room.kill("a")
    room.contribute("b")
    assert room.last("b", c.ReducePart).stamp.round == 2
    room.hold = lambda to, x: to == "a" and isinstance(x, v.MessageReceived)
    room.restart("a", incarnation=3, kept=kept)
    room.meet("a", "b")
    assert isinstance(room.last("a", c.Discard).payload, v.ResultReceived)
    room.release()
    room.wait(3 * RULES.election_timeout_s)
    assert room.log(e.Member)[-1].info.incarnation == 3
    room.wait(RULES.reduction_timeout_s / 2)
    assert [term.peer for term in room.log(e.Commit)[-1].contributors] == [room.ids["b"]]
    assert room.peers["a"].rounds[0].version == 2


# One office ---------------------------------------------------------------------------------


def test_decisions_stand_on_what_is_decided_though_nothing_of_it_holds_yet() -> None:
    """Else the same cut would be written again and again until the disk answers."""
    scene = leading(B)
    scene.comes(C)
    scene.slow_disk = True
    scene.hears(C, join(C))
    led_term = scene.core.led_term
    assert led_term is not None
    (persist,) = scene.all(c.Persist)
    assert [type(entry.body) for entry in persist.entries] == [e.Cut]
    assert (C in led_term.head.joiners, C in scene.core.run_state.joiners) == (True, False)
    assert scene.entries(e.Cut) == []
    scene.on(v.DeadlineReached())
    assert scene.all(c.Persist) == []
    scene.on(v.Persisted(persist.write_number))
    assert len(scene.entries(e.Cut)) == 1
    assert C in scene.core.run_state.joiners


def test_who_reads_from_outside_gets_the_log_while_it_is_connected() -> None:
    scene = leading(B)
    log = scene.core.raft.log
    scene.comes(C)
    assert [to for to, _ in scene.sent(m.Append)] == []
    scene.hears(C, m.ReadLog(0))
    first = [append for to, append in scene.sent(m.Append) if to == C][-1]
    assert first.entries == tuple(log.entries)
    scene.hears(C, m.Appended(1, matches=True, index=log.last_index))
    scene.hears(B, m.NotReadyToTrain("crash"))
    assert {to for to, append in scene.sent(m.Append) if append.entries} >= {C}
    scene.on(v.PeerDisconnected(C, "end of stream"))
    scene.meets(C)
    scene.hears(B, m.ReadyToTrain())
    assert C not in {to for to, _ in scene.sent(m.Append)}, "it has not asked again"


def test_who_is_struck_reads_that_it_is_out() -> None:
    scene = leading(B, C)
    index = scene.core.raft.log.last_index
    scene.hears(B, m.Appended(1, matches=True, index=index))
    scene.hears(B, m.Leave("enough"))
    entries = [x for to, append in scene.sent(m.Append) if to == B for x in append.entries]
    assert [x.body for x in entries][:1] == [e.Left(B, "enough")]


def test_who_is_not_there_when_an_office_begins_is_lost_after_the_grace() -> None:
    room = Room("abcde")
    room.kill("e")
    room.kill("a")
    room.wait(3 * RULES.election_timeout_s)
    lost = room.log(e.Lost, of=room.leader())
    assert {entry.peer for entry in lost} == {room.ids["a"], room.ids["e"]}
    room.all_contribute()
    assert room.rosters() == [["b", "c", "d"]]


def test_after_a_term_nothing_of_its_office_is_left() -> None:
    room = Room("abc")
    first = room.peers["a"].led_term
    assert first is not None
    room.feed("a", v.LeaveRequested("maintenance"))
    assert room.peers["a"].led_term is None
    led_term = room.peers[room.leader()].led_term
    assert led_term is not None
    assert led_term is not first
    assert led_term.term == room.peers[room.leader()].raft.term


def test_in_a_new_term_what_looks_missing_may_only_not_have_been_said_yet() -> None:
    """A view without those who have not spoken would cost everybody a round."""
    room = Room("abc")
    room.contribute("b")
    room.hold = lambda name, event: is_message(event, m.ReportsComplete)
    room.feed("a", v.LeaveRequested("maintenance"))
    leader = room.leader()
    assert len(room.log(e.View, of=leader)) == 1
    assert room.log(e.Attempt, of=leader) == []
    room.kill("a")
    room.release()
    room.contribute("c")
    assert room.rosters() == [["b", "c"]]


# Newcomers ----------------------------------------------------------------------------------


def joined_by_d() -> Led:
    """B and C have committed round 1; D is in the roster of round 2."""
    scene = leading(B, C)
    a_rests(scene)
    say(scene, "ready", B, C)
    say(scene, "hold", B, C)
    for peer in (B, C):
        scene.hears(peer, m.Have(scene.lineage, 0, 1, state_digest(1)))
    scene.joins(D)
    assert scene.core.run_state.views[-1].roster == (B, C, D)
    return scene


def test_a_newcomer_is_told_once_that_others_wait() -> None:
    """Its ranks began in the middle of the others' round."""
    scene = joined_by_d()
    say(scene, "ready", B, round_=2)
    ((to, hurry),) = scene.sent(m.ContributeNow)
    assert (to, hurry.stamp.round) == (D, 2)
    say(scene, "ready", C, round_=2)
    assert scene.sent(m.ContributeNow) == [], "nor does C need it, which contributes each round"
    scene.on(v.PeerDisconnected(D, "end of stream"))
    scene.meets(D)
    assert [to for to, _ in scene.sent(m.ContributeNow)] == [D], "the word may have been lost"


def test_nobody_is_hurried_who_is_ready_or_whom_nobody_waits_for() -> None:
    scene = joined_by_d()
    assert scene.sent(m.ContributeNow) == []
    say(scene, "ready", D, round_=2)
    say(scene, "ready", B, round_=2)
    assert scene.sent(m.ContributeNow) == []
    first = leading(B, C, D)
    say(first, "ready", B)
    assert first.sent(m.ContributeNow) == [], "in the first round all are new, and began together"


def test_in_a_run_that_asks_all_who_are_late_are_told_as_soon_as_a_quorum_has_contributed() -> None:
    scene = leading(B, C, D, asks=True, rules=replace(RULES, quorum=2))
    say(scene, "ready", B)
    assert scene.sent(m.ContributeNow) == [], "one is no quorum"
    say(scene, "ready", C)
    assert scene.sent(m.ContributeNow) == [(D, m.ContributeNow(scene.stamp(1)))], (
        "in a first round too"
    )
    assert scene.core.rounds[0].work.others_wait, "nor are our own ranks waited for"
    say(scene, "ready", D)
    assert scene.sent(m.ContributeNow) == [], "each is told once"


def test_a_leader_that_wants_to_go_waits_for_who_asks_to_come_in() -> None:
    """Seed 3100167: the last voter went, and who asked, and who was just let go, waited for it."""
    led_term = leading().core.led_term
    assert led_term is not None
    assert led_term.is_last
    led_term.leader.joins.joins[C] = join(C)
    assert not led_term.is_last
    led_term.leader.joins.joins.clear()
    assert led_term.is_last
    led_term.append(e.Witness(info(C)))
    assert not led_term.is_last, "no peer has read that yet"


def test_who_is_out_and_gone_keeps_nothing_that_the_run_could_go_back_to() -> None:
    """It may speak of its last checkpoint after it was let go."""
    scene = leading(B)
    scene.hears(B, m.Leave("asked to"))
    word = m.Kept(scene.lineage, (Version(0, 0, START),), 0, 0)
    scene.hears(B, word)
    assert scene.leader.joins.rollback.kept == {B: word}
    scene.on(v.PeerDisconnected(B, "end of stream"))
    assert scene.leader.joins.rollback.kept == {}


# Lives ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("life", [1, 2])
def test_a_peer_s_words_count_only_if_they_are_of_the_life_that_the_log_has(life: int) -> None:
    """A leader may take up the office, and read of B's new life, before it reads to the end of the
    connection with the old one, which holds nothing of what the new one has."""
    scene = leading(B, C)
    led_term = scene.core.led_term
    assert led_term is not None
    scene.leader.restarted(B)
    led_term.append(e.Cut(info(B, 1, incarnation=2), (A,), (Version(0, 0, START),)))
    if life == 2:
        scene.meets(B, incarnation=2)
    scene.hears(B, m.Kept(scene.lineage, (Version(0, 0, START),), 0, 0))
    scene.hears(B, m.Durable(works=False, why="full"))
    scene.hears(B, m.Have(scene.lineage, 0, 0, START))
    leader = scene.leader
    found = (B in leader.joins.rollback.kept, B in leader.reports.said.newest)
    assert (*found, leader.accounts.for_peer(B).broken == "full") == 3 * (life == 2,)


# What no peer could read ----------------------------------------------------------------------


def test_the_log_takes_nothing_that_no_peer_could_read() -> None:
    log = Log()
    log.append(run(), term=1)
    for body in (
        e.Left(A, LONG),
        e.Left(A, "two\nlines"),
        e.Elected(PeerId("")),
        e.Roots(A, -1, ()),
    ):
        with pytest.raises(LogError, match="could not be read"):
            log.append(body, term=1)
    assert log.last_index == 1
    log.append(e.Left(A, LONG[:TEXT_MAX]), term=1)


def test_a_leader_notes_what_it_cannot_write_once_and_goes_on() -> None:
    scene = leading(B)
    led_term, log = scene.core.led_term, scene.core.raft.log
    assert led_term is not None
    last, notes = log.last_index, list[str]()
    for _ in range(3):
        led_term.leader.removals.gone[B] = (False, LONG)
        scene.core.raised = wakeups.ALL  # No event brings such a reason.
        scene.on(v.DeadlineReached(), after_s=0.1)
        notes += scene.notes("log")
    assert log.last_index == last
    (note,) = notes
    assert note.startswith("not decided: entry ")
    assert "Lost.why: expected a text of at most 1024 characters" in note
    scene.joins(C)
    assert C in led_term.head.members, "other decisions follow"


def test_a_founder_whose_first_entry_nobody_could_read_does_not_begin() -> None:
    core = PeerCore(identity(A), join=False)
    said = core.handle(v.Bootstrap(replace(run(), peers_min=1 << 32), (START,)), 0.0)
    (stop,) = [x for x in said if isinstance(x, c.Stop)]
    assert "Run.peers_min: expected an integer in [0, 4294967296)" in stop.why
    assert not any(isinstance(x, c.Persist) for x in said)


def test_a_broken_disk_says_why_in_what_travels() -> None:
    """The path in its reason is as long as a person has made it."""
    scene = leading(B)
    scene.slow_disk = True
    scene.hears(B, m.Join("b", 9, info(B).address, "", ""))
    scene.on(
        v.PersistFailed(scene.core.raft.disk.write_number, f"cannot write /{'d' * 2000}: full\n")
    )
    assert len(scene.core.raft.disk.why) <= TEXT_MAX
