"""Whole rounds between several cores: what is counted, what is not, and what a loss costs."""

from dataclasses import replace

import pytest

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.peer.core import PeerCore
from protocols.peer.wait_reason import describe
from protocols.types.ids import PROTOCOL_VERSION, Contributor, PeerId, Stamp, digest_text
from tests.protocols.led import Led, leading, written
from tests.protocols.room import RULES as ROOM_RULES
from tests.protocols.room import Room, is_message
from tests.protocols.scenes import (
    RULES,
    STRANGER,
    A,
    B,
    C,
    caught_up,
    contributor,
    follower,
    identity,
    join,
)


def test_a_healthy_round_writes_one_entry_and_all_arrive_at_one_state() -> None:
    room = Room("abc")
    before = room.peers["a"].raft.log.last_index
    room.all_contribute()
    assert room.peers["a"].raft.log.last_index == before + 1
    assert room.rosters() == [["a", "b", "c"]]
    assert len(room.digests()) == 1
    for name in room.peers:
        assert room.last(name, c.Resume) == c.Resume(0, 1, "counted", first=False, finish=False)


def test_rounds_begin_when_enough_members_are_in_and_able() -> None:
    room = Room("ab")
    assert room.log(e.View) != []
    alone = Room("a")
    assert describe(alone.peers["a"], 0.0).phase == "training"
    lonely = Room("abc")
    waiting = lonely.log(e.View)
    assert [len(view.roster) for view in waiting] == [3]


def test_a_straggler_of_an_earlier_round_does_not_count() -> None:
    room = Room("abc")
    room.all_contribute()
    old = next(x for x in room.given["c"] if isinstance(x, c.SendSlice))
    before = room.peers["a"].raft.log.last_index
    room.feed("a", v.SliceReceived(room.ids["c"], old.stamp, old.part, old.contributor))
    assert isinstance(room.given["a"][-1], c.Discard)
    assert room.peers["a"].raft.log.last_index == before


def test_a_strangers_payload_changes_nothing() -> None:
    room = Room("ab")
    stranger = Contributor(room.ids["b"], 1, 1, digest_text("x"))
    stamp = Stamp(1, room.peers["a"].run_state.lineage, 1, 0, 1, 0)
    event = v.SliceReceived(Room("z").ids["z"], stamp, 0, stranger)
    room.feed("a", event)
    assert room.given["a"][-1] == c.Discard(event)


def test_the_lost_ones_part_is_summed_again_and_only_its_slices_travel_again() -> None:
    room = Room("abc")
    for name in ("a", "b"):
        room.contribute(name)
    before = {name: len(room.given[name]) for name in room.peers}
    room.hold = lambda name, event: name == "c"
    room.feed("a", v.PeerDisconnected(room.ids["c"], "end of stream"))
    room.feed("b", v.PeerDisconnected(room.ids["c"], "end of stream"))
    del room.peers["c"]
    room.wait(1.0)
    [attempt] = room.log(e.Attempt)
    assert attempt.roster == (room.ids["a"], room.ids["b"])
    assert attempt.why == "without c"
    assert room.rosters() == [["a", "b"]]
    again = [x for n in "ab" for x in room.given[n][before[n] :] if isinstance(x, c.SendSlice)]
    assert {x.part for x in again} == {2}, "parts of survivors have travelled already"
    assert len(room.digests("a", "b")) == 1


def test_what_all_survivors_hold_is_committed_with_the_dead_ones_work() -> None:
    room = Room("abc")
    room.hold = lambda name, event: is_message(event, m.Hold)
    room.all_contribute()
    assert room.rosters() == []
    room.held = [(n, x) for n, x in room.held if isinstance(x, v.MessageReceived)]
    room.hold = lambda name, event: name == "c"
    del room.peers["c"]
    for name, event in [x for x in room.held if x[0] != "c"]:
        if not (isinstance(event, v.MessageReceived) and event.peer == room.ids["c"]):
            room.feed(name, event)
    for name in ("a", "b"):
        room.feed(name, v.PeerDisconnected(room.ids["c"], "end of stream"))
    room.wait(1.0)
    assert room.rosters() == [["a", "b", "c"]]
    assert room.log(e.Attempt) == []


def test_the_late_one_is_left_out_rebased_and_counts_once_later() -> None:
    room = Room("abc")
    for name in ("a", "b"):
        room.contribute(name, tokens=100)
    room.wait(ROOM_RULES.round_grace_s + 1)
    assert room.rosters() == [["a", "b"]]
    [attempt] = room.log(e.Attempt)
    assert "c not ready within the grace window" in attempt.why
    room.contribute("c", tokens=70)
    for name in ("a", "b"):
        room.contribute(name)
    assert room.rosters() == [["a", "b"], ["a", "b", "c"]]
    assert len(room.digests()) == 1
    manifests = [x.manifest for commit in room.log(e.Commit) for x in commit.contributors]
    assert len(set(manifests)) == len(manifests)


def test_ranks_that_crash_after_contributing_do_not_contribute_twice_to_one_round() -> None:
    """Found by the simulator, seed 1150: the commit listed other bytes than were summed."""
    room = Room("abc")
    room.contribute("c")
    room.feed("c", v.TrainersLost("crash"))
    room.feed("c", v.TrainersReady())
    room.feed("c", v.TrainersAble())
    room.contribute("c")
    first = [x for x in room.given["c"] if isinstance(x, c.Encode)]
    assert [x.round for x in first] == [1]
    for name in ("a", "b"):
        room.contribute(name)
    assert room.rosters() == [["a", "b", "c"]]
    for name in ("a", "b"):
        room.contribute(name)
    assert [x.round for x in room.given["c"] if isinstance(x, c.Encode)] == [1, 2]
    assert room.rosters()[1] == ["a", "b", "c"]
    assert len(room.digests()) == 1


def test_a_connection_that_breaks_in_a_round_is_made_good() -> None:
    room = Room("abc")
    room.hold = lambda name, event: (
        name == "b" and isinstance(event, v.SliceReceived | v.ResultReceived)
    )
    room.all_contribute()
    assert room.rosters() == []
    room.held.clear()  # What was under way is lost with the connections.
    room.hold = lambda name, event: False
    for other in ("a", "c"):
        room.part("b", other)
        room.meet("b", other)
    assert room.rosters() == [["a", "b", "c"]]
    room.wait(5.0)  # Who lost a result with its connection fetches it.
    assert len(room.digests()) == 1


def test_nothing_is_applied_before_the_commit() -> None:
    room = Room("abc")
    room.hold = lambda name, event: is_message(event, m.Append)
    room.all_contribute()
    assert [x for n in ("b", "c") for x in room.given[n] if isinstance(x, c.ApplyRound)] == []
    room.release()
    assert len(room.digests()) == 1


def test_a_joiner_is_a_receiver_from_its_cut_on_and_contributes_after_half_a_round() -> None:
    room = Room("ab")
    room.contribute("a")
    joiner = room.add("d")
    cut = next(x for x in room.log(e.Cut, of="a") if x.info.peer == joiner)
    assert cut.donors[0] != joiner
    assert joiner in room.peers["a"].run_state.members
    room.contribute("b")
    assert room.rosters() == [["a", "b"]]
    assert len(room.digests()) == 1, "the round in flight reached it too"
    room.feed("d", v.TrainersAble())
    room.all_contribute()
    assert room.rosters()[1] == ["a", "b", "d"]


def test_a_state_that_is_not_the_cuts_is_not_taken() -> None:
    room = Room("ab")
    room.hold = lambda name, event: isinstance(event, v.StateReceived)
    joiner = room.add("d")
    [(name, event)] = [x for x in room.held if isinstance(x[1], v.StateReceived)]
    assert isinstance(event, v.StateReceived)
    lie = v.StateReceived(event.cut_index, 0, event.round, digest_text("lie"))
    room.held.clear()
    room.hold = lambda name, event: False
    room.feed(name, lie)
    assert not any(
        isinstance(x, c.AdoptState) and x.cut_index == event.cut_index for x in room.given["d"]
    )
    assert joiner in room.peers["a"].run_state.members, "it asked again and got it"
    assert len(room.digests()) == 1


def test_a_differing_peer_is_named_and_healed_from_the_majority() -> None:
    room = Room("abc")
    room.all_contribute()
    room.peers["c"].rounds[0].state_digest = digest_text("cosmic ray")
    room.hold = lambda name, event: False
    room.all_contribute()
    room.all_contribute()
    notes = [x for n in room.peers for x in room.given[n] if isinstance(x, c.Observation)]
    assert any("diverged" in note.kind or "differs" in note.text for note in notes)
    assert len(room.digests()) == 1


def test_who_was_declared_lost_and_lives_comes_back_with_its_work() -> None:
    room = Room("abc")
    room.part("a", "c")
    room.wait(1.0)
    assert room.log(e.Lost) != []
    room.meet("a", "c")
    room.wait(1.0)
    assert room.ids["c"] in room.peers["a"].run_state.members
    room.contribute("c", tokens=33)
    for name in ("a", "b"):
        room.contribute(name)
    assert room.rosters() == [["a", "b", "c"]]
    assert len(room.digests()) == 1


def test_the_last_round_finishes_everybody_and_the_leader_goes_last() -> None:
    room = Room("ab", outer_steps=1)
    room.all_contribute()
    for name in "ab":
        assert room.last(name, c.Resume) == c.Resume(0, 1, "counted", first=False, finish=True)
    room.wait(1.0)
    stops = [room.last(name, c.Stop) for name in "ab"]
    assert [x.outcome for x in stops if isinstance(x, c.Stop)] == ["finished", "finished"]


def test_who_was_healed_reports_the_rounds_that_it_applies_again() -> None:
    """Simulated: the leader went on believing what it had been told of the newest of them."""
    room = Room("abc")
    room.all_contribute()
    room.peers["c"].rounds[0].state_digest = digest_text("cosmic ray")
    room.hold = lambda name, event: isinstance(event, v.StateReceived)
    for _ in range(3):
        room.all_contribute()
    led_term = room.peers["a"].led_term
    assert led_term is not None
    states = led_term.leader.reports.states(0, 4)
    assert (len(states), len(set(states.values()))) == (3, 2)
    room.release()
    assert len(room.digests()) == 1
    assert set(states.values()) == room.digests()


def test_nobody_goes_while_the_leader_waits_for_the_right_state() -> None:
    """Simulated: it was named five rounds before the end, and ended with its own state: it had
    reported one of the last round, and those that could heal it left."""
    room = Room("abc", outer_steps=5)
    room.all_contribute()
    assert room.leader() == "a"
    room.peers["a"].rounds[0].state_digest = digest_text("cosmic ray")
    room.hold = lambda name, event: isinstance(event, v.StateReceived)
    for _ in range(4):
        room.all_contribute()
    room.wait(1.0)
    assert len(room.digests("b", "c")) == 1 < len(room.digests())
    assert room.log(e.Left) == []
    room.release()
    room.wait(1.0)
    assert len(room.digests()) == 1
    stops = [room.last(name, c.Stop) for name in "abc"]
    assert [x.outcome for x in stops if isinstance(x, c.Stop)] == ["finished"] * 3


def test_a_rule_breaker_is_cut_off_and_nobody_else_is_hurt() -> None:
    room = Room("abc")
    before, members = room.bodies("c"), room.peers["c"].run_state.members
    forged = e.LogEntry(2, 2, e.Left(room.ids["a"], "forged"))
    room.feed("c", v.MessageReceived(room.ids["b"], m.Append(1, 2, 1, 1, (forged,), 2)))
    assert any(isinstance(x, c.Disconnect) and x.peer == room.ids["b"] for x in room.given["c"])
    assert room.bodies("c")[: len(before)] == before
    assert room.ids["a"] in members
    room.wait(3 * ROOM_RULES.election_timeout_s)
    assert room.leader() != ""


def test_a_hello_says_where_the_leader_is() -> None:
    room = Room("ab")
    assert room.peers["a"].connectivity.leader_address() == "a:1"
    assert room.peers["b"].connectivity.leader_address() == "a:1"
    assert PROTOCOL_VERSION >= 1


# One core alone -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        m.ContributionOffered(Stamp(1, 0, 1, 0, 1, 0), contributor(STRANGER)),
        m.Hold(Stamp(1, 0, 1, 0, 1, 0), digest_text("x")),
        m.Have(0, 0, 9, digest_text("x")),
        m.WaitsForPeers(Stamp(1, 0, 1, 0, 1, 0), (B,)),
        m.ReadyToTrain(),
        m.NotReadyToTrain(""),
        m.Leave("bye"),
        m.Fetch(Stamp(1, 0, 1, 0, 1, 0), 0),
        caught_up(STRANGER, 5),
        m.HeartbeatReply(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_nothing_that_a_stranger_says_changes_anything(message: m.Control) -> None:
    scene = leading(B)
    if isinstance(message, m.ContributionOffered | m.Hold | m.WaitsForPeers | m.Fetch):
        message = replace(message, stamp=replace(message.stamp, lineage=scene.lineage))
    elif isinstance(message, m.Have):
        message = replace(message, lineage=scene.lineage)
    scene.meets(STRANGER)
    log = list(scene.core.raft.log.entries)
    assert scene.hears(STRANGER, message) == []
    assert scene.core.raft.log.entries == log
    assert not scene.core.rounds[0].work.others_wait
    assert scene.leader.reports.rounds == {}


def test_what_a_leader_tells_itself_is_decided_upon_at_once() -> None:
    """Nothing else may happen for a long time: its own ranks wait for this round."""
    # Fails while a message of the leader to itself is no progress to PeerCore._progress.
    scene = Led()
    scene.on(v.TrainersReady())
    assert len(written(scene, e.View)) == 1
    scene.encode(1)
    scene.reduced(scene.stamp(1), 0)
    assert scene.entries(e.Commit) != []


def test_only_the_leader_hurries_our_ranks() -> None:
    scene = follower(B, C)
    scene.hears(C, m.ContributeNow(scene.stamp(1)))
    assert not scene.core.rounds[0].work.others_wait
    scene.hears(A, m.ContributeNow(scene.stamp(1)))
    assert scene.core.rounds[0].work.others_wait


def test_a_stranger_gets_no_result() -> None:
    scene = leading()
    scene.encode(1)
    stamp = scene.stamp(1)
    scene.reduced(stamp, 0)
    scene.meets(STRANGER)
    assert scene.hears(STRANGER, m.Fetch(stamp, 0)) == []


@pytest.mark.parametrize("revoked", [False, True])
@pytest.mark.parametrize("peer", [A, C])
def test_no_message_ends_a_peer_that_reads_the_log(peer: PeerId, revoked: bool) -> None:
    """Not even one of the leader, which is A, nor one that calls it revoked."""
    scene = follower(B, C)
    for voter in (B, C):
        scene.reads(e.Voter(voter, votes=True, why=""))
    scene.hears(peer, m.Refused("go away", revoked))
    assert not scene.core.stopped
    assert f"{peer}: refuses us: go away" in scene.notes("misbehaviour")
    assert [x.peer for x in scene.all(c.Disconnect)] == [peer]
    scene.waits(60.0)
    assert not scene.core.stopped
    led = leading(B)
    led.hears(B, m.Refused("go away", revoked))
    assert not led.core.stopped


def test_a_joiner_tries_the_other_addresses_of_its_token_before_it_gives_up() -> None:
    core = PeerCore(identity(B), join=True, contacts=("a:1", "c:1", "d:1"))
    assert c.Connect(PeerId(""), "a:1") in core.handle(v.DeadlineReached(), 0.0)
    core.handle(v.PeerConnected(A, 1, "a:1", ""), 0.1)
    said = core.handle(v.MessageReceived(A, m.Refused("no run begins")), 0.2)
    assert c.Observation("dial", "refused by a: no run begins: trying c:1") in said
    assert c.Connect(PeerId(""), "c:1") in said
    said = core.handle(v.ContactRefused("no peer answers at c:1"), 0.3)
    assert c.Connect(PeerId(""), "d:1") in said
    assert not core.stopped
    said = core.handle(v.ContactRefused("no peer answers at d:1"), 0.4)
    assert c.Stop("no peer answers at d:1", "refused") in said


def test_an_address_that_refuses_a_peer_of_the_run_is_noted() -> None:
    scene = follower(B, C)
    scene.on(v.ContactRefused("refused by x:1"))
    assert scene.notes("dial") == ["refused by x:1"]
    assert not scene.core.stopped


def test_a_leader_that_sends_an_invalid_entry_is_named_and_no_peer_stops() -> None:
    scene = follower(B, C)
    scene.reads(e.Left(STRANGER, "?"), e.Left(C, "x"))
    (said,) = scene.notes("misbehaviour")
    assert "loses mallory.6666666f, which is not there" in said
    assert scene.one(c.Disconnect).peer == A
    assert not scene.core.stopped
    scene.meets(A)
    scene.beat()
    assert scene.core.leader_id is None
    assert C in scene.core.run_state.members


def test_a_peer_that_sent_an_invalid_entry_gets_no_vote() -> None:
    scene = follower(B, C)
    scene.reads(e.Voter(B, votes=True, why=""), e.Voter(C, votes=True, why=""))
    scene.reads(e.Left(STRANGER, "?"))
    asks = m.Vote(2, 99, 1, pre=False, urgent=False)
    for peer in (A, C):
        scene.hears(peer, asks)
        assert [x.granted for _, x in scene.sent(m.Voted)] == [peer == C]


def test_the_log_of_another_run_is_not_read() -> None:
    scene = follower(B, C)
    entry = e.LogEntry(scene.log.last_index + 1, 1, e.Left(C, "x"))
    scene.hears(A, m.Append(2, 1, scene.log.last_index, 1, (entry,), entry.index))
    assert scene.core.raft.log.last_index == scene.log.last_index
    assert scene.notes("misbehaviour") != []


def test_a_member_that_breaks_a_rule_is_lost_unless_it_comes_back() -> None:
    scene = leading(B, C)
    scene.hears(B, m.Have(scene.lineage, 0, 7, digest_text("x")))
    assert scene.notes("misbehaviour") == [f"{B}: reports a state that was never committed"]
    assert scene.one(c.Disconnect).peer == B
    scene.waits(RULES.reconnect_grace_s)
    assert B not in scene.core.run_state.members
    assert C in scene.core.run_state.members


def test_what_a_follower_is_told_of_the_leaders_business_is_nothing_to_it() -> None:
    scene = follower(B, C)
    for message in (m.ReadyToTrain(), m.Leave("x"), join(C), m.ReadLog(0)):
        assert scene.hears(C, message) == []
