"""Counts by peer and purpose, in invented time."""

import asyncio
from dataclasses import dataclass

import pytest

from peers.metrics import counters as module
from peers.metrics.counters import GONE, SAMPLE_S, Counters, Lag, PeerTraffic, watch
from protocols.messages.peer import ContributionChunk, ResultChunk, StateChunk
from protocols.types.ids import Contributor, PeerId, Stamp

ALPHA, BETA = PeerId("alpha.1"), PeerId("beta.2")
STAMP = Stamp(1, 2, 3, 0, 4, 0)
SLICE = ContributionChunk(STAMP, 0, Contributor(ALPHA, 1, 1, "m"), 0, 4)
RESULT = ResultChunk(STAMP, 0, (), "", 0, 4, 0, 1, False)
STATE = StateChunk(1, 2, 3, 0, 4, 0, 4)


@dataclass
class Wire:
    """A connection that does what it is told."""

    sent_bytes: int = 0
    received_bytes: int = 0
    congested: bool = False
    round_trip_s: float | None = None


def of(counters: Counters, peer: PeerId, now: float = 0.0) -> PeerTraffic:
    return next(each for each in counters.traffic(now) if each.peer == peer)


def test_bytes_are_counted_by_peer_purpose_and_direction() -> None:
    counters, control = Counters(), Wire(sent_bytes=10, received_bytes=20, round_trip_s=0.1)
    counters.follow(ALPHA, control, Wire())
    counters.count_sent(ALPHA, SLICE, 1)
    counters.count_sent(ALPHA, RESULT, 2)
    counters.count_sent(ALPHA, STATE, 4)
    counters.count_received(ALPHA, RESULT, 8, kept=True)
    counters.count_received(ALPHA, STATE, 16, kept=False)
    counters.count_sent(BETA, STATE, 32)
    control.sent_bytes, control.received_bytes = 100, 200
    alpha = of(counters, ALPHA)
    assert alpha.sent == {"payload": 3, "transfer": 4, "control": 100, "relay": 0}
    assert alpha.received == {"payload": 8, "transfer": 16, "control": 200, "relay": 0}
    assert (alpha.refused_bytes, alpha.round_trip_s) == (16, 0.1)
    assert of(counters, BETA).sent == {"payload": 0, "transfer": 32, "control": 0, "relay": 0}


def test_a_peer_that_connects_anew_adds_up() -> None:
    counters = Counters()
    for size in (100, 50):  # The second connection begins at 0 again, and had less so far.
        control = Wire()
        counters.follow(ALPHA, control, Wire())
        control.sent_bytes = size
        counters.unfollow(ALPHA)
        control.sent_bytes = 1000  # It is nobody's any more.
        assert of(counters, ALPHA).round_trip_s is None
    assert of(counters, ALPHA).sent["control"] == 150
    counters.unfollow(BETA)  # Nobody knew it.
    assert [each.peer for each in counters.traffic(0.0)] == [ALPHA]


def test_rates_are_those_of_the_last_seconds() -> None:
    counters = Counters()
    counters.follow(ALPHA, Wire(), Wire())
    assert of(counters, ALPHA, 0.0).sent_per_s == 0.0
    for second in range(30):
        counters.sample(float(second), late_s=0.0)
        if second < 20:
            counters.count_sent(ALPHA, SLICE, 1000)
            counters.count_received(ALPHA, SLICE, 500, kept=True)
    alpha = of(counters, ALPHA, 20.0)
    assert alpha.sent_per_s == pytest.approx(1000)
    assert alpha.received_per_s == pytest.approx(500)
    assert of(counters, ALPHA, 29.0).sent_per_s == pytest.approx(100)  # One of ten is left.
    counters.sample(31.0, late_s=0.0)
    assert of(counters, ALPHA, 31.0).sent_per_s == 0.0


def test_stalls_are_counted_and_timed() -> None:
    counters, control, bulk = Counters(), Wire(), Wire()
    counters.follow(ALPHA, control, bulk)
    counters.follow(BETA, Wire(), Wire())
    states = [(False, False), (True, False), (True, True), (False, True), (False, False)]
    for number, (control.congested, bulk.congested) in enumerate([*states, (True, False)]):
        counters.sample(number * 0.5, late_s=0.0)
    alpha, beta = counters.traffic(9.0)
    assert (alpha.stalls, alpha.stalled_s) == (2, 2.0)  # Three looks, and a new one.
    assert (beta.stalls, beta.stalled_s) == (0, 0.0)
    counters.unfollow(ALPHA)
    counters.sample(9.0, late_s=0.0)
    assert of(counters, ALPHA).stalled_s == 2.0


def test_lag_is_told_by_its_quantiles_and_forgotten() -> None:
    counters = Counters()
    assert counters.lag() == Lag()
    for number in range(100):
        counters.sample(number * SAMPLE_S, late_s=0.001 * number)
    assert counters.lag() == Lag(0.05, 0.098, 0.099)
    for number in range(round(module.LAG_WINDOW_S / SAMPLE_S)):
        counters.sample(10 + number * SAMPLE_S, late_s=0.0)
    assert counters.lag() == Lag()


def test_lag_while_payload_moves_is_of_those_samples_alone() -> None:
    counters = Counters()
    counters.sample(0.0, late_s=5.0)
    counters.count_sent(ALPHA, SLICE, 10)
    counters.sample(SAMPLE_S, late_s=0.25)
    counters.count_received(ALPHA, STATE, 10, kept=True)
    counters.sample(2 * SAMPLE_S, late_s=5.0)
    counters.count_received(ALPHA, RESULT, 10, kept=False)
    counters.sample(3 * SAMPLE_S, late_s=0.5)
    counters.sample(4 * SAMPLE_S, late_s=5.0)
    assert counters.busy_lag() == Lag(0.5, 0.25, 0.5)
    assert counters.lag().max_s == 5.0


def test_late_heartbeats_are_told_by_their_quantiles_and_forgotten() -> None:
    counters = Counters()
    assert counters.heartbeats(0.0) == Lag()
    for number in range(100):
        counters.heartbeat(0.5 * number, late_s=0.001 * number)
    assert counters.heartbeats(50.0) == Lag(0.05, 0.098, 0.099)
    assert counters.lag() == Lag()  # That is another matter.
    assert counters.heartbeats(49.5 + module.LAG_WINDOW_S - 0.25) == Lag(0.099, 0.099, 0.099)
    assert counters.heartbeats(49.5 + module.LAG_WINDOW_S) == Lag()


def test_heartbeats_follow_each_other_on_one_connection() -> None:
    counters = Counters()
    counters.follow(ALPHA, Wire(), Wire())
    assert [counters.last_heartbeat(ALPHA, now) for now in (1.0, 2.0, 3.5)] == [1.0, 1.0, 2.0]
    assert counters.last_heartbeat(BETA, 9.0) == 9.0
    counters.follow(ALPHA, Wire(), Wire())
    assert counters.last_heartbeat(ALPHA, 9.0) == 9.0


def test_who_is_gone_for_long_is_counted_with_the_others_that_are_gone() -> None:
    counters = Counters()
    for number, peer in enumerate((ALPHA, BETA)):
        counters.follow(peer, Wire(), Wire())
        counters.count_sent(peer, SLICE, 10 + number)
        counters.count_received(peer, SLICE, 1, kept=False)
    counters.unfollow(ALPHA)
    for now in (0.0, module.GONE_KEPT_S - 1):
        counters.sample(now, late_s=0.0)
        assert [each.peer for each in counters.traffic(now)] == [ALPHA, BETA]
    counters.sample(module.GONE_KEPT_S, late_s=0.0)
    assert [each.peer for each in counters.traffic(0.0)] == [GONE, BETA]
    counters.unfollow(BETA)
    for now in (0.0, 1.0):
        counters.sample(2 * module.GONE_KEPT_S + now * module.GONE_KEPT_S, late_s=0.0)
    (gone,) = counters.traffic(4 * module.GONE_KEPT_S)
    assert (gone.peer, gone.sent["payload"], gone.refused_bytes) == (GONE, 21, 2)
    assert gone.sent_per_s == 0.0  # It was sent long ago.


def test_who_comes_back_in_time_is_kept() -> None:
    counters = Counters()
    counters.follow(ALPHA, Wire(), Wire())
    counters.unfollow(ALPHA)
    counters.sample(0.0, late_s=0.0)
    counters.follow(ALPHA, Wire(), Wire())
    counters.unfollow(ALPHA)
    counters.sample(module.GONE_KEPT_S, late_s=0.0)
    assert [each.peer for each in counters.traffic(0.0)] == [ALPHA]


def test_nobody_makes_us_remember_more_by_coming_and_going() -> None:
    counters = Counters()
    counters.follow(ALPHA, Wire(), Wire())
    for number in range(2 * module.PEERS_KEPT_MAX):
        peer = PeerId(f"p.{number:04}")
        counters.follow(peer, Wire(sent_bytes=1), Wire())
        counters.unfollow(peer)
        counters.sample(float(number), late_s=0.0)
    kept = counters.traffic(0.0)
    assert len(kept) <= module.PEERS_KEPT_MAX + 1
    assert {GONE, ALPHA, PeerId(f"p.{2 * module.PEERS_KEPT_MAX - 1:04}")} <= {x.peer for x in kept}
    assert sum(each.sent["control"] for each in kept) == 2 * module.PEERS_KEPT_MAX


@pytest.mark.asyncio
async def test_what_blocks_the_loop_is_seen() -> None:
    class Once(Counters):
        def __init__(self) -> None:
            super().__init__()
            self.sampled = asyncio.Event()

        def sample(self, now: float, *, late_s: float) -> None:
            super().sample(now, late_s=late_s)
            self.sampled.set()

    counters = Once()
    task = asyncio.create_task(watch(counters))
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0)  # It waits.
    begun = loop.time()
    while loop.time() < begun + SAMPLE_S + 0.03:
        pass
    await asyncio.wait_for(counters.sampled.wait(), 10)
    task.cancel()
    assert counters.lag().max_s >= 0.025
