"""Who sends more than arrives is slowed down to what its line carries, and tries again."""

from dataclasses import replace

import pytest

from peers.sockets.rate_limit import FASTER, FASTER_MAX, SAMPLE_S, SLOWER_MIN, RateLimit
from peers.sockets.tcp_info import NOTHING, Flow

MB = 1_000_000
FREE = Flow(rtt_s=0.1, smoothed_rtt_s=0.101, busy_s=SAMPLE_S, segments=2000)
QUEUED = replace(FREE, smoothed_rtt_s=0.14)


class Line:
    """A throttle, and what it is told of the time since the last sample."""

    def __init__(self) -> None:
        self.throttle = RateLimit()
        self.now = 1000.0
        self.flow = NOTHING
        self.throttle.sample(NOTHING, self.now)

    def passes(
        self,
        news: Flow,
        *,
        sent: int = 12 * MB,
        arrived: int = 12 * MB,
        pace: int | None = None,
    ) -> int | None:
        """`sent`, `arrived`: bytes a second."""
        self.now += SAMPLE_S
        self.flow = replace(
            news,
            busy_s=self.flow.busy_s + news.busy_s,
            segments=self.flow.segments + news.segments,
            again=self.flow.again + news.again,
            sent_bytes=self.flow.sent_bytes + int(sent * SAMPLE_S),
            arrived_bytes=self.flow.arrived_bytes + int(arrived * SAMPLE_S),
            pace=pace,
        )
        return self.throttle.sample(self.flow, self.now)


@pytest.fixture
def line() -> Line:
    """It is in use."""
    line = Line()
    assert line.passes(FREE) is None
    return line


LOSING = replace(QUEUED, again=100)


def test_who_loses_is_slowed_down_to_what_the_full_line_carried(line: Line) -> None:
    assert line.passes(QUEUED, arrived=11 * MB) is None, "it was not full all the time"
    assert line.passes(QUEUED, sent=13 * MB) is None, "nothing is lost yet"
    assert line.passes(LOSING, arrived=15 * MB) == 12 * MB, "what was missing came at once"


def test_without_a_better_measure_it_is_what_arrived(line: Line) -> None:
    assert line.passes(LOSING, arrived=11 * MB) == 11 * MB


@pytest.mark.parametrize(
    "news",
    [
        replace(LOSING, smoothed_rtt_s=0.101),  # By chance.
        replace(LOSING, again=20),
        replace(LOSING, busy_s=SAMPLE_S / 2),
        replace(LOSING, rtt_s=0.0001),
    ],
)
def test_who_loses_little_or_by_chance_or_on_a_short_line_goes_on(line: Line, news: Flow) -> None:
    assert line.passes(news) is None


def test_nothing_is_learnt_of_the_time_in_which_it_began(line: Line) -> None:
    """What was sent first is not there yet: a pace that low would hold it up for seconds."""
    line.passes(replace(QUEUED, busy_s=SAMPLE_S / 3))
    assert line.passes(LOSING, arrived=4 * MB) is None
    assert line.passes(LOSING, arrived=9 * MB) == 9 * MB


def test_who_uses_all_that_it_may_send_tries_to_be_faster_and_faster(line: Line) -> None:
    pace, steps = 10 * MB, list[float]()
    for _ in range(40):
        faster = line.passes(FREE, sent=pace, arrived=pace, pace=pace)
        assert faster is not None
        steps.append(faster / pace)
        pace = faster
    assert steps[0] == pytest.approx(FASTER)
    assert steps == pytest.approx(sorted(steps))
    assert steps[-1] == pytest.approx(FASTER_MAX)


@pytest.mark.parametrize(
    ("news", "arrived"),
    [
        (FREE, 9 * MB),  # Something else slows it down.
        (QUEUED, 10 * MB),  # Others may fill the queue: it keeps its share.
        (replace(FREE, again=1), 10 * MB),
    ],
)
def test_nobody_else_does(line: Line, news: Flow, arrived: int) -> None:
    assert line.passes(news, sent=arrived, arrived=arrived, pace=10 * MB) is None


def test_who_tried_and_fills_the_queue_takes_it_back(line: Line) -> None:
    tried = line.passes(FREE, pace=12 * MB)
    assert tried is not None
    assert line.passes(QUEUED, sent=tried, arrived=12 * MB, pace=tried) is None
    assert line.passes(QUEUED, sent=tried, arrived=12 * MB, pace=tried) is None, "hardly more"
    much = int(1.05 * tried)
    assert line.passes(QUEUED, sent=much, arrived=12 * MB, pace=tried) == 12 * MB
    assert line.passes(QUEUED, sent=much, arrived=12 * MB, pace=12 * MB) is None, "not by itself"
    assert line.passes(FREE, pace=12 * MB) == pytest.approx(FASTER * 12 * MB), "from the beginning"


def test_without_a_loss_nobody_gives_up_much_at_once(line: Line) -> None:
    tried = line.passes(FREE, pace=12 * MB)
    assert tried is not None
    line.passes(QUEUED, pace=tried)
    slower = line.passes(QUEUED, sent=tried, arrived=2 * MB, pace=tried)
    assert slower == pytest.approx(SLOWER_MIN * tried, abs=1)
