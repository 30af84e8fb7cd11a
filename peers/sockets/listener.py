"""The socket that a daemon listens on, bound before anything heavy is imported.

The kernel queues whoever connects meanwhile. Must NOT accept: connections/mesh.py does.
"""

import socket
import time
from dataclasses import dataclass

from peers.sockets.address import format_address, parse_address
from peers.sockets.name_resolution import dialable
from protocols.types.errors import ConfigError

BACKLOG = 256
"""Connections that wait until we accept them."""


def bind(address: str, *, key: str = "node.listen") -> tuple[socket.socket, str]:
    """Listen on HOST:PORT; return the socket and the address with the port that was taken.

    Raises ConfigError, which names `key`, when it cannot be had.
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
    """This machine's own address on the way to HOST:PORT, without a port. Nothing is sent.

    Raises ConfigError when there is no way.
    """
    host, port = parse_address(address, key="--join")
    try:
        family, kind, _, _, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(there)
            return dialable(probe.getsockname())[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--join: {host} cannot be reached from here: {error}") from error


@dataclass(frozen=True, slots=True)
class Listening:
    """A bound socket, and what it took this process to get there."""

    socket: socket.socket | None
    """None: nobody can dial us."""
    address: str
    cpu_s: float
    """CPU seconds of this process until the kernel took connections."""

    def close(self) -> None:
        """Idempotent, as whoever accepts on it closes it too."""
        if self.socket is not None:
            self.socket.close()


def listen(address: str) -> Listening:
    """`bind`, with the time it took; nowhere at "". Raises ConfigError."""
    bound, taken = bind(address) if address else (None, "")
    return Listening(bound, taken, time.process_time())
