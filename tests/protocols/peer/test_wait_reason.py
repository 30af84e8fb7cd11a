"""What a person is told while nothing seems to happen."""

from dataclasses import replace

from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.peer.wait_reason import WaitReason, describe
from protocols.types.ids import Version
from tests.protocols.led import Led, leading
from tests.protocols.room import Room
from tests.protocols.scenes import (
    RULES,
    START,
    A,
    B,
    C,
    Follower,
    Scene,
    commit,
    follower,
    info,
    run,
    steered,
)


def said(scene: Scene) -> tuple[str, str]:
    wait = describe(scene.core, scene.now)
    assert wait.since <= scene.now
    return wait.phase, wait.reason


def test_a_joiner_tells_each_step_of_its_way() -> None:
    scene = Follower(B)
    assert said(scene) == ("joining", "the first entries of the log")
    scene.begins()
    assert said(scene) == ("joining", "a place in the run, from a, which leads")
    scene.gets_cut()
    assert said(scene) == ("joining", "state from a")
    assert describe(scene.core, scene.now).until == scene.now + RULES.transfer_timeout_s
    scene.gets_state()
    scene.reads(e.Member(info(B, 1)))
    assert said(scene) == ("waiting", "the first view, from a, which leads")


def test_a_founder_whose_disk_does_not_hold_the_first_entries_yet_says_so() -> None:
    scene = Scene(A, join=False)
    scene.on(v.RunAccepted(RULES))
    scene.core.handle(v.Bootstrap(run(), (START,)), scene.now)
    awaited = "this node's disk: it does not hold the first entries of the log yet"
    assert said(scene) == ("waiting", awaited)


def test_a_joiner_that_cannot_read_what_a_peer_sends_says_so() -> None:
    """Seen: it waited for ever, without a reason."""
    scene = Follower(B)
    why = "its bytes are no message: Append.entries: LogEntry.body: Run.layout: expected 0 to 9"
    scene.on(v.PeerDisconnected(A, why))
    expected = f"the first entries of the log; the last connection, with a, ended: {why}"
    assert said(scene) == ("joining", expected)
    scene.begins()
    assert said(scene) == ("joining", "a place in the run, from a, which leads")


def test_a_joiner_that_is_sent_a_bad_snapshot_says_so() -> None:
    scene = Follower(B)
    scene.hears(A, m.Install(1, 2, 9, 2, 0, 3, b"bad"))
    phase, reason = said(scene)
    assert phase == "joining"
    assert "with a, ended: sends a bad snapshot" in reason


def test_a_leader_says_who_is_missing() -> None:
    scene = Led(peers_min=3)
    assert said(scene) == ("waiting", "2 more members (peers_min = 3)")
    scene.joins(B, able=False)
    assert said(scene) == ("waiting", "1 more member (peers_min = 3)")
    scene.joins(C)
    assert said(scene) == ("waiting", "the ranks of a, b")


def test_ranks_that_train_wait_for_nobody() -> None:
    scene = follower(B, C)
    assert said(scene) == ("training", "")
    scene.on(v.TrainersLost("crash"))
    assert said(scene) == ("training", "its ranks")


def test_a_reduction_says_whom_it_waits_for_and_since_when() -> None:
    scene = follower(B, C)
    scene.now += 5.0
    scene.encode(1)
    began = scene.now
    scene.now += 5.0
    wait = describe(scene.core, scene.now)
    assert wait == WaitReason("reducing", "round 1: a, c", began, scene.core.deadline)
    scene.slices(scene.stamp(1), A, C, parts=[1])
    scene.result(scene.stamp(1), 0, A, A, B, C)
    assert said(scene) == ("reducing", "round 1: c")
    scene.result(scene.stamp(1), 2, C, A, B, C)
    assert said(scene) == ("reducing", "round 1: the commit, from a, which leads")


def test_a_peer_that_lacks_an_earlier_round_says_so() -> None:
    """Seed 2001089: it said that it waits for the commit."""
    scene = follower(B, C)
    for round_ in (1, 2):
        scene.reads(commit(scene, round_, A, B, C))
    scene.on(v.ContributionReady(0, 100, 10))
    assert said(scene) == ("reducing", "the result of round 1, from a, c")
    scene.on(v.PeerDisconnected(C, "end of stream"))
    assert said(scene) == ("reducing", "the result of round 1, from a")


def test_an_election_is_told_and_so_is_why_there_can_be_none() -> None:
    scene = follower(B, C)
    scene.reads(e.Voter(B, votes=True, why=""), e.Voter(C, votes=True, why=""))
    scene.on(v.PeerDisconnected(A, "end of stream"))
    assert said(scene) == ("waiting", "a connection with a, which leads")
    assert describe(scene.core, scene.now).since == scene.now
    scene.on(v.PeerDisconnected(C, "end of stream"))
    assert said(scene) == ("waiting", "a majority of the voters: a, c cannot be reached")


def test_a_leader_says_who_has_to_report_before_it_can_commit() -> None:
    scene = leading(B, C)
    scene.encode(1)
    scene.slices(scene.stamp(1), B, C, parts=[0])
    scene.reduced(scene.stamp(1), 0)
    for part, owner in enumerate((B, C), 1):
        scene.result(scene.stamp(1), part, owner, A, B, C)
    assert said(scene) == ("reducing", "round 1: the commit, once these report: b, c")


def test_the_voters_are_named_while_there_is_no_leader() -> None:
    scene = follower(B, C)
    scene.reads(e.Voter(B, votes=True, why=""), e.Voter(C, votes=True, why=""))
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.now += 3 * RULES.silence_timeout_s
    scene.on(v.DeadlineReached())
    assert said(scene) == ("waiting", "an election, in which a, c vote")


def test_the_end_is_told_too() -> None:
    scene = follower(B, C)
    scene.on(v.LeaveRequested("SIGTERM"))
    assert said(scene) == ("stopping", "SIGTERM")
    done = leading(outer_steps=1)
    done.core.rounds[0].version = 1  # As if it were applied.
    assert said(done) == ("finished", "")


def test_a_state_for_a_member_is_told_as_joining() -> None:
    scene = follower(B, C)
    scene.reads(e.Cut(info(B, 2), (C,), (Version(0, 0, START),)))
    assert said(scene) == ("joining", "state from c")


def test_a_node_that_lost_its_checkpoints_with_the_others_away_says_that_it_cannot_go_on() -> None:
    """Seen: it waited for ever for "a majority of the voters", and never went on alone."""
    room = Room("ab")
    room.all_contribute()
    room.kill("a")
    room.kill("b")
    room.restart("b", incarnation=2)
    room.wait(2 * RULES.lonely_after_s)
    wait = describe(room.peers["b"], room.now)
    assert (wait.phase, wait.reason) == (
        "waiting",
        "a majority of the voters: a cannot be reached; this node has no complete checkpoint to go "
        "on from: put its checkpoints back, or start a node that has the state or a checkpoint of "
        "it again",
    )


def test_a_newcomer_is_not_told_of_checkpoints_that_it_never_had() -> None:
    room = Room("a")
    for witness in "wx":
        room.add(witness, witness=True)
    room.wait(2.0)
    room.kill("a")
    room.wait(2 * RULES.silence_timeout_s)
    room.add("b")
    room.wait(2.0)
    leader = next(name for name in "wx" if room.peers[name].leads)
    assert describe(room.peers["b"], room.now).reason == (
        f"a place in the run, from {leader}, which leads: no member is left to give it the state; "
        "start a node that has the state or a checkpoint of it again"
    )


def test_the_last_node_of_a_run_that_lost_its_checkpoints_says_so() -> None:
    """Two witnesses keep the log. Seen: "a place in the run", for ever."""
    room = Room("a")
    for witness in "wx":
        room.add(witness, witness=True)
    room.wait(2.0)
    room.contribute("a")
    room.kill("a")
    room.wait(2 * RULES.silence_timeout_s)
    room.restart("a", incarnation=2)
    room.wait(20 * RULES.silence_timeout_s)
    wait = describe(room.peers["a"], room.now)
    assert (wait.phase, wait.reason) == (
        "joining",
        "a place in the run, from x, which leads: no member is left to give it the state; this "
        "node has no complete checkpoint to go on from: put its checkpoints back, or start a node "
        "that has the state or a checkpoint of it again",
    )


def test_a_paused_run_names_the_operator_until_it_goes_on() -> None:
    room = Room("ab")
    room.all_contribute()
    lineage = room.peers["a"].run_state.lineage
    pause = steered("pause", lineage=lineage, why="noon", by=room.ids["a"])
    room.feed("a", v.ActAsked(pause))
    paused = f"the run is paused by {room.ids['a']} (noon)"
    core = room.peers["b"]
    assert describe(core, room.now).reason == paused
    room.contribute("b")
    assert describe(core, room.now).reason == "round 2: a", "the open round ends"
    room.contribute("a")
    room.all_contribute()
    room.wait(2 * RULES.round_grace_s)
    assert core.run_state.committed(0) == 2
    wait = describe(core, room.now)
    assert (wait.phase, wait.reason) == ("waiting", paused)
    room.feed("b", v.ActAsked(replace(pause, what="continue", number=2, by=room.ids["b"])))
    room.wait(1.0)
    assert core.run_state.committed(0) == 3
