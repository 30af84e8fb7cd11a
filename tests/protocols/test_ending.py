"""When peers go, and what they say."""

from dataclasses import replace

import pytest

from protocols import commands as c
from protocols import entries as e
from protocols import events as v
from protocols import messages as m
from protocols.core import PeerCore
from protocols.ids import TensorSpec
from protocols.snapshots import pieces
from protocols.storage import Snapshot
from protocols.wire import encode_image
from tests.protocols.led import leading
from tests.protocols.room import RULES as ROOM_RULES
from tests.protocols.room import Room
from tests.protocols.scenes import (
    RULES,
    START,
    A,
    B,
    C,
    Follower,
    commit,
    contributor,
    follower,
    identity,
    info,
    log_of,
    members_of,
    result_digest,
    run,
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
    assert scene.core.standing.leaving == "finished"
    assert scene.sent(m.Leave) == [(A, m.Leave("finished"))]
    assert not scene.core.stopped
    scene.reads(e.Left(B, "finished"))
    assert scene.one(c.Stop) == c.Stop("finished", "finished")
    assert scene.on(v.DeadlineReached()) == [], "nothing comes after Stop"


def test_the_leader_may_go_before_it_has_written_that_down() -> None:
    scene = finishing()
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.said = scene.waits(RULES.silence_timeout_s)
    assert scene.one(c.Stop) == c.Stop("finished", "finished")


def test_the_leader_goes_last() -> None:
    scene = leading(B, outer_steps=1)
    scene.hears(B, m.Unable("crash"))
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
    assert scene.core.members.views[-1].view == 2


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
    image = members_of(log_of(*bodies, e.Left(B, "SIGTERM"))).image()
    for piece in pieces(Snapshot(len(bodies) + 1, 1, encode_image(image)), 1, 1):
        scene.hears(A, piece)
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
    layout = tuple(TensorSpec(0, f"{n:0100}", (1,), n) for n in range(10_000))
    core = PeerCore(identity(A), join=False)
    said = core.handle(v.Bootstrap(replace(run(), layout=layout), (START,)), 0.0)
    assert isinstance(said[-1], c.Stop)
    assert "fit into a message" in said[-1].why
