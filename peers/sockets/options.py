"""Socket options of one connection. Must NOT raise: without them it is only slower."""

import contextlib
import ipaddress
import socket
import struct

from protocols.types import ConfigError

LOOPBACK, OTHER = b"reno", b"bbr"
"""Congestion control for loopback, and for all other connections. bbr paces its packets, which on
loopback halves the rate; over long lines with some loss it keeps the rate."""
TCP_INFO_RTT = struct.Struct("=68xI")
"""struct tcp_info up to the smoothed round trip in microseconds."""
SO_MAX_PACING_RATE = 47
"""Missing in the socket module."""
TCP_CC_INFO = 26
"""Missing in the socket module: the figures of the congestion control."""
BBR_PACING_GAIN = struct.Struct("=12xI")
"""struct tcp_bbr_info up to the pacing gain in 256ths: 2.8 while bbr measures the line, at most
1.25 afterwards."""
STARTING_MIN = 512
UNSENT_BYTES = 256 << 10
"""Unsent bytes that the kernel queues: enough until our next turn. More would delay results behind
other payloads, or wait for a slow connection beside a free one. Not set on loopback, where it would
cost turns."""
USER_TIMEOUT_MS = 30_000
"""A peer that acknowledges nothing for so long is gone, also while nothing is sent: then the
kernel's keep-alive probes must be acknowledged."""
ASK_AFTER_S, ASK_EVERY_S = 10, 5
"""Seconds of silence before the first keep-alive probe, and between probes. Learners may send
nothing to each other for hours, and heartbeats do not test bulk connections."""


def tune(connection: socket.socket, *, bulk: bool, congestion: str = "") -> None:
    """Set the options that this system allows. `congestion`: for bulk; "" chooses by the peer's
    location."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    _set(connection, socket.TCP_NODELAY, 1)
    _set(connection, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    _set(connection, socket.TCP_KEEPIDLE, ASK_AFTER_S)
    _set(connection, socket.TCP_KEEPINTVL, ASK_EVERY_S)
    _set(connection, socket.SO_KEEPALIVE, 1, level=socket.SOL_SOCKET)
    if bulk:
        local = _is_local(connection)
        chosen = congestion.encode() or (LOOPBACK if local else OTHER)
        _set(connection, socket.TCP_CONGESTION, chosen)
        if not local:
            _set(connection, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def pace(connection: socket.socket, bytes_per_s: int) -> None:
    """Limit the rate of sending from now on."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=Q", bytes_per_s))


def known_congestion(name: str) -> str:
    """The name, if it is empty or known to this kernel. Raises ConfigError."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        try:
            if name:
                tried.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"node.congestion: this kernel does not permit {name!r} here: take one of "
                "/proc/sys/net/ipv4/tcp_available_congestion_control, or leave it empty"
            ) from error
    return name


def round_trip_s(connection: socket.socket) -> float | None:
    """The kernel's smoothed round trip in seconds; None if there is none."""
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_RTT.size)
    except OSError:
        return None  # Not TCP, or the connection has ended.
    (microseconds,) = TCP_INFO_RTT.unpack(told)
    return microseconds / 1e6 if microseconds else None


def is_starting(connection: socket.socket) -> bool:
    """Is bbr still doubling its rate? Known from the first acknowledged bytes on."""
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, TCP_CC_INFO, BBR_PACING_GAIN.size)
    except OSError:
        return False  # Not TCP, or the connection has ended.
    if len(told) < BBR_PACING_GAIN.size:
        return False  # Another congestion control, or one without figures.
    (gain,) = BBR_PACING_GAIN.unpack(told)
    return gain >= STARTING_MIN


def _set(
    connection: socket.socket, option: int, value: int | bytes, *, level: int = socket.IPPROTO_TCP
) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(level, option, value)


def _is_local(connection: socket.socket) -> bool:
    """Are both ends on this machine?"""
    try:
        here, there = connection.getsockname()[0], connection.getpeername()[0]
        return here == there or ipaddress.ip_address(there).is_loopback
    except (OSError, ValueError):
        return False
