"""When a pair opens another bulk connection, and what the kernel says of one."""

import pytest

from peers.widening import CONNECTIONS_MAX, Flow, flow_of, wants_more
from tests.peers.link_room import sockets

FULL = Flow(busy_s=1.0, limited_s=0.5, rtt_s=0.15)


@pytest.mark.parametrize(
    ("flows", "more"),
    [
        ([FULL], True),
        ([FULL] * (CONNECTIONS_MAX - 1), True),
        ([FULL] * CONNECTIONS_MAX, False),
        ([FULL, Flow(1.0, 0.0, 0.15)], True),
        ([FULL, Flow(1.0, 0.0, 0.15), Flow(1.0, 0.0, 0.15)], False),  # One has room.
        ([Flow(1.0, 0.1, 0.15)], False),  # The line, or we, are slower than the buffers.
        ([Flow(0.1, 0.1, 0.15)], False),  # A little now and then.
        ([Flow(1.0, 0.5, 0.00005)], False),  # Loopback: the other process is slow.
        ([Flow(0.0, 0.0, 0.15)], False),
    ],
)
def test_more_are_opened_only_where_buffers_slow_a_long_line_down(
    flows: list[Flow], *, more: bool
) -> None:
    assert wants_more(flows) is more


def test_a_flow_is_what_came_since_the_last_look() -> None:
    assert Flow(3.0, 2.0, 0.1).since(Flow(1.0, 0.5, 0.2)) == Flow(2.0, 1.5, 0.1)


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
    with pytest.raises(OSError, match="descriptor"):
        flow_of(one)
