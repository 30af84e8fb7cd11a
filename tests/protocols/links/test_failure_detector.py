"""Silence, ends of streams, and our own pauses."""

from protocols.links.failure_detector import FailureDetector, LostPeer
from protocols.types.ids import PeerId
from protocols.types.rules import ProtocolConfig

A, B = PeerId("a.1"), PeerId("b.2")
RULES = ProtocolConfig(
    heartbeat_interval_s=1.0,
    election_timeout_s=3.0,
    silence_timeout_s=5.0,
    reconnect_grace_s=0.25,
)


def watched() -> FailureDetector:
    liveness = FailureDetector(RULES)
    liveness.connected(A, 0.0)
    liveness.connected(B, 0.0)
    liveness.watch({A, B}, 0.0)
    return liveness


def tick(liveness: FailureDetector, until: float, *, alive: tuple[PeerId, ...] = ()) -> None:
    """Look each half second, with `alive` heard of each time."""
    for half in range(1, int(until * 2) + 1):
        for peer in alive:
            liveness.heard(peer, half / 2)
        assert liveness.lost(half / 2) == []
        liveness.due_heartbeats(half / 2)


def test_heartbeats_are_due_at_their_interval_to_all() -> None:
    liveness = watched()
    assert liveness.due_heartbeats(0.5) == []
    assert liveness.due_heartbeats(1.0) == [A, B]
    assert liveness.due_heartbeats(1.5) == []
    assert liveness.due_heartbeats(2.0) == [A, B]


def test_a_heartbeat_is_late_more_than_an_interval_after_the_last_one() -> None:
    liveness = watched()
    assert liveness.late_s(A, 0.5, 1.25) == 0.0
    assert liveness.late_s(A, 0.5, 1.75) == 0.25
    liveness.heard(A, 1.5)  # Something else: that is no heartbeat.
    assert liveness.late_s(A, 0.5, 1.75) == 0.25
    liveness.watch({A}, 2.0)
    assert liveness.late_s(B, 0.5, 4.0) is None
    liveness.watch({A, B}, 4.0)
    assert liveness.late_s(B, 0.5, 5.5) == 0.5  # Nobody waited for it before.
    assert liveness.late_s(A, 5.0, 5.5) == 0.0
    assert liveness.late_s(PeerId("c.3"), 0.5, 5.0) is None


def test_a_silent_peer_is_lost_once() -> None:
    liveness = watched()
    tick(liveness, 4.5, alive=(A,))
    liveness.heard(A, 5.0)
    assert liveness.lost(5.0) == [LostPeer(B, "silent for 5.0 s", silent=True)]
    assert liveness.up == {A}
    assert liveness.lost(5.0) == []


def test_the_silence_of_others_is_none_of_our_business_nor_ours_of_theirs() -> None:
    liveness = watched()
    liveness.watch({A}, 1.0)
    liveness.lost(1.0)
    assert liveness.due_heartbeats(1.0) == [A]
    tick(liveness, 20.0, alive=(A,))
    liveness.disconnected(B, "end of stream", 20.0)
    assert liveness.lost(20.25) == [LostPeer(B, "end of stream", silent=False)]


def test_silence_counts_from_when_somebody_began_to_matter() -> None:
    """It did not have to say anything before."""
    liveness = watched()
    liveness.watch({A}, 0.0)
    tick(liveness, 10.0, alive=(A,))
    liveness.watch({A, B}, 10.0)
    liveness.heard(A, 14.5)
    liveness.due_heartbeats(14.5)
    assert liveness.lost(14.5) == []
    assert liveness.deadline() == 15.0
    assert liveness.lost(15.0) == [LostPeer(B, "silent for 5.0 s", silent=True)]


def test_an_end_of_stream_has_a_short_grace() -> None:
    liveness = watched()
    liveness.lost(0.5)
    liveness.disconnected(B, "end of stream", 1.0)
    assert liveness.lost(1.2) == []
    assert liveness.lost(1.25) == [LostPeer(B, "end of stream", silent=False)]


def test_who_comes_back_in_time_is_not_lost() -> None:
    liveness = watched()
    liveness.disconnected(B, "end of stream", 1.0)
    liveness.connected(B, 1.1)
    assert liveness.lost(1.5) == []


def test_our_own_pause_is_nobodys_silence() -> None:
    """Found by the simulator: after a long SIGSTOP a follower blamed its leader."""
    liveness = watched()
    tick(liveness, 2.0, alive=(A, B))
    assert liveness.lost(60.0) == []
    assert liveness.up == {A, B}


def test_the_deadline_is_the_next_thing_that_happens() -> None:
    assert FailureDetector(RULES).deadline() == float("inf")
    liveness = watched()
    assert liveness.deadline() == 1.0
    liveness.disconnected(B, "x", 0.5)
    assert liveness.deadline() == 0.75


def test_our_own_pause_is_nobodys_absence() -> None:
    """It was disconnected when we were stopped: it could not come back to us."""
    liveness = watched()
    tick(liveness, 2.0, alive=(A, B))
    liveness.disconnected(B, "end of stream", 2.1)
    assert liveness.lost(60.0) == []
    liveness.due_heartbeats(60.0)
    assert liveness.lost(60.2) == []
    assert liveness.lost(60.25) == [LostPeer(B, "end of stream", silent=False)]


def test_having_nobody_to_hear_is_no_pause() -> None:
    """Else a peer whose only connection is gone would never notice."""
    liveness = FailureDetector(RULES)
    liveness.connected(A, 0.0)
    liveness.disconnected(A, "end of stream", 0.5)
    assert liveness.deadline() == 0.75
    assert liveness.lost(0.75) == [LostPeer(A, "end of stream", silent=False)]


def test_the_first_connection_after_a_while_starts_the_heartbeats_anew() -> None:
    liveness = watched()
    for peer in (A, B):
        liveness.gone(peer)
    liveness.connected(A, 50.0)
    assert liveness.deadline() == 51.0


def test_a_connection_that_could_not_be_made_again_is_counted_once() -> None:
    liveness = watched()
    liveness.lost(0.5)
    liveness.disconnected(B, "end of stream", 1.0)
    liveness.disconnected(B, "refused", 1.2)
    assert liveness.lost(1.25) == [LostPeer(B, "end of stream", silent=False)]
