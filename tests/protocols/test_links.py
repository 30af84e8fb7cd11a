"""What keeps connections as they should be: heartbeats, renewal of hanging ones."""

from protocols import commands as c
from protocols import messages as m
from protocols.commands import Connect, Disconnect, Send
from protocols.events import PeerConnected
from protocols.links import Links
from protocols.liveness import Loss
from protocols.messages import Heartbeat
from tests.protocols.led import leading
from tests.protocols.scenes import RULES, STRANGER, A, B, C, follower, identity


def linked() -> Links:
    links = Links(identity(B), leads=False)
    links.connected(PeerConnected(A, 1, "a:1", "a:1"), 0.0)
    return links


def test_the_leader_is_up_while_it_is_connected() -> None:
    links = linked()
    assert links.leader_is_up
    links.close(A, "why", 1.0)
    assert not links.leader_is_up
    assert links.up == set()


def test_heartbeats_say_how_far_our_log_is() -> None:
    links = linked()
    assert links.keep_up(0.1, 7) == []
    assert links.keep_up(0.6, 7) == [Send(A, Heartbeat(7))]


def test_a_silent_connection_is_closed_and_dialled_again_if_we_dialled() -> None:
    links = linked()
    assert links.dial(C, "c:1") == Connect(C, "c:1")
    silent = Loss(C, "silent for 10.0 s", silent=True)
    assert links.renew(silent) == [Disconnect(C, silent.why), Connect(C, "c:1")]
    dialled_us = Loss(A, "silent for 10.0 s", silent=True)
    assert links.renew(dialled_us) == [Disconnect(A, dialled_us.why)], "it dials, not we"


def test_what_ended_by_itself_needs_no_command() -> None:
    links = linked()
    links.dial(C, "c:1")
    assert links.renew(Loss(C, "end of stream", silent=False)) == []


def test_who_is_out_of_the_run_is_not_dialled_any_more() -> None:
    links = linked()
    links.dial(C, "c:1")
    assert links.gone(C, "left") == Disconnect(C, "left")
    assert links.renew(Loss(C, "x", silent=True)) == [Disconnect(C, "x")]


def test_the_deadline_is_the_earliest_of_both() -> None:
    links = Links(identity(B), leads=False)
    assert links.deadline == float("inf")
    links.connected(PeerConnected(C, 1, "c:1", ""), 0.0)
    assert links.deadline == 0.5, "a heartbeat"
    assert links.seeking.deadline == 1.0


def test_a_silent_stranger_is_not_kept() -> None:
    scene = leading(B)
    scene.meets(STRANGER)
    said: list[c.Command] = []
    for _ in range(int(RULES.silence_timeout_s) + 1):
        scene.hears(B, m.Heartbeat(0))
        said += scene.waits(1.0)
    gone = [x for x in said if isinstance(x, c.Disconnect)]
    assert [x.peer for x in gone] == [STRANGER]


def test_a_silent_follower_is_dialled_again_by_who_dialled_it() -> None:
    scene = follower(B, C)
    for _ in range(int(RULES.silence_timeout_s)):
        scene.hears(A, m.Heartbeat(0))
        scene.said = scene.waits(1.0)
    assert [x.peer for x in scene.all(c.Disconnect)] == [C]
    assert scene.all(c.Connect) == [], "it was connected before we read our cut"
