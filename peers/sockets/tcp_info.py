"""How many bulk connections a pair needs, and what the kernel says of them.

One is enough, until that is what slows a pair down.

A connection carries at most its buffers' size in a round trip, 4 MiB where nobody changed the
kernel: 28 MB/s at 150 ms. And where packets get lost by chance, one that takes every loss for a
full line (cubic, reno) carries less than a tenth of a long one. The kernel counts what we need to
know. While packets queue the line is full, and another connection would only make more of them
drop. Must NOT open or set anything.
"""

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

CONNECTIONS_MAX = 8
"""Of one pair: 220 MB/s at 150 ms."""
LOOK_S = 1.0
RTT_MIN_S = 0.005
"""In a shorter one, buffers of 4 MiB make 800 MB/s: who is slow there is not the line."""
LIMITED_MIN = 0.2
"""Of the time in which something was to be sent."""
QUEUED_MAX = 1.15
"""Times the shortest round trip: a longer one means a queue."""
LOST_MIN, LOST_MAX = 0.001, 0.03
"""Shares of what is sent that have to be sent again: chance begins, and queues overflow. A loss in
a thousand keeps one cubic connection at 45 packets in a round trip, 5 Mbit/s at 100 ms."""
LOSS_KEEPS = (b"bbr",)
"""Congestion controls, by their first letters, that go by other signs than losses."""
LINE_LONG_S, LINE_BYTES_MIN = 0.2, 32 << 10
"""Of the time between two looks a line has to be busy to show what it carries, and with how much:
fewer bytes are round trips."""
_INFO_BYTES = 196
_SIZE, _RTT, _AGAIN, _MIN_RTT, _SEGMENTS, _ARRIVED = 16, 68, 100, 148, 156, 192
"""Where struct tcp_info has tcpi_snd_mss, _rtt, _total_retrans, _min_rtt, _data_segs_out and
_delivered ..."""
_PACE, _TIMES = 112, 168
"""... _max_pacing_rate and _bytes_acked; and _busy_time, _rwnd_limited and _sndbuf_limited."""
_UNPACED = 1 << 63
"""What the kernel says of a connection without a limit is above this, or 32 bits of ones."""
_NAME_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What became of one connection's sending since it was opened, or between two looks."""

    busy_s: float = 0.0
    """There was something to send, or to be confirmed."""
    limited_s: float = 0.0
    """One of the two kernels' buffers was full, and everything in it on its way."""
    confirmed_bytes: int = 0
    sent_bytes: int = 0
    """In whole packets, what was lost and what was sent again with them ..."""
    arrived_bytes: int = 0
    """... and what is known to have arrived of them, in whatever order."""
    segments: int = 0
    """Sent ..."""
    again: int = 0
    """... those among them that were sent before."""
    rtt_s: float = 0.0
    """The shortest round trip ..."""
    smoothed_rtt_s: float = 0.0
    """... and how long it takes now."""
    pace: int | None = None
    """Bytes a second that it may send at most, now; None: as it likes."""
    fears_loss: bool = False
    """Its congestion control takes a loss for a full line."""

    @property
    def lost(self) -> float:
        """The share of what was sent that had been sent before."""
        return self.again / max(self.segments, 1)

    @property
    def queued(self) -> bool:
        """The line is full."""
        return self.smoothed_rtt_s > QUEUED_MAX * self.rtt_s

    def since(self, earlier: "Flow") -> "Flow":
        return replace(
            self,
            busy_s=self.busy_s - earlier.busy_s,
            limited_s=self.limited_s - earlier.limited_s,
            confirmed_bytes=self.confirmed_bytes - earlier.confirmed_bytes,
            sent_bytes=self.sent_bytes - earlier.sent_bytes,
            arrived_bytes=self.arrived_bytes - earlier.arrived_bytes,
            segments=self.segments - earlier.segments,
            again=self.again - earlier.again,
        )


NOTHING = Flow()


def flow_of(connection: socket.socket) -> Flow:
    """So far. Raises OSError: this kernel does not tell."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _INFO_BYTES:
        raise OSError("no times in TCP_INFO")
    control = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES)
    busy_us, receiver_us, sender_us = struct.unpack_from("=3Q", info, _TIMES)
    pace, confirmed_bytes = struct.unpack_from("=2Q", info, _PACE)
    size_bytes, rtt_us, again, min_rtt_us, segments, arrived = (
        struct.unpack_from("=I", info, at)[0]
        for at in (_SIZE, _RTT, _AGAIN, _MIN_RTT, _SEGMENTS, _ARRIVED)
    )
    return Flow(
        busy_s=busy_us / 1e6,
        limited_s=(receiver_us + sender_us) / 1e6,
        confirmed_bytes=confirmed_bytes,
        sent_bytes=segments * size_bytes,
        arrived_bytes=(arrived - 1) * size_bytes,  # The first one was a SYN.
        segments=segments,
        again=again,
        pace=None if pace >= _UNPACED or pace == (1 << 32) - 1 else pace,
        rtt_s=min_rtt_us / 1e6,
        smoothed_rtt_s=rtt_us / 1e6,
        fears_loss=not control.startswith(LOSS_KEEPS),
    )


def is_far(connection: socket.socket) -> bool:
    """Round trips are long, as the kernel has found so far."""
    try:
        return flow_of(connection).rtt_s >= RTT_MIN_S
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Line:
    """What goes to a peer when there is much to send."""

    carries: int = 0
    """Bytes a second, or more."""
    known: bool = False
    """It is long, and was busy for so long that this is all that it carries."""


NO_LINE = Line()


def line_of(flows: Sequence[Flow], before: Line) -> Line:
    """`flows`: of all connections with a peer, since the last look; `before`: what was known until
    then."""
    busy_s = max((flow.busy_s for flow in flows), default=0.0)
    confirmed_bytes = sum(flow.confirmed_bytes for flow in flows)
    if busy_s <= 0 or confirmed_bytes < LINE_BYTES_MIN:
        return before
    carries = int(confirmed_bytes / busy_s)
    # On a short one, what waits for a core at the other end looks like a slow line.
    if busy_s >= LINE_LONG_S and all(flow.rtt_s >= RTT_MIN_S for flow in flows):
        return Line(carries, known=True)
    # What is over soon may have been slow for other reasons, but it was not too fast.
    return Line(max(carries, before.carries), before.known)


def best(lines: Sequence[Line]) -> int:
    """Bytes a second that a node gets rid of where that goes best; 0: no line was ever full."""
    return max(line.carries for line in lines) if any(line.known for line in lines) else 0


def wants_more(flows: Sequence[Flow]) -> bool:
    """Would another connection carry more? `flows`: of all there are, since the last look."""
    busy_s = sum(flow.busy_s for flow in flows)
    limited_s = sum(flow.limited_s for flow in flows)
    lost = sum(flow.again for flow in flows) / max(sum(flow.segments for flow in flows), 1)
    long = all(flow.rtt_s >= RTT_MIN_S for flow in flows)
    queued = any(flow.queued for flow in flows)
    if busy_s < LOOK_S / 2 or not long or queued or len(flows) >= CONNECTIONS_MAX:
        return False
    unlucky = lost >= LOST_MIN and any(flow.fears_loss for flow in flows)
    return lost <= LOST_MAX and (unlucky or limited_s >= LIMITED_MIN * busy_s)
