"""Silence, ends of streams, and our own pauses."""

from dataclasses import replace

from protocols.links.failure_detector import BEATS_MIN, CROWD, MEMORY_S, FailureDetector, LostPeer
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId
from protocols.types.rules import ProtocolConfig

A, B = PeerId("a.1"), PeerId("b.2")
RULES = ProtocolConfig(
    heartbeat_interval_s=1.0,
    election_timeout_s=3.0,
    silence_timeout_s=5.0,
    silence_timeout_min_s=5.0,
    reconnect_grace_s=0.25,
)
ADAPTIVE = replace(RULES, heartbeat_interval_s=0.2, silence_timeout_min_s=1.0)


def watched() -> FailureDetector:
    failure_detector = FailureDetector(RULES)
    failure_detector.connected(A, 0.0)
    failure_detector.connected(B, 0.0)
    failure_detector.watch({A, B}, 0.0)
    return failure_detector


def tick(
    failure_detector: FailureDetector, until: float, *, alive: tuple[PeerId, ...] = ()
) -> None:
    """Look each half second, with `alive` heard of each time."""
    for half in range(1, int(until * 2) + 1):
        for peer in alive:
            failure_detector.heard(peer, half / 2)
        assert failure_detector.lost(half / 2) == []
        failure_detector.due_heartbeats(half / 2)


def test_heartbeats_are_due_at_their_interval_to_all() -> None:
    failure_detector = watched()
    assert failure_detector.due_heartbeats(0.5) == []
    assert failure_detector.due_heartbeats(1.0) == [A, B]
    assert failure_detector.due_heartbeats(1.5) == []
    assert failure_detector.due_heartbeats(2.0) == [A, B]


def test_a_heartbeat_is_late_more_than_an_interval_after_the_last_one() -> None:
    failure_detector = watched()
    assert failure_detector.late_s(A, 0.5, 1.25) == 0.0
    assert failure_detector.late_s(A, 0.5, 1.75) == 0.25
    failure_detector.heard(A, 1.5)  # Something else: that is no heartbeat.
    assert failure_detector.late_s(A, 0.5, 1.75) == 0.25
    failure_detector.watch({A}, 2.0)
    assert failure_detector.late_s(B, 0.5, 4.0) is None
    failure_detector.watch({A, B}, 4.0)
    assert failure_detector.late_s(B, 0.5, 5.5) == 0.5  # No peer waited for it before.
    assert failure_detector.late_s(A, 5.0, 5.5) == 0.0
    assert failure_detector.late_s(PeerId("c.3"), 0.5, 5.0) is None


def test_a_silent_peer_is_lost_once() -> None:
    failure_detector = watched()
    tick(failure_detector, 4.5, alive=(A,))
    failure_detector.heard(A, 5.0)
    assert failure_detector.lost(5.0) == [LostPeer(B, "silent for 5.0 s", silent=True)]
    assert failure_detector.up == {A}
    assert failure_detector.lost(5.0) == []


def test_the_silence_of_others_is_none_of_our_business_nor_ours_of_theirs() -> None:
    failure_detector = watched()
    failure_detector.watch({A}, 1.0)
    failure_detector.lost(1.0)
    assert failure_detector.due_heartbeats(1.0) == [A]
    tick(failure_detector, 20.0, alive=(A,))
    failure_detector.disconnected(B, "end of stream", 20.0)
    assert failure_detector.lost(20.25) == [LostPeer(B, "end of stream", silent=False)]


def test_silence_counts_from_when_somebody_began_to_matter() -> None:
    """It did not have to say anything before."""
    failure_detector = watched()
    failure_detector.watch({A}, 0.0)
    tick(failure_detector, 10.0, alive=(A,))
    failure_detector.watch({A, B}, 10.0)
    failure_detector.heard(A, 14.5)
    failure_detector.due_heartbeats(14.5)
    assert failure_detector.lost(14.5) == []
    assert failure_detector.deadline() == 15.0
    assert failure_detector.lost(15.0) == [LostPeer(B, "silent for 5.0 s", silent=True)]


def test_an_end_of_stream_has_a_short_grace() -> None:
    failure_detector = watched()
    failure_detector.lost(0.5)
    failure_detector.disconnected(B, "end of stream", 1.0)
    assert failure_detector.lost(1.2) == []
    assert failure_detector.lost(1.25) == [LostPeer(B, "end of stream", silent=False)]


def test_a_peer_that_closed_the_connection_itself_may_be_slow_to_come_back() -> None:
    """It did not hear us over a bad path, and its process lives."""
    failure_detector, said = watched(), "it disconnects: silent for 5.0 s"
    tick(failure_detector, 2.0, alive=(A, B))
    failure_detector.disconnected(B, said, 2.0, lives=True)
    failure_detector.disconnected(B, "refused", 2.5)  # A try to connect again has failed.
    for now in (3.0, 4.0, 5.0, 6.0, 6.9):
        failure_detector.heard(A, now)
        assert failure_detector.lost(now) == []
        failure_detector.due_heartbeats(now)
    assert failure_detector.lost(7.0) == [LostPeer(B, said, silent=False)]


def test_who_comes_back_in_time_is_not_lost() -> None:
    failure_detector = watched()
    failure_detector.disconnected(B, "end of stream", 1.0)
    failure_detector.connected(B, 1.1)
    assert failure_detector.lost(1.5) == []


def test_our_own_pause_is_nobodys_silence() -> None:
    """Found by the simulator: after a long SIGSTOP a follower blamed its leader."""
    failure_detector = watched()
    tick(failure_detector, 2.0, alive=(A, B))
    assert failure_detector.lost(60.0) == []
    assert failure_detector.up == {A, B}


def test_the_deadline_is_the_next_thing_that_happens() -> None:
    assert FailureDetector(RULES).deadline() == float("inf")
    failure_detector = watched()
    assert failure_detector.deadline() == 1.0
    failure_detector.disconnected(B, "x", 0.5)
    assert failure_detector.deadline() == 0.75


def test_our_own_pause_is_nobodys_absence() -> None:
    """It was disconnected when we were stopped: it could not come back to us."""
    failure_detector = watched()
    tick(failure_detector, 2.0, alive=(A, B))
    failure_detector.disconnected(B, "end of stream", 2.1)
    assert failure_detector.lost(60.0) == []
    failure_detector.due_heartbeats(60.0)
    assert failure_detector.lost(60.2) == []
    assert failure_detector.lost(60.25) == [LostPeer(B, "end of stream", silent=False)]


def test_having_nobody_to_hear_is_no_pause() -> None:
    """Else a peer whose only connection is gone would never notice."""
    failure_detector = FailureDetector(RULES)
    failure_detector.connected(A, 0.0)
    failure_detector.disconnected(A, "end of stream", 0.5)
    assert failure_detector.deadline() == 0.75
    assert failure_detector.lost(0.75) == [LostPeer(A, "end of stream", silent=False)]


def test_the_first_connection_after_a_while_starts_the_heartbeats_anew() -> None:
    failure_detector = watched()
    for peer in (A, B):
        failure_detector.gone(peer)
    failure_detector.connected(A, 50.0)
    assert failure_detector.deadline() == 51.0


def test_a_connection_that_could_not_be_made_again_is_counted_once() -> None:
    failure_detector = watched()
    failure_detector.lost(0.5)
    failure_detector.disconnected(B, "end of stream", 1.0)
    failure_detector.disconnected(B, "refused", 1.2)
    assert failure_detector.lost(1.25) == [LostPeer(B, "end of stream", silent=False)]


# Pauses ---------------------------------------------------------------------------------------


TICK_S = 0.1


def looks(failure_detector: FailureDetector, now: float) -> list[LostPeer]:
    """What the core does at each deadline."""
    if failure_detector.beat_due(now):
        failure_detector.watch({A}, now)
    lost = failure_detector.lost(now)
    failure_detector.due_heartbeats(now)
    return lost


def beats(failure_detector: FailureDetector, begin: float, end: float, *, every: float) -> None:
    """A is heard so often, the first time `every` seconds after `begin`."""
    ticks = round(every / TICK_S)
    for tick in range(1, round((end - begin) / TICK_S) + 1):
        now = begin + tick * TICK_S
        if tick % ticks == 0:
            failure_detector.heard(A, now)
        assert looks(failure_detector, now) == []


def alone_with(rules: ProtocolConfig) -> FailureDetector:
    failure_detector = FailureDetector(rules)
    failure_detector.connected(A, 0.0)
    failure_detector.watch({A}, 0.0)
    return failure_detector


def lost_after(failure_detector: FailureDetector, since: float) -> float:
    """Seconds of silence after which A is lost."""
    for tick in range(1, 1000):
        if looks(failure_detector, since + tick * TICK_S):
            return tick * TICK_S
    raise AssertionError("it is never lost")


def test_a_peer_without_pauses_is_lost_after_the_shortest_timeout() -> None:
    failure_detector = alone_with(ADAPTIVE)
    assert failure_detector.pause_s(A, 0.0) == NEVER
    beats(failure_detector, 0.0, 10.0, every=0.2)
    assert failure_detector.pause_s(A, 10.0) < 0.21
    assert 1.0 <= lost_after(failure_detector, 10.0) < 1.2


def test_who_fell_silent_before_its_pauses_are_known_is_lost_once_they_are() -> None:
    """Its timeout was over for long by then: that was no pause of ours, and no silence is
    forgiven."""
    failure_detector = alone_with(ADAPTIVE)
    known_s = BEATS_MIN * ADAPTIVE.heartbeat_interval_s
    beats(failure_detector, 0.0, 1.0, every=0.2)
    assert 1.0 + lost_after(failure_detector, 1.0) < known_s + 0.5


def test_a_peer_that_is_not_known_yet_has_the_longest_timeout() -> None:
    failure_detector = alone_with(ADAPTIVE)
    known_s = BEATS_MIN * ADAPTIVE.heartbeat_interval_s
    beats(failure_detector, 0.0, known_s / 2, every=0.2)
    failure_detector.watch(set(), known_s / 2)
    failure_detector.watch({A}, known_s / 2)
    assert failure_detector.pause_s(A, known_s * 0.9) == NEVER


def test_a_peer_may_be_silent_for_three_times_its_longest_pause() -> None:
    failure_detector = alone_with(ADAPTIVE)
    beats(failure_detector, 0.0, 8.0, every=0.2)
    beats(failure_detector, 8.0, 8.8, every=0.8)
    beats(failure_detector, 8.8, 20.0, every=0.2)
    assert 2.4 <= lost_after(failure_detector, 20.0) < 2.6


def test_a_long_pause_does_not_raise_the_timeout_beyond_its_maximum() -> None:
    failure_detector = alone_with(ADAPTIVE)
    beats(failure_detector, 0.0, 8.0, every=0.2)
    beats(failure_detector, 8.0, 8.9, every=0.9)
    beats(failure_detector, 8.9, 11.5, every=2.6)
    beats(failure_detector, 11.5, 20.0, every=0.2)
    assert 4.8 < lost_after(failure_detector, 20.0) < 5.2


def test_a_pause_is_forgotten_after_some_minutes() -> None:
    failure_detector = alone_with(ADAPTIVE)
    beats(failure_detector, 0.0, 8.0, every=0.2)
    beats(failure_detector, 8.0, 8.8, every=0.8)
    beats(failure_detector, 8.8, 8.8 + 2 * MEMORY_S + 1.0, every=0.2)
    assert failure_detector.pause_s(A, 2 * MEMORY_S + 9.8) < 0.21


def test_our_own_pause_is_not_one_of_theirs() -> None:
    failure_detector = alone_with(ADAPTIVE)
    beats(failure_detector, 0.0, 8.0, every=0.2)
    failure_detector.heard(A, 11.0)  # We were stopped for 3 s; its message had waited.
    beats(failure_detector, 11.0, 12.0, every=0.2)
    assert failure_detector.pause_s(A, 12.0) < 0.21


def test_more_peers_get_heartbeats_more_rarely() -> None:
    failure_detector = FailureDetector(ADAPTIVE)
    for number in range(2 * CROWD):
        failure_detector.connected(PeerId(f"x.{number}"), 0.0)
    assert failure_detector.interval_s == 2 * ADAPTIVE.heartbeat_interval_s
