"""How many bulk connections a pair needs: one, until the kernel's buffers are what slows it down.

A connection carries at most its buffers' size in a round trip, 4 MiB where nobody changed the
kernel: 28 MB/s at 150 ms. The kernel counts how long it waited for that. Must NOT open anything.
"""

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

CONNECTIONS_MAX = 8
"""Of one pair: 220 MB/s at 150 ms."""
LOOK_S = 1.0
RTT_MIN_S = 0.005
"""In a shorter one, buffers of 4 MiB make 800 MB/s: who is slow there is not the line."""
LIMITED_MIN = 0.2
"""Of the time in which something was to be sent."""
_INFO_BYTES = 192
_BUSY, _MIN_RTT = 168, 148
"""Where struct tcp_info has tcpi_busy_time, _rwnd_limited and _sndbuf_limited; and _min_rtt."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What became of one connection's sending since it was opened, or between two looks."""

    busy_s: float
    """There was something to send, or to be confirmed."""
    limited_s: float
    """One of the two kernels' buffers was full, and everything in it on its way."""
    rtt_s: float
    """The shortest round trip."""

    def since(self, earlier: "Flow") -> "Flow":
        busy_s, limited_s = self.busy_s - earlier.busy_s, self.limited_s - earlier.limited_s
        return Flow(busy_s, limited_s, self.rtt_s)


NOTHING = Flow(0.0, 0.0, 0.0)


def flow_of(connection: socket.socket) -> Flow:
    """So far. Raises OSError: this kernel does not tell."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _INFO_BYTES:
        raise OSError("no times in TCP_INFO")
    busy_us, receiver_us, sender_us = struct.unpack_from("=3Q", info, _BUSY)
    (rtt_us,) = struct.unpack_from("=I", info, _MIN_RTT)
    return Flow(busy_us / 1e6, (receiver_us + sender_us) / 1e6, rtt_us / 1e6)


def wants_more(flows: Sequence[Flow]) -> bool:
    """Would another connection carry more? `flows`: of all there are, since the last look."""
    busy_s = sum(flow.busy_s for flow in flows)
    limited_s = sum(flow.limited_s for flow in flows)
    long = all(flow.rtt_s >= RTT_MIN_S for flow in flows)
    enough = busy_s >= LOOK_S / 2 and limited_s >= LIMITED_MIN * busy_s
    return long and enough and len(flows) < CONNECTIONS_MAX
