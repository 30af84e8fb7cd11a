"""What keeps connections as they should be: heartbeats, renewal of hanging ones."""

from dataclasses import replace

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.interface.commands import Connect, Disconnect, Send
from protocols.interface.events import PeerConnected, PeerDisconnected
from protocols.links.connections import Connection, Connections
from protocols.links.failure_detector import LostPeer
from protocols.messages import peer as m
from protocols.messages.peer import Heartbeat
from protocols.types.ids import PeerId, PeerInfo
from protocols.types.rules import ProtocolConfig
from tests.protocols.led import leading
from tests.protocols.scenes import RULES, STRANGER, A, B, C, D, follower, info

BEAT_S = ProtocolConfig().heartbeat_interval_s


def linked() -> Connections:
    links = Connections()
    links.connected(PeerConnected(A, 3, "a:1", "a:1"), 0.0)
    return links


def test_who_is_connected_is_known_with_its_life_and_its_address() -> None:
    links = linked()
    assert (links.up, links.peers) == ({A}, {A: Connection(3, "a:1")})
    links.close(A, "why", 1.0)
    assert links.up == set()


def test_heartbeats_go_to_whom_we_watch_when_they_are_due() -> None:
    links = linked()
    links.failure_detector.watch({A}, 0.0)
    assert links.due_heartbeats(0.1) == []
    assert links.due_heartbeats(0.6) == [Send(A, Heartbeat())]


def test_everybody_of_the_run_is_dialled_once() -> None:
    links, receivers = linked(), {A: info(A), B: info(B), C: info(C)}
    assert links.mend(B, receivers) == [Connect(C, "c:1")], "A is connected, and B are we"
    assert links.mend(B, receivers) == []
    links.gone(C, "lost")
    assert links.mend(B, receivers) == [Connect(C, "c:1")]


def test_who_has_no_part_in_the_run_dials_nobody() -> None:
    assert linked().mend(B, {A: info(A), C: info(C)}) == []


def test_a_peer_that_moved_is_dialled_where_it_is_now() -> None:
    """It restarted with another address: the one that we dial is nobody's any more."""
    links = linked()
    links.dial(C, "elsewhere:1")
    assert links.mend(B, {B: info(B), C: info(C)}) == [Connect(C, "c:1")]


def test_a_silent_connection_is_closed_and_dialled_again_if_we_dialled() -> None:
    links = linked()
    assert links.dial(C, "c:1") == Connect(C, "c:1")
    silent = LostPeer(C, "silent for 10.0 s", silent=True)
    assert links.renew(silent) == [Disconnect(C, silent.why), Connect(C, "c:1")]
    dialled_us = LostPeer(A, "silent for 10.0 s", silent=True)
    assert links.renew(dialled_us) == [Disconnect(A, dialled_us.why)], "it dials, not we"


def test_what_ended_by_itself_needs_no_command() -> None:
    links = linked()
    links.dial(C, "c:1")
    assert links.renew(LostPeer(C, "end of stream", silent=False)) == []


def test_who_is_out_of_the_run_is_not_dialled_any_more() -> None:
    links = linked()
    links.dial(C, "c:1")
    assert links.gone(C, "left") == Disconnect(C, "left")
    assert links.renew(LostPeer(C, "x", silent=True)) == [Disconnect(C, "x")]


def test_who_left_by_itself_hangs_up_itself() -> None:
    """It has to read first that it is out; dialling it any longer would be in vain."""
    links = linked()
    links.left(A)
    assert links.disconnected(PeerDisconnected(C, "end of stream"), 1.0) == []
    ended = PeerDisconnected(A, "end of stream")
    assert links.disconnected(ended, 1.0) == [Disconnect(A, "left")]
    assert links.disconnected(ended, 10.0) == [], "once"


def test_whom_we_miss_is_looked_for_once_per_heartbeat() -> None:
    links, receivers = linked(), {A: info(A), B: info(B), C: info(C)}
    assert links.keep_up(0.0, B, receivers, set, found=True) == [], "it may be on its way"
    assert links.deadline == BEAT_S
    assert links.keep_up(BEAT_S, B, receivers, set, found=True) == [Connect(C, "c:1")]
    links.gone(C, "lost")
    assert links.keep_up(1.9 * BEAT_S, B, receivers, set, found=True) == []
    assert links.keep_up(2 * BEAT_S, B, receivers, set, found=True) == [Connect(C, "c:1")]
    links.connected(PeerConnected(C, 1, "c:1", ""), 2.1 * BEAT_S)
    assert links.keep_up(2.2 * BEAT_S, B, receivers, set, found=True) == []
    assert links.deadline == links.failure_detector.deadline(), "no peer is missed"


def test_a_leader_is_found_by_its_address_unless_that_is_ours() -> None:
    links = linked()
    assert links.led_to("a:1", "b:1", 7) == [Send(A, m.ReadLog(7))]
    assert links.led_to("c:1", "b:1", 7) == [Connect(PeerId(""), "c:1")]
    assert links.led_to("b:1", "b:1", 7) == []
    links.close(A, "why", 1.0)
    assert links.led_to("a:1", "b:1", 7) == [Connect(PeerId(""), "a:1")], "it is not there now"


def test_the_deadline_is_that_of_the_next_heartbeat() -> None:
    links = Connections()
    assert links.deadline == float("inf")
    links.connected(PeerConnected(C, 1, "c:1", ""), 0.0)
    assert links.deadline == BEAT_S


def test_a_silent_stranger_is_not_kept() -> None:
    scene = leading(B)
    scene.meets(STRANGER)
    said: list[c.Command] = []
    for _ in range(int(RULES.silence_timeout_s) + 1):
        scene.hears(B, m.Heartbeat())
        said += scene.waits(1.0)
    gone = [x for x in said if isinstance(x, c.Disconnect)]
    assert [x.peer for x in gone] == [STRANGER]


def test_a_silent_owner_is_dialled_again() -> None:
    scene = follower(B, C)
    scene.encode(1)
    said: list[c.Command] = []
    for _ in range(int(RULES.silence_timeout_s + RULES.heartbeat_interval_s)):
        scene.beat()
        said += scene.waits(1.0)
    assert [x.peer for x in said if isinstance(x, c.Disconnect)] == [C]
    said += scene.on(v.DeadlineReached(), after_s=RULES.heartbeat_interval_s)
    assert [x for x in said if isinstance(x, c.Connect)] == [c.Connect(C, "c:1")]


# Peers that nobody can dial ---------------------------------------------------------------------


def hidden(peer: PeerId) -> PeerInfo:
    return replace(info(peer), address="")


def test_nobody_dials_a_peer_without_an_address_but_it_dials_everybody() -> None:
    receivers = {A: info(A), B: hidden(B), C: info(C)}
    assert linked().mend(C, receivers) == []
    assert Connections(mine="").mend(B, receivers) == [Connect(A, "a:1"), Connect(C, "c:1")]


def test_two_without_an_address_speak_through_whom_one_of_them_is_connected_with() -> None:
    """The one with the smaller id asks."""
    links, receivers = linked(), {A: info(A), B: hidden(B), C: hidden(C), D: info(D)}
    assert linked().mend(C, receivers) == [Connect(D, "d:1")]
    assert links.mend(B, receivers) == [Connect(C, "", (A,)), Connect(D, "d:1")]
    assert links.mend(B, receivers) == [], "it is being dialled"
    links.connected(PeerConnected(D, 1, "d:1", ""), 1.0)
    (again,) = links.mend(B, receivers)
    assert isinstance(again, Connect)
    assert set(again.via) == {A, D}, "there is another way now"
    silent = LostPeer(C, "silent for 10.0 s", silent=True)
    assert links.renew(silent) == [Disconnect(C, silent.why), again]


def test_who_listens_asks_for_no_tunnel() -> None:
    links = Connections(mine="b:1")
    links.connected(PeerConnected(A, 3, "a:1", "a:1"), 0.0)
    assert links.mend(B, {A: info(A), B: info(B), C: hidden(C)}) == []


def test_without_anybody_to_go_through_nobody_is_asked() -> None:
    links, receivers = Connections(), {B: hidden(B), C: hidden(C)}
    links.connected(PeerConnected(STRANGER, 1, "x:1", ""), 0.0)
    assert links.mend(B, receivers) == []


def test_a_leader_without_an_address_is_not_looked_for() -> None:
    links = linked()
    links.connected(PeerConnected(C, 1, "", ""), 0.0)
    assert links.led_to("", "", 7) == []
    assert links.led_to("", "b:1", 7) == []
    assert links.led_to(C, "b:1", 7) == [Send(C, m.ReadLog(7))], "it is known by its id"
    assert links.led_to(D, "b:1", 7) == [], "who is not connected cannot dial it"
