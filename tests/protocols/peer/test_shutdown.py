"""When peers go, and what they say."""

from dataclasses import replace

import pytest

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.leader.decisions import Leader
from protocols.leader.joins import Joins
from protocols.leader.peer_accounts import Accounts
from protocols.leader.reports import Reports
from protocols.leader.step_views import StepViews
from protocols.links.connections import Connections
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.messages.persisted import Snapshot
from protocols.peer.connectivity import OUTAGE
from protocols.peer.core import PeerCore
from protocols.raft.node import Raft
from protocols.raft.snapshot_chunks import pieces
from protocols.state import transitions
from protocols.types.ids import PeerId, Version
from protocols.wire.codec import encode_image
from tests.protocols.led import leading
from tests.protocols.room import RULES as ROOM_RULES
from tests.protocols.room import Room
from tests.protocols.scenes import (
    RULES,
    START,
    A,
    B,
    C,
    D,
    Follower,
    caught_up,
    commit,
    contributor,
    follower,
    identity,
    info,
    join,
    log_of,
    members_of,
    result_digest,
    run,
    told_in,
    view,
)


def finishing() -> Follower:
    """The only round is applied."""
    scene = Follower(B)
    scene.begins(outer_steps=1)
    scene.gets_cut()
    scene.gets_state()
    scene.reads(e.Member(info(B, 1)))
    scene.on(v.TrainersReady())
    scene.reads(view(1, A, B))
    scene.reads(commit(scene, 1, A, B))
    for part in range(3):
        scene.result(scene.stamp(1), part, A, A, B)
    scene.applied(1)
    return scene


def test_a_follower_that_has_finished_waits_for_the_leaders_word() -> None:
    scene = finishing()
    assert scene.core.member_status.leaving == "finished"
    assert scene.sent(m.Leave) == [(A, m.Leave("finished"))]
    assert not scene.core.stopped
    scene.reads(e.Left(B, "finished"))
    assert scene.one(c.Stop) == c.Stop("finished", "finished")
    assert scene.on(v.DeadlineReached()) == [], "nothing comes after Stop"


def test_the_leader_may_go_before_it_has_written_that_down() -> None:
    """It may only be cut off, too, and need our vote and our state (seed 690): we stay for a while,
    unless nobody else is left in the log."""
    scene = finishing()
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.waits(2 * RULES.silence_timeout_s)
    assert not scene.core.stopped
    scene.said = scene.waits(OUTAGE * RULES.silence_timeout_s)
    assert scene.one(c.Stop) == c.Stop("finished", "finished")


def test_the_leader_goes_last() -> None:
    scene = leading(B, outer_steps=1)
    scene.hears(B, m.NotReadyToTrain("crash"))
    scene.encode(1)
    stamp = scene.stamp(1, number=2)
    scene.reduced(stamp, 0)
    scene.hears(B, m.Hold(stamp, result_digest((contributor(A),), 1)))
    scene.applied(1)
    assert scene.one(c.Resume).finish
    assert not scene.core.stopped
    scene.hears(B, m.Leave("finished"))
    assert scene.one(c.Stop) == c.Stop("finished", "finished")


def test_a_follower_without_its_leader_waits_however_long() -> None:
    """Somebody may be elected, or start again what was killed: only a person gives a run up."""
    scene = follower(B, C)
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.waits(20 * RULES.silence_timeout_s)
    assert not scene.core.stopped


def test_a_leader_that_comes_back_is_followed_on() -> None:
    scene = follower(B, C)
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.waits(RULES.silence_timeout_s / 2)
    scene.meets(A)
    scene.beat()
    assert scene.core.leader_id == A
    scene.reads(view(2, A, B))
    assert scene.core.run_state.views[-1].view == 2


def test_our_own_pause_is_not_the_leaders_silence() -> None:
    """Seed 1008: a follower that had been stopped blamed its leader."""
    scene = follower(B, C)
    scene.on(v.DeadlineReached(), after_s=20 * RULES.silence_timeout_s)
    assert not scene.core.stopped
    assert scene.all(c.Send) != [], "it says that it is there"


@pytest.mark.parametrize("connected", [True, False])
def test_who_is_asked_to_leave_goes_when_the_leader_knows_or_cannot_know(connected: bool) -> None:
    scene = follower(B, C)
    if not connected:
        scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.on(v.LeaveRequested("SIGTERM"))
    if connected:
        assert not scene.core.stopped
        scene.reads(e.Left(B, "SIGTERM"))
    assert scene.one(c.Stop) == c.Stop("SIGTERM", "left")


def test_who_reads_in_a_snapshot_that_it_is_out_goes() -> None:
    """Seed 1164: it was stopped meanwhile, and waited for a word that was in no log any more."""
    scene = follower(B, C)
    scene.on(v.LeaveRequested("SIGTERM"))
    bodies = [entry.body for entry in scene.log.entries]
    image = transitions.image_of(members_of(log_of(*bodies, e.Left(B, "SIGTERM"))))
    for piece in pieces(Snapshot(len(bodies) + 1, 1, encode_image(image)), 1, 1):
        scene.hears(A, piece)
    assert scene.one(c.Stop) == c.Stop("SIGTERM", "left")


def reads_that_it_was_struck(scene: Follower, back_to: int | None) -> None:
    """A snapshot says that B was struck, and that the run went back to that outer step."""
    run_state, bodies = scene.core.run_state, [entry.body for entry in scene.log.entries]
    since: list[e.Entry] = [e.Lost(B, "silent")]
    if back_to is not None:
        version = Version(0, back_to, scene.core.part.rounds[0].state_digest)
        since.append(e.Restore(run_state.lineage, (version,), 0, 0, (), 0, False, 1))
    image = transitions.image_of(members_of(log_of(*bodies, *since)))
    for piece in pieces(Snapshot(len(bodies) + len(since), 1, encode_image(image)), 1, 1):
        scene.hears(A, piece)


@pytest.mark.parametrize("back_to", [None, 1])
def test_a_finished_peer_that_a_snapshot_says_was_struck_has_finished(back_to: int | None) -> None:
    """Seed 716: the run had gone back to a checkpoint of the last round, which this peer holds."""
    scene = finishing()
    reads_that_it_was_struck(scene, back_to)
    assert scene.one(c.Stop) == c.Stop("finished", "finished")


def test_a_finished_peer_joins_again_if_the_run_went_back_behind_the_last_round() -> None:
    """Seed 3158276729: it ended as a node that had left, and the others went on without it."""
    scene = finishing()
    reads_that_it_was_struck(scene, 0)
    assert scene.all(c.Stop) == []
    assert m.Join in [type(sent.message) for sent in scene.all(c.Send)]


def test_a_finished_peer_that_was_asked_to_leave_leaves_though_the_run_went_back() -> None:
    scene = follower(B, C)
    scene.on(v.LeaveRequested("SIGTERM"))
    reads_that_it_was_struck(scene, 0)
    assert scene.one(c.Stop) == c.Stop("SIGTERM", "left")


def test_a_joiner_that_is_asked_to_leave_just_goes() -> None:
    scene = Follower(B)
    scene.begins()
    scene.on(v.LeaveRequested(""))
    assert scene.one(c.Stop) == c.Stop("asked to leave", "left")


def test_a_leader_that_is_asked_to_leave_ends_the_run() -> None:
    scene = leading(B)
    scene.on(v.LeaveRequested("SIGINT"))
    assert scene.one(c.Stop) == c.Stop("SIGINT", "left")


def test_a_run_whose_state_is_gone_for_good_ends_with_a_sentence() -> None:
    room = Room("ab")
    room.all_contribute()
    for name in "ab":
        room.kill(name)
    for name in "ab":
        room.restart(name, incarnation=2)
    room.meet("a", "b")
    room.wait(3 * ROOM_RULES.election_timeout_s + ROOM_RULES.silence_timeout_s)
    stops = [x for name in "ab" for x in room.given[name] if isinstance(x, c.Stop)]
    assert {stop.outcome for stop in stops} == {"failed"}
    assert all("start a new run" in stop.why for stop in stops)


def test_a_run_that_no_message_can_carry_does_not_begin() -> None:
    core = PeerCore(identity(A), join=False)
    said = core.handle(v.Bootstrap(replace(run(), run_json="x" * (1 << 20)), (START,)), 0.0)
    assert isinstance(said[-1], c.Stop)
    assert "fit into a message" in said[-1].why


# Who is needed yet -----------------------------------------------------------------------------

NOW = 20.0
"""Everybody had its time to speak."""
FOUNDED = (run(), e.Member(info(A)))


def cut(peer: PeerId, slot: int, *, donor: PeerId = A) -> e.Cut:
    return e.Cut(info(peer, slot), (donor,), (Version(0, 0, START),))


def leads(*bodies: e.Entry) -> Leader:
    """A leads, knows nothing but the log, and is connected with B and C."""
    links = Connections()
    for peer in (B, C):
        links.connected(v.PeerConnected(peer, 1, "", ""), NOW)
    run_state = members_of(log_of(*bodies))
    reports = Reports(A, run_state)
    joins = Joins(A, run_state, reports, Accounts(links))
    raft = Raft(A)
    raft.rules = RULES
    raft.found_run(NOW, bodies)
    raft.commit_index = raft.log.last_index
    return Leader(run_state, reports, joins, raft, StepViews(A, run_state))


def says(leader: Leader, peer: PeerId, message: m.Control) -> None:
    leader.handle_report(peer, told_in(leader.run_state.lineage, message), NOW)


def has(leader: Leader, peer: PeerId) -> None:
    says(leader, peer, m.Have(leader.run_state.lineage, 0, 0, START))


def asks(leader: Leader, peer: PeerId) -> None:
    says(leader, peer, join(peer, "restarted", incarnation=2))


def decide(leader: Leader, now: float) -> e.Entry | None:
    """The next entry, which holds at once."""
    body = leader.next_entry(now)
    if body is not None:
        run_state = leader.run_state
        transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, body))
    return body


def test_a_voter_that_leaves_helps_to_strike_those_that_nobody_reaches() -> None:
    """Seed 690: without it the leader and a voter that was cut off were no majority."""
    votes = (e.Voter(B, votes=True, why=""), e.Voter(C, votes=True, why=""))
    leader = leads(
        *FOUNDED, cut(B, 1), e.Member(info(B, 1)), cut(C, 2), e.Member(info(C, 2)), *votes
    )
    leader.raft.up.add(B)
    for peer in (A, B):
        has(leader, peer)
    says(leader, B, m.Leave("a person asked"))
    assert decide(leader, NOW) is None
    leader.raft.up.add(C)
    assert decide(leader, NOW) == e.Left(B, "a person asked")


def test_what_joiners_hold_keeps_nobody() -> None:
    """Seeds 3100237, 3100468: the only member went while those who had its state were joiners."""
    again = e.Cut(info(A, incarnation=2), (B,), (Version(0, 0, START),))
    leader = leads(*FOUNDED, cut(B, 1), e.Member(info(B, 1)), cut(C, 2), again)
    needs = leader.joins.needs
    has(leader, C)
    assert needs(B, patient=True), "it has not said what it holds, and C is not in yet"
    has(leader, A)
    has(leader, B)
    assert needs(B, patient=False), "nor is A, which could not give it to anybody"
    transitions.apply(
        leader.run_state,
        e.LogEntry(leader.run_state.index + 1, 1, e.Member(info(A, incarnation=2))),
    )
    assert not needs(B, patient=False)


def test_a_joiner_that_holds_the_only_state_gets_in_before_it_goes() -> None:
    """Seed 3100143: it was not let go, and nobody was given its state, for it was no member."""
    leader = leads(*FOUNDED, cut(B, 1))
    asks(leader, A)
    has(leader, B)
    says(leader, B, caught_up(B, leader.run_state.index))
    says(leader, B, m.Leave("a person asked"))
    assert decide(leader, NOW) == e.Member(info(B, 1))
    given = decide(leader, NOW)
    assert isinstance(given, e.Cut)
    assert (given.info.peer, given.donors) == (A, (B,))


def test_a_joiner_that_has_caught_up_has_time_to_say_what_it_holds() -> None:
    """Seeds 1325, 80204: the last round was committed, and it went before it told a new leader."""
    leader = leads(*FOUNDED, cut(B, 1))
    asks(leader, A)
    needs = leader.joins.needs
    assert not needs(B, patient=True), "it has a part of the state at most"
    says(leader, B, caught_up(B, leader.run_state.index))
    assert (needs(B, patient=True), needs(B, patient=False)) == (True, False)


def test_who_goes_and_has_no_state_either_does_not_keep_the_run_from_going_back() -> None:
    """Seeds 3100507, 3100557: all others asked, and it was kept for what it did not have."""
    leader = leads(*FOUNDED, cut(B, 1), e.Member(info(B, 1)))
    asks(leader, A)
    asks(leader, B)
    state = (Version(0, 0, START),)
    leader.joins.rollback.kept[B] = m.Kept(leader.run_state.lineage, state, 0, 0)
    says(leader, B, m.Leave("a person asked"))
    assert isinstance(decide(leader, NOW), e.Restore)
    late = NOW + RULES.transfer_timeout_s
    assert decide(leader, late) is None, "it has all its time again to say what it holds now"
    assert decide(leader, late + RULES.transfer_timeout_s) == e.Left(B, "a person asked")


def test_who_goes_is_given_nothing_unless_it_comes_back() -> None:
    leader = leads(*FOUNDED, cut(B, 1), e.Member(info(B, 1)))
    has(leader, A)
    leader.accounts.for_peer(B).going = True
    says(leader, B, join(B, "diverged"))
    assert leader.joins.next_entry(NOW) is None
    asks(leader, B)
    assert isinstance(leader.joins.next_entry(NOW), e.Cut)


def test_who_is_out_and_has_not_read_it_yet_asks_for_nothing() -> None:
    """Seed 3102563: it was made a joiner, stopped, and the leader waited for it at the end."""
    leader = leads(*FOUNDED, cut(B, 1), e.Member(info(B, 1)))
    has(leader, A)
    says(leader, B, m.Leave("a person asked"))
    assert decide(leader, NOW) == e.Left(B, "a person asked")
    says(leader, B, join(B, "diverged"))
    assert decide(leader, NOW) is None
    assert leader.joins.joins == {}
    asks(leader, B)
    assert isinstance(decide(leader, NOW), e.Cut), "a new life"


def test_who_is_out_and_has_not_read_it_yet_is_not_let_in() -> None:
    """Seed 6200162: all went back to what it kept, and it said that it holds that."""
    leader = leads(*FOUNDED, cut(B, 1), e.Member(info(B, 1)))
    for peer in (A, B):
        asks(leader, peer)
        state = (Version(0, 0, START),)
        leader.joins.rollback.kept[peer] = m.Kept(leader.run_state.lineage, state, 0, 0)
    assert isinstance(decide(leader, NOW), e.Restore)
    has(leader, A)
    says(leader, B, m.Leave("a person asked"))
    assert decide(leader, NOW + RULES.transfer_timeout_s) == e.Left(B, "a person asked")
    says(leader, B, caught_up(B, leader.run_state.restored_index))
    assert decide(leader, NOW) is None


# While a witness leads ------------------------------------------------------------------------


WATCHED = (run(), e.Member(info(B)), e.Witness(info(A)))
"""A leads, and trains nothing."""


def test_the_last_who_has_the_state_stays_for_a_joiner_though_a_witness_leads() -> None:
    """Step seed 26400125: who had finished went, and the joiner waited for ever. The run went back
    to the checkpoint of who was gone, again and again."""
    leader = leads(*WATCHED, cut(C, 1, donor=B))
    has(leader, B)
    says(leader, B, m.Leave("finished"))
    assert decide(leader, NOW) is None
    has(leader, C)
    says(leader, C, caught_up(C, leader.run_state.index))
    assert decide(leader, NOW) == e.Member(info(C, 1))
    assert decide(leader, NOW) == e.Left(B, "finished")


def test_of_several_who_have_the_state_one_stays() -> None:
    leader = leads(*WATCHED, cut(C, 1, donor=B), e.Member(info(C, 1)), cut(D, 2, donor=B))
    for peer in (B, C):
        has(leader, peer)
    needs = leader.joins.needs
    assert not needs(B, patient=True)
    says(leader, C, m.Leave("finished"))
    assert needs(B, patient=True), "C goes as well"


def test_the_last_who_trains_may_leave_a_witness_alone() -> None:
    leader = leads(*WATCHED)
    has(leader, B)
    says(leader, B, m.Leave("a person asked"))
    assert decide(leader, NOW) == e.Left(B, "a person asked")


def test_when_all_who_trained_are_out_the_run_goes_on_from_what_one_of_them_kept() -> None:
    """Step seed 26400108: the witness had struck both, and neither got in again."""
    leader = leads(*WATCHED, e.Lost(B, "silent"))
    assert not leader.hopeless(NOW), "nobody asks, and somebody may come back"
    state = (Version(0, 0, START),)
    leader.joins.rollback.kept[B] = m.Kept(leader.run_state.lineage, state, 0, 0)
    asks(leader, B)
    assert decide(leader, NOW) is None, "C may come, and keep more"
    assert isinstance(decide(leader, NOW + RULES.silence_timeout_s), e.Restore)
    says(leader, B, caught_up(B, leader.run_state.index, incarnation=2))
    assert decide(leader, NOW) == e.Member(info(B, incarnation=2))


def test_who_comes_without_the_state_waits_for_those_who_trained() -> None:
    leader = leads(*WATCHED, e.Lost(B, "silent"))
    asks(leader, C)
    late = NOW + 9 * RULES.silence_timeout_s
    for now in (NOW, late):
        assert decide(leader, now) is None
        assert not leader.hopeless(now)
