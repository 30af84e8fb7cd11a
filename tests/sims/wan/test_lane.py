"""A link by events: what is offered when, and when it arrives. The clock is a number."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from sims.wan.lane import BURST_S, JITTER_EVERY_S, QUEUE_BYTES_MIN, Lane
from sims.wan.link import WanLink

PACKET = 1250
"""Bytes: 10 kbit, so 0.01 s at 1 Mbit/s."""
SLOW = WanLink(rate_bps=1e6, delay_s=0.1, queue_s=1.0)
WHOLE = ((0, 1),)


def lane_of(link: WanLink, seed: int = 1) -> Lane:
    return Lane(link, random.Random(seed))


def test_a_perfect_link_delivers_at_once() -> None:
    lane = lane_of(WanLink())
    assert lane.offer(5.0, 1 << 20, 700) == (5.0, ((0, 700),))
    assert lane.backlog_s(5.0) == 0


def test_a_packet_takes_its_time_on_the_line_and_then_the_delay() -> None:
    lane = lane_of(SLOW)
    lane.offer(10.0, PACKET)  # Uses up what the line may be ahead.
    arrival, runs = lane.offer(10.0, PACKET)
    assert arrival == pytest.approx(10.0 - BURST_S + 0.02 + 0.1)
    assert runs == WHOLE


def test_packets_wait_for_those_before_them() -> None:
    lane = lane_of(SLOW)
    arrivals = [lane.offer(10.0, PACKET)[0] for _ in range(5)]
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    assert gaps == pytest.approx([0.01] * 4)


def test_a_line_that_stood_idle_is_ahead_by_a_moment_and_no_more() -> None:
    lane = lane_of(SLOW)
    lane.offer(0.0, PACKET)
    for number in range(10):
        arrival, _ = lane.offer(100.0, PACKET)
        assert arrival == pytest.approx(100.1 + 0.01 * (number + 1) - BURST_S)


@pytest.mark.parametrize("late_s", [0.0, 0.001, 0.002])
def test_over_time_the_rate_is_what_was_asked_though_it_is_served_late(late_s: float) -> None:
    lane = lane_of(WanLink(rate_bps=1e8, queue_s=0.05))
    now, last, arrived = 0.0, 0.0, 0
    for _ in range(2000):  # Whoever serves it looks every 2 ms, or later; there is always enough.
        now += 0.002 + late_s * (arrived % 2)
        _, runs = lane.offer(now, 50 * 1500, 50)
        arrived += sum(end - first for first, end in runs)
        last = now
    assert arrived * 1500 * 8 / last == pytest.approx(1e8, rel=0.03)


def test_what_the_queue_has_no_room_for_is_dropped_from_the_end() -> None:
    lane = lane_of(replace(SLOW, queue_s=0.2))
    arrival, runs = lane.offer(0.0, 100 * PACKET, 100)
    assert runs == ((0, 20),)
    assert arrival == pytest.approx(0.2 - BURST_S + 0.1)
    assert lane.counters.overflowed == 80
    assert lane.offer(0.0, PACKET)[1] == WHOLE  # BURST_S has made room for one.
    assert lane.offer(0.0, PACKET) == (0.0, ())
    assert lane.offer(0.05, 5 * PACKET, 5)[1] == ((0, 5),)  # 0.05 s later five have left.


def test_even_a_very_slow_line_has_room_for_some_packets() -> None:
    lane = lane_of(WanLink(rate_bps=1e4, queue_s=0.001))
    runs = lane.offer(0.0, 1500 * 100, 100)[1]
    assert runs == ((0, QUEUE_BYTES_MIN // 1500),)


def test_room_comes_as_the_line_sends() -> None:
    lane = lane_of(replace(SLOW, queue_s=0.2))
    assert lane.room_at(3.0) == 3.0
    lane.carry(3.0, 30 * PACKET, 30)
    assert lane.room_at(3.0) == pytest.approx(3.1 - BURST_S)


def test_jitter_stays_within_its_bounds_and_keeps_the_order() -> None:
    lane = lane_of(WanLink(delay_s=0.05, jitter_s=0.005))
    sent = [number * 0.001 for number in range(5000)]
    arrivals = [lane.offer(now, PACKET)[0] for now in sent]
    delays = [arrival - now for arrival, now in zip(arrivals, sent, strict=True)]
    assert arrivals == sorted(arrivals)
    assert 0.045 <= min(delays) < 0.046
    assert 0.054 < max(delays) <= 0.055 + 1e-9
    assert sum(delays) / len(delays) == pytest.approx(0.05, abs=0.002)
    assert len({round(delay, 9) for delay in delays}) > 5.0 / JITTER_EVERY_S / 2


@pytest.mark.parametrize("burst", [1, 7, 45])
def test_the_asked_share_of_packets_is_lost_whatever_comes_at_once(burst: int) -> None:
    lane = lane_of(WanLink(loss=0.02))
    arrived = 0
    for _ in range(100_000 // burst):
        _, runs = lane.offer(0.0, burst * PACKET, burst)
        assert all(0 <= first < end <= burst for first, end in runs)
        arrived += sum(end - first for first, end in runs)
    offered = lane.counters.packets
    assert arrived + lane.counters.lost == offered
    assert lane.counters.lost / offered == pytest.approx(0.02, rel=0.1)


def test_all_and_nothing_can_be_lost() -> None:
    assert lane_of(WanLink(loss=1.0)).offer(0.0, 3 * PACKET, 3)[1] == ()
    assert lane_of(WanLink(loss=0.0)).offer(0.0, 3 * PACKET, 3)[1] == ((0, 3),)


def test_equal_seeds_lose_equal_packets() -> None:
    runs = [lane_of(WanLink(loss=0.3), seed).offer(0.0, 40 * 1500, 40)[1] for seed in (4, 4, 5)]
    assert runs[0] == runs[1] != runs[2]


def test_a_link_that_is_down_takes_nothing_and_comes_back() -> None:
    lane = lane_of(SLOW)
    lane.change(replace(SLOW, up=False), 1.0)
    assert lane.offer(1.0, 2 * PACKET, 2) == (1.0, ())
    lane.cut(3)  # What was under way.
    assert lane.counters.cut == 5
    lane.change(SLOW, 2.0)
    assert lane.offer(2.0, PACKET)[1] == WHOLE


def test_what_waits_goes_on_at_the_new_rate() -> None:
    lane = lane_of(SLOW)
    lane.offer(0.0, 50 * PACKET, 50)
    waits_s = lane.backlog_s(0.1)
    lane.change(replace(SLOW, rate_bps=1e5), 0.1)
    assert lane.backlog_s(0.1) == pytest.approx(10 * waits_s)
    lane.change(replace(SLOW, rate_bps=None), 0.1)
    assert lane.backlog_s(0.1) == 0
    lane.change(SLOW, 0.1)
    assert lane.backlog_s(0.1) == 0


def test_a_shorter_delay_lets_nobody_overtake() -> None:
    lane = lane_of(WanLink(delay_s=1.0))
    first, _ = lane.offer(0.0, PACKET)
    lane.change(WanLink(delay_s=0.1), 0.01)
    assert lane.offer(0.02, PACKET)[0] == first
    assert lane.offer(2.0, PACKET)[0] == pytest.approx(2.1)


def test_whoever_repeats_what_is_lost_hears_how_many() -> None:
    lane = lane_of(WanLink(loss=0.5, delay_s=0.1))
    losses = [lane.carry(0.0, 4 * PACKET, 4)[1] for _ in range(1000)]
    assert sum(losses) == lane.counters.lost
    assert sum(losses) / 4000 == pytest.approx(0.5, abs=0.05)


def test_counters_say_how_long_packets_waited() -> None:
    lane = lane_of(SLOW)
    for _ in range(3):
        lane.offer(1.0, PACKET)
    counters = lane.read_counters()
    assert (counters.packets, counters.bytes) == (3, 3 * PACKET)
    assert counters.queue_max_s == pytest.approx(0.02 - BURST_S)
    assert counters.queue_mean_s == pytest.approx((0.03 - 2 * BURST_S) / 3)
