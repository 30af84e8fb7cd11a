"""When somebody stands for election: never at the same time as all others."""

from protocols.raft.election_timer import ElectionTimer
from protocols.types.clock import NEVER
from tests.protocols.scenes import A, B, C, D


def test_until_it_is_armed_it_does_not_go_off() -> None:
    assert ElectionTimer(A).deadline == NEVER


def test_times_are_spread_over_the_whole_range_and_never_outside_of_it() -> None:
    timer, times = ElectionTimer(A), list[float]()
    for _ in range(200):
        timer.arm(100.0, 3, least=2.0, spread=2.0)
        times.append(timer.deadline)
    assert 102.0 <= min(times) < 102.2
    assert 103.8 < max(times) < 104.0
    assert len(set(times)) == len(times), "another one every time: a split vote is not repeated"


def test_peers_draw_different_times_and_a_peer_the_same_in_each_replay() -> None:
    def drawn() -> list[float]:
        timers = [ElectionTimer(peer) for peer in (A, B, C, D)]
        for timer in timers:
            timer.arm(0.0, 1, least=1.0, spread=1.0)
        return [timer.deadline for timer in timers]

    assert len(set(drawn())) == 4
    assert drawn() == drawn()


def test_without_a_spread_it_goes_off_at_once() -> None:
    timer = ElectionTimer(A)
    timer.arm(5.0, 1, least=0.0, spread=0.0)
    assert timer.deadline == 5.0
