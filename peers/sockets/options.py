"""What we ask of the kernel for one connection. Must NOT fail: it is only slower without."""

import contextlib
import ipaddress
import socket
import struct

from protocols.types.errors import ConfigError

LOOPBACK, OTHER = b"reno", b"bbr"
"""Congestion control by where the peer is. bbr paces what it sends, which on loopback halves the
rate, as nothing there is ever lost; over long lines with some loss it keeps the rate."""
TCP_INFO_RTT = struct.Struct("=68xI")
"""Of struct tcp_info, as far as the smoothed round trip in microseconds."""
SO_MAX_PACING_RATE = 47
"""The socket module has no name for it."""
TCP_CC_INFO = 26
"""Nor for this one: what the congestion control says of itself."""
BBR_PACING_GAIN = struct.Struct("=12xI")
"""Of struct tcp_bbr_info, as far as how much faster it sends than the line is thought to be, in
256ths: 2.8 times while it finds that out, at most 1.25 afterwards."""
STARTING_MIN = 512
UNSENT_BYTES = 256 << 10
"""What the kernel takes beyond what it may send: enough until we have our next turn. More would
stand before a result that somebody waits for, or wait for a slow connection beside one that is
free. On loopback it would cost turns."""
USER_TIMEOUT_MS = 30_000
"""A peer that confirms nothing for so long is gone, even while we have nothing to say to it: the
kernel then asks, and what it asked is what the other end has to confirm."""
ASK_AFTER_S, ASK_EVERY_S = 10, 5
"""How long a connection is still before that. Between learners nobody says anything for hours, and
heartbeats tell nothing of bulk connections."""


def tune(connection: socket.socket, *, bulk: bool, congestion: str = "") -> None:
    """Set what this system allows. `congestion`: of bulk; "" goes by where the peer is."""
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
    """Send no faster, from now on."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=Q", bytes_per_s))


def known_congestion(name: str) -> str:
    """The name, if it is empty or this kernel has such a control. Raises ConfigError."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        try:
            if name:
                tried.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"node.congestion: this kernel lets nobody here use {name!r}: take one of "
                "/proc/sys/net/ipv4/tcp_available_congestion_control, or leave it empty"
            ) from error
    return name


def round_trip_s(connection: socket.socket) -> float | None:
    """The kernel's own smoothed measurement; None: it has none."""
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_RTT.size)
    except OSError:
        return None  # Not TCP, or the connection is over.
    (microseconds,) = TCP_INFO_RTT.unpack(told)
    return microseconds / 1e6 if microseconds else None


def is_starting(connection: socket.socket) -> bool:
    """bbr goes on doubling its rate. It says so from the first confirmed bytes on."""
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, TCP_CC_INFO, BBR_PACING_GAIN.size)
    except OSError:
        return False  # Not TCP, or the connection is over.
    if len(told) < BBR_PACING_GAIN.size:
        return False  # Another congestion control, or none that says anything.
    (gain,) = BBR_PACING_GAIN.unpack(told)
    return gain >= STARTING_MIN


def _set(
    connection: socket.socket, option: int, value: int | bytes, *, level: int = socket.IPPROTO_TCP
) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(level, option, value)


def _is_local(connection: socket.socket) -> bool:
    """Both ends are this machine's."""
    try:
        here, there = connection.getsockname()[0], connection.getpeername()[0]
        return here == there or ipaddress.ip_address(there).is_loopback
    except (OSError, ValueError):
        return False
