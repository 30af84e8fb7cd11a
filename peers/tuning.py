"""What we ask of the kernel for one connection. Must NOT fail: it is only slower without."""

import contextlib
import ipaddress
import socket
import struct

LOOPBACK, OTHER = b"reno", b"bbr"
"""Congestion control by where the peer is. bbr paces what it sends, which on loopback halves the
rate, as nothing there is ever lost; over long lines with some loss it keeps the rate."""
TCP_INFO_RTT = struct.Struct("=68xI")
"""Of struct tcp_info, as far as the smoothed round trip in microseconds."""
USER_TIMEOUT_MS = 30_000
"""A peer that confirms nothing for so long is gone, even while we have nothing to say to it."""


def tune(connection: socket.socket, *, bulk: bool) -> None:
    """Set what this system allows."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    _set(connection, socket.TCP_NODELAY, 1)
    _set(connection, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    if bulk:
        _set(connection, socket.TCP_CONGESTION, LOOPBACK if _is_local(connection) else OTHER)


def round_trip_s(connection: socket.socket) -> float | None:
    """The kernel's own smoothed measurement; None: it has none."""
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_RTT.size)
    except OSError:
        return None  # Not TCP, or the connection is over.
    (microseconds,) = TCP_INFO_RTT.unpack(told)
    return microseconds / 1e6 if microseconds else None


def _set(connection: socket.socket, option: int, value: int | bytes) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _is_local(connection: socket.socket) -> bool:
    """Both ends are this machine's."""
    try:
        here, there = connection.getsockname()[0], connection.getpeername()[0]
        return here == there or ipaddress.ip_address(there).is_loopback
    except (OSError, ValueError):
        return False
