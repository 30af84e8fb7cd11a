"""Accepts connections: control and bulk on one port, told apart by their first bytes.

A bulk connection begins with MAGIC and a ticket of this peer, an end of a tunnel with TUNNEL and a
ticket; any other one is a control connection. A connection that is no part of a session yet is
unauthenticated (a "stranger"): their number and time are limited. Must NOT handle messages, nor
keep sessions.
"""

import asyncio
import socket
import ssl
from typing import Protocol

from peers.connections.control import Link, LinkOwner
from peers.tunnels.client import TUNNEL
from protocols.types import TICKET_BYTES

MAGIC = b"LCB1"
"""First bytes of a bulk connection. No TLS record and no control frame (of 800 MB) begins so."""
KINDS = (MAGIC, TUNNEL)
OPENING_BYTES = len(MAGIC) + TICKET_BYTES
HELLO_TIMEOUT_S = 5.0
"""Seconds until a connection that is no part of a session is closed."""
STRANGERS_MAX = 64
"""Connections that are no part of a session yet."""
ACCEPTS_MAX = 16
"""Connections accepted before other tasks have their turn."""
FULL_S = 1.0
"""Seconds without accepting after this process had no descriptor left."""


class AcceptorHost(LinkOwner, Protocol):
    """Callbacks of a reception to its owner. No method may raise or block."""

    def bulk_came(self, connection: socket.socket, ticket: bytes) -> None:
        """A bulk connection has shown a ticket; the host owns it now."""
        ...

    def tunnel_end_came(self, connection: socket.socket, ticket: bytes) -> None:
        """An end of a tunnel has shown a ticket; the host owns it now."""
        ...


class UnknownConnection:
    """A connection that is no part of a session yet."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection: socket.socket | None = connection
        """The socket, until a link owns it."""
        self.link: Link | None = None
        self.task: asyncio.Task[None] | None = None
        """The task that makes the link."""
        self.timer: asyncio.TimerHandle | None = None


class Acceptor:
    """The accepting side of a mesh: `open`, then `close`."""

    def __init__(self, host: AcceptorHost) -> None:
        self._host = host
        self._bound: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._strangers: dict[UnknownConnection, None] = {}
        """Unauthenticated connections, the oldest first."""
        self._reopening: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._strangers)

    def open(self, bound: socket.socket | None, tls: ssl.SSLContext | None) -> None:
        """Accept on a listening socket; None: on none. `tls` None: unencrypted."""
        self._bound, self._tls = bound, tls
        if bound is None:
            return
        asyncio.get_running_loop().add_reader(bound, self._accept)

    async def close(self) -> None:
        """Accept no more, and close connections that are no link yet. Idempotent."""
        if self._reopening is not None:
            self._reopening.cancel()
        if self._bound is not None:
            asyncio.get_running_loop().remove_reader(self._bound)
            self._bound.close()
            self._bound = None
        tasks = [one.task for one in self._strangers if one.task is not None]
        for unknown in list(self._strangers):
            self._end_unknown(unknown, "closing")
        if tasks:
            await asyncio.wait(tasks)

    def known(self, link: Link) -> None:
        """The link is part of a session now, or has ended."""
        for unknown in list(self._strangers):
            if unknown.link is link:
                self._forget(unknown)

    def extend(self, link: Link, timeout_s: float, why: str) -> None:
        """The link has made a request, and may wait so many seconds for the answer."""
        for unknown in self._strangers:
            if unknown.link is link:
                self._set_timer(unknown, timeout_s, why)

    # Accepting ------------------------------------------------------------------------------

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTS_MAX):
            if self._bound is None:
                return
            try:
                connection, _ = self._bound.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # No descriptor or memory left; the kernel queues further connections.
                loop.remove_reader(self._bound)
                self._reopening = loop.call_later(FULL_S, self.open, self._bound, self._tls)
                return
            connection.setblocking(False)
            self.meet(connection)

    def meet(self, connection: socket.socket) -> None:
        """Take a new connection, accepted or through a tunnel."""
        unknown = UnknownConnection(connection)
        self._strangers[unknown] = None
        self._set_timer(unknown, HELLO_TIMEOUT_S, "no hello in time")
        self._wait_for(unknown, connection, len(MAGIC))
        if len(self._strangers) > STRANGERS_MAX:
            # The oldest one makes room: idle connections cannot fill the table.
            self._end_unknown(
                next(iter(self._strangers)), "too many connections without a handshake"
            )

    def _wait_for(self, unknown: UnknownConnection, connection: socket.socket, size: int) -> None:
        """Call `_look` when so many bytes have arrived, or no more will come."""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
        asyncio.get_running_loop().add_reader(connection, self._look, unknown, connection)

    def _look(self, unknown: UnknownConnection, connection: socket.socket) -> None:
        """Look at the first bytes, which tell the kind of the connection."""
        try:
            first = connection.recv(OPENING_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError as error:
            self._end_unknown(unknown, str(error))
            return
        if first[: len(MAGIC)] not in KINDS:
            if len(first) < len(MAGIC):
                self._end_unknown(unknown, "end of stream")
                return
            self._hand_over(unknown, connection)
            self._make_link(unknown, connection)
        elif len(first) < OPENING_BYTES:
            # Wait once more; if nothing has come since then, the stream has ended.
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == OPENING_BYTES:
                self._end_unknown(unknown, "end of stream")
                return
            self._wait_for(unknown, connection, OPENING_BYTES)
        else:
            connection.recv(OPENING_BYTES)
            self._hand_over(unknown, connection)
            self._forget(unknown)
            kind, ticket = first[: len(MAGIC)], first[len(MAGIC) :]
            came = self._host.bulk_came if kind == MAGIC else self._host.tunnel_end_came
            came(connection, ticket)

    def _hand_over(self, unknown: UnknownConnection, connection: socket.socket) -> None:
        """The kind of the connection is known: hand it over."""
        asyncio.get_running_loop().remove_reader(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def _make_link(self, unknown: UnknownConnection, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        unknown.link = link = Link(self._host, accepted=True)
        unknown.task = loop.create_task(self._shake_hands(unknown, link, connection))

    async def _shake_hands(
        self, unknown: UnknownConnection, link: Link, connection: socket.socket
    ) -> None:
        unknown.connection = None  # A transport owns it from now on.
        loop, timeout_s = asyncio.get_running_loop(), HELLO_TIMEOUT_S if self._tls else None
        try:
            await loop.connect_accepted_socket(
                lambda: link, connection, ssl=self._tls, ssl_handshake_timeout=timeout_s
            )
        except OSError:  # No TLS, a certificate that is not trusted (yet), or no data at all.
            self._forget(unknown)
        except asyncio.CancelledError:
            link.connection_lost(None)  # If it was opened: uvloop closes it without a callback.
            raise
        finally:
            unknown.task = None

    # Ending ---------------------------------------------------------------------------------

    def _set_timer(self, unknown: UnknownConnection, timeout_s: float, why: str) -> None:
        if unknown.timer is not None:
            unknown.timer.cancel()
        loop = asyncio.get_running_loop()
        unknown.timer = loop.call_later(timeout_s, self._end_unknown, unknown, why)

    def _forget(self, unknown: UnknownConnection) -> None:
        self._strangers.pop(unknown, None)
        if unknown.timer is not None:
            unknown.timer.cancel()

    def _end_unknown(self, unknown: UnknownConnection, why: str) -> None:
        self._forget(unknown)
        if unknown.link is not None and unknown.link.is_open:
            unknown.link.close(why)
        elif unknown.task is not None:
            unknown.task.cancel()
        if unknown.connection is not None:
            asyncio.get_running_loop().remove_reader(unknown.connection)
            unknown.connection.close()
