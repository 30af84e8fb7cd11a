"""When a pair opens another bulk connection, and what the kernel says of one."""

from dataclasses import replace

import pytest

from peers.sockets.options import pace
from peers.sockets.tcp_info import (
    CONNECTIONS_MAX,
    NO_LINE,
    Flow,
    Line,
    best,
    flow_of,
    is_far,
    line_of,
    wants_more,
)
from tests.peers.link_room import sockets

FULL = Flow(busy_s=1.0, limited_s=0.5, segments=10_000, rtt_s=0.15, smoothed_rtt_s=0.151)
FREE = replace(FULL, limited_s=0.0)
UNLUCKY = replace(FREE, segments=150, again=2, fears_loss=True)


@pytest.mark.parametrize(
    ("flows", "more"),
    [
        ([FULL], True),
        ([FULL] * (CONNECTIONS_MAX - 1), True),
        ([FULL] * CONNECTIONS_MAX, False),
        ([FULL, FREE], True),
        ([FULL, FREE, FREE], False),  # One has room.
        ([replace(FULL, limited_s=0.1)], False),  # The line, or we, are slower than the buffers.
        ([replace(FULL, busy_s=0.1, limited_s=0.1)], False),  # A little now and then.
        ([replace(FULL, rtt_s=0.00005, smoothed_rtt_s=0.00005)], False),  # The other is slow.
        ([Flow(rtt_s=0.15, smoothed_rtt_s=0.15)], False),
    ],
)
def test_more_are_opened_only_where_buffers_slow_a_long_line_down(
    flows: list[Flow], *, more: bool
) -> None:
    assert wants_more(flows) is more


def test_a_line_whose_queue_is_full_needs_no_more() -> None:
    assert not wants_more([replace(FULL, smoothed_rtt_s=0.2)])
    assert not wants_more([replace(FULL, again=400)])  # Buffers wait for what overflowed.
    assert wants_more([replace(FULL, again=100)])  # By chance.


def test_more_are_opened_where_chance_keeps_one_small() -> None:
    assert wants_more([UNLUCKY])
    assert wants_more([UNLUCKY] * (CONNECTIONS_MAX - 1))
    assert not wants_more([replace(UNLUCKY, fears_loss=False)])  # bbr does not mind.
    assert not wants_more([replace(UNLUCKY, smoothed_rtt_s=0.2)])  # Its own queue overflows.
    assert not wants_more([replace(UNLUCKY, busy_s=0.2)])
    assert not wants_more([replace(UNLUCKY, again=0)])


@pytest.mark.parametrize(
    ("busy_s", "confirmed_bytes", "before", "line"),
    [
        (0.5, 500_000, NO_LINE, Line(1_000_000, known=True)),
        (0.5, 500_000, Line(7_000_000, known=True), Line(1_000_000, known=True)),
        (0.1, 500_000, NO_LINE, Line(5_000_000)),  # At least.
        (0.1, 500_000, Line(7_000_000, known=True), Line(7_000_000, known=True)),
        (0.1, 900_000, Line(7_000_000, known=True), Line(9_000_000, known=True)),
        (0.5, 30_000, Line(7_000_000), Line(7_000_000)),  # Round trips, and little between them.
        (0.0, 0, Line(7_000_000), Line(7_000_000)),
    ],
)
def test_what_a_line_carries_shows_where_there_was_much_to_send(
    busy_s: float, confirmed_bytes: int, before: Line, line: Line
) -> None:
    flow = Flow(busy_s=busy_s, confirmed_bytes=confirmed_bytes, rtt_s=0.02)
    assert line_of([flow], before) == line
    half = replace(flow, confirmed_bytes=confirmed_bytes // 2)
    assert line_of([half, half], before) == line, "two connections of one pair"
    assert line_of([], before) == before


def test_who_is_slow_on_a_short_line_waits_for_something_else() -> None:
    """Three nodes of one busy machine took turns at owning parts of each other."""
    starved = Flow(busy_s=0.8, confirmed_bytes=5_000_000, rtt_s=0.00001, smoothed_rtt_s=0.007)
    assert line_of([starved], NO_LINE) == Line(6_250_000)
    assert best([line_of([starved], NO_LINE)] * 2) == 0


def test_a_node_is_as_fast_as_its_best_line_once_one_was_full() -> None:
    assert best([]) == best([NO_LINE, Line(50_000_000)]) == 0
    slow = Line(1_000_000, known=True)
    assert best([slow, NO_LINE]) == 1_000_000
    assert best([slow, Line(50_000_000)]) == 50_000_000, "the other end of the first one is slow"


def test_a_flow_is_what_came_since_the_last_look() -> None:
    earlier = Flow(busy_s=1.0, limited_s=0.5, segments=10, again=1, rtt_s=0.2, smoothed_rtt_s=0.3)
    later = Flow(busy_s=3.0, limited_s=2.0, segments=30, again=2, rtt_s=0.1, smoothed_rtt_s=0.15)
    later = replace(later, fears_loss=True)
    since = replace(later, busy_s=2.0, limited_s=1.5, segments=20, again=1)
    assert later.since(earlier) == since


def test_the_kernel_tells_how_long_its_buffers_were_full() -> None:
    """The offsets in tcp_info are the kernel's: a window that stays shut is seen here."""
    one, other = sockets(window_bytes=4096)
    with one, other:
        before = flow_of(one)
        assert 0 < before.rtt_s < 1
        assert before.limited_s == 0.0
        one.settimeout(0.05)
        with pytest.raises(TimeoutError):
            one.sendall(bytes(1 << 26))
        later = flow_of(one)
        while later.limited_s < 0.01:
            later = flow_of(one)
        assert later.limited_s <= later.busy_s < 60
        assert 0 < later.rtt_s <= later.smoothed_rtt_s < 1
        assert before.segments < later.segments < 1 << 16
        assert later.again < later.segments
    with pytest.raises(OSError, match="descriptor"):
        flow_of(one)


def test_the_kernel_keeps_to_a_pace() -> None:
    one, other = sockets(window_bytes=1 << 20)
    with one, other:
        assert flow_of(one).pace is None
        pace(one, 5_000_000)
        assert flow_of(one).pace == 5_000_000
        one.sendall(b"confirmed")
        while (flow := flow_of(one)).confirmed_bytes < 9:
            assert flow.confirmed_bytes == flow.arrived_bytes == 0
        assert flow.arrived_bytes == flow.sent_bytes > 9, "one packet, however full"
        assert not is_far(one)
    assert not is_far(one), "it is over"
