"""Figures of the kernel about bulk connections, and how many a pair of peers needs.

One connection is enough until it limits the pair.

A connection carries at most its buffers' size in a round trip, by default 4 MiB: 28 MB/s at 150 ms.
If packets are lost by chance, a congestion control that takes each loss for a full line (cubic,
reno) uses less than a tenth of a long line. The kernel counts what is needed to tell. While packets
queue the line is full, and another connection would only increase losses. Must NOT open connections
or set options.
"""

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

CONNECTIONS_MAX = 8
"""Connections of one pair: 220 MB/s at 150 ms."""
LOOK_S = 1.0
RTT_MIN_S = 0.005
"""Seconds. With a shorter round trip buffers of 4 MiB carry 800 MB/s: the line is not what is
slow."""
LIMITED_MIN = 0.2
"""Share of the busy time in which the buffers limit a connection."""
QUEUED_MAX = 1.15
"""A round trip longer than this multiple of the shortest one means a queue."""
LOST_MIN, LOST_MAX = 0.001, 0.03
"""Shares of packets that are sent again: above the first losses matter, above the second queues
overflow. A loss in a thousand keeps a cubic connection at 45 packets in a round trip, 5 Mbit/s at
100 ms."""
LOSS_KEEPS = (b"bbr",)
"""Congestion controls, by their first letters, that do not react to single losses."""
LINE_LONG_S, LINE_BYTES_MIN = 0.2, 32 << 10
"""A line must be busy for so many seconds between two samples, with so many bytes, to show its
rate; fewer bytes measure round trips."""
_INFO_BYTES = 196
_SIZE, _RTT, _AGAIN, _MIN_RTT, _SEGMENTS, _ARRIVED = 16, 68, 100, 148, 156, 192
"""Offsets in struct tcp_info of tcpi_snd_mss, _rtt, _total_retrans, _min_rtt, _data_segs_out and
_delivered ..."""
_PACE, _TIMES = 112, 168
"""... _max_pacing_rate and _bytes_acked; and _busy_time, _rwnd_limited and _sndbuf_limited."""
_UNPACED = 1 << 63
"""The pacing rate of a connection without a limit is above this, or 32 bits of ones."""
_NAME_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The sent data of one connection, since it was opened or between two samples."""

    busy_s: float = 0.0
    """Seconds in which data was waiting to be sent or acknowledged."""
    limited_s: float = 0.0
    """Seconds in which a buffer of either kernel was full, with all of its data under way."""
    confirmed_bytes: int = 0
    sent_bytes: int = 0
    """Bytes sent, in whole packets, lost and repeated ones included ..."""
    arrived_bytes: int = 0
    """... and the bytes of them that are known to have arrived, in any order."""
    segments: int = 0
    """Packets sent ..."""
    again: int = 0
    """... and those among them that were sent before."""
    rtt_s: float = 0.0
    """The shortest round trip in seconds ..."""
    smoothed_rtt_s: float = 0.0
    """... and the present one."""
    pace: int | None = None
    """The present limit in bytes a second; None if there is none."""
    fears_loss: bool = False
    """Its congestion control takes a loss for a full line."""

    @property
    def lost(self) -> float:
        """The share of packets that were sent again."""
        return self.again / max(self.segments, 1)

    @property
    def queued(self) -> bool:
        """Do packets queue, i.e. is the line full?"""
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
    """The flow since the connection was opened. Raises OSError if this kernel does not tell."""
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
    """Are round trips long, as the kernel has measured so far?"""
    try:
        return flow_of(connection).rtt_s >= RTT_MIN_S
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Line:
    """The rate to one peer when there is much to send."""

    carries: int = 0
    """Bytes a second, a lower bound unless `known`."""
    known: bool = False
    """The line is long and was busy for long enough: this is its whole rate."""


NO_LINE = Line()


def line_of(flows: Sequence[Flow], before: Line) -> Line:
    """The line to a peer. `flows`: of all connections with it, since the last sample; `before`: the
    line until then."""
    busy_s = max((flow.busy_s for flow in flows), default=0.0)
    confirmed_bytes = sum(flow.confirmed_bytes for flow in flows)
    if busy_s <= 0 or confirmed_bytes < LINE_BYTES_MIN:
        return before
    carries = int(confirmed_bytes / busy_s)
    # On a short line, waiting for a CPU at the other end looks like a slow line.
    if busy_s >= LINE_LONG_S and all(flow.rtt_s >= RTT_MIN_S for flow in flows):
        return Line(carries, known=True)
    # A short transfer may be slow for other reasons, but the line is at least so fast.
    return Line(max(carries, before.carries), before.known)


def best(lines: Sequence[Line]) -> int:
    """The rate of the best line of a node in bytes a second; 0 if no line was ever full."""
    return max(line.carries for line in lines) if any(line.known for line in lines) else 0


def wants_more(flows: Sequence[Flow]) -> bool:
    """Would another connection increase the rate? `flows`: of all connections, since the last
    sample."""
    busy_s = sum(flow.busy_s for flow in flows)
    limited_s = sum(flow.limited_s for flow in flows)
    lost = sum(flow.again for flow in flows) / max(sum(flow.segments for flow in flows), 1)
    long = all(flow.rtt_s >= RTT_MIN_S for flow in flows)
    queued = any(flow.queued for flow in flows)
    if busy_s < LOOK_S / 2 or not long or queued or len(flows) >= CONNECTIONS_MAX:
        return False
    unlucky = lost >= LOST_MIN and any(flow.fears_loss for flow in flows)
    return lost <= LOST_MAX and (unlucky or limited_s >= LIMITED_MIN * busy_s)
