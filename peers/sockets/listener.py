"""The socket that a daemon listens on, bound before anything heavy is imported.

The kernel queues connections meanwhile. Must NOT accept them (connections/mesh.py).
"""

import socket
import time
from contextlib import suppress
from dataclasses import dataclass

from peers.sockets.address import format_address, parse_address
from peers.sockets.name_resolution import dialable
from protocols.types import ConfigError

BACKLOG = 256
"""Connections that the kernel queues until they are accepted."""


def bind(address: str, *, key: str = "node.listen") -> tuple[socket.socket, str]:
    """Listen on HOST:PORT; return the socket, and the address with the actual port.

    Raises ConfigError that names `key` if that is impossible.
    """
    host, port = parse_address(address, key=key)
    try:
        family, *_, name = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.create_server(name, family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else ""
        raise ConfigError(
            f"{key}: cannot listen on {address}: {why or error}; "
            "choose another port, or 0 for a free one"
        ) from error
    bound.setblocking(False)
    return bound, format_address(*dialable(bound.getsockname()))


def way_to(address: str) -> str:
    """This machine's own address on the route to HOST:PORT, without a port. Nothing is sent. Raises
    ConfigError if there is no route."""
    host, port = parse_address(address, key="--join")
    try:
        family, kind, _, _, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(there)
            return dialable(probe.getsockname())[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--join: {host} cannot be reached from here: {error}") from error


@dataclass(frozen=True, slots=True)
class BoundSocket:
    """A bound socket, and the CPU time of this process until then."""

    socket: socket.socket | None
    """None if this peer does not listen."""
    address: str
    cpu_s: float
    """CPU seconds of this process until the kernel accepted connections."""

    def close(self) -> None:
        """Idempotent, since the acceptor closes the socket too."""
        if self.socket is not None:
            self.socket.close()


def listen(address: str, *, before: str = "") -> BoundSocket:
    """`bind` with its CPU time; "" means not to listen. `before`: where other nodes dialled this
    one; a port that `address` leaves open is that one again if it is free, since their logs name
    it. Raises ConfigError."""
    host, port = parse_address(address, key="node.listen") if address else ("", 0)
    bound: socket.socket | None = None
    taken = ""
    if address and before and not port:
        with suppress(ConfigError):
            _, earlier = parse_address(before, key="node.listen")
            bound, taken = bind(format_address(host, earlier))
    if address and bound is None:
        bound, taken = bind(address)
    return BoundSocket(bound, taken, time.process_time())
