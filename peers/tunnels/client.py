"""The two ends of a tunnel: a connection through a third peer.

It is requested on the control connection with the third peer and begins with the ticket from that
peer; from then on it is used like a direct connection, encrypted between its two ends. Must NOT
choose the third peer (the core does), nor know what is sent.
"""

import asyncio
import os
import socket
from contextlib import suppress
from typing import Protocol

from protocols.messages import Control, NoTunnel, TunnelTicket, WantTunnel
from protocols.types import PeerId

TUNNEL = b"LCT1"
"""First bytes of a connection that is to be joined with another one (tunnels/relay.py)."""
OPENING_MAX = 16
"""Connections that other peers have us open at a time; bounds what a third peer can cause."""
OPEN_TIMEOUT_S = 5.0


class TunnelError(OSError):
    """There is no tunnel this time, and why."""


class TunnelHost(Protocol):
    """What tunnels need from the mesh. No method but `remote` may raise; none may block."""

    def send(self, peer: PeerId, message: Control) -> bool: ...

    def remote(self, peer: PeerId) -> tuple[str, int]:
        """The remote address of the control connection with this peer. Raises OSError without
        one."""
        ...

    def tunnel_came(self, connection: socket.socket) -> None:
        """Another peer has opened a tunnel to us; the host owns the connection now."""
        ...


class Tunnels:
    """Tunnels of one peer: `open_tunnel` on the requesting end; the other end only calls
    `handle_message`."""

    def __init__(self, host: TunnelHost) -> None:
        self._host = host
        self._asked = 0
        self._answers: dict[int, tuple[PeerId, asyncio.Future[bytes]]] = {}
        """By number of the request: the asked peer, and the future of its ticket."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def open_tunnel(self, peer: PeerId, *, relay: PeerId) -> socket.socket:
        """Connect with the peer through the relay. The caller sets a deadline. Raises OSError."""
        ticket = await self._ask(relay, peer)
        return await self._open_end(relay, ticket)

    def handle_message(self, relay: PeerId, message: TunnelTicket | NoTunnel) -> None:
        """An answer to our request, or a ticket for a tunnel that another peer requested."""
        if isinstance(message, TunnelTicket) and not message.number:
            if len(self._tasks) < OPENING_MAX:
                work = self._meet(relay, message.ticket)
                task = asyncio.get_running_loop().create_task(work, name=f"tunnel by {relay}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            return
        asked, answer = self._answers.get(message.number, (None, None))
        if answer is None or asked != relay or answer.done():
            return  # It came after our timeout, or was never requested.
        if isinstance(message, TunnelTicket):
            answer.set_result(message.ticket)
        else:
            answer.set_exception(TunnelError(f"{relay} gives no tunnel: {message.why}"))

    def disconnected(self, relay: PeerId) -> None:
        """The relay is disconnected: it answers no request."""
        for asked, answer in self._answers.values():
            if asked == relay and not answer.done():
                answer.set_exception(TunnelError(f"{relay} is not connected any more"))

    async def close(self) -> None:
        """End the connections that other peers had us open. Idempotent."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, relay: PeerId, peer: PeerId) -> bytes:
        self._asked += 1
        number = self._asked
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[number] = relay, answer
        try:
            self._host.remote(relay)  # A disconnected relay cannot answer.
            self._host.send(relay, WantTunnel(peer, number))
            return await answer
        finally:
            del self._answers[number]

    async def _meet(self, relay: PeerId, ticket: bytes) -> None:
        with suppress(OSError):  # The other peer tries again, or another relay.
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                connection = await self._open_end(relay, ticket)
            self._host.tunnel_came(connection)

    async def _open_end(self, relay: PeerId, ticket: bytes) -> socket.socket:
        """Our end of a tunnel through this peer. Raises OSError."""
        connection = await connect(self._host.remote(relay))
        show(connection, TUNNEL, ticket)
        return connection


async def connect(remote: tuple[str, int]) -> socket.socket:
    """A new TCP connection. Raises OSError."""
    # The address of a socket's other end: nothing is resolved.
    found = socket.getaddrinfo(*remote, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    family, kind_of, *_, name = found[0]
    connection = socket.socket(family, kind_of)
    try:
        connection.setblocking(False)
        with suppress(BlockingIOError):
            connection.connect(name)  # uvloop's sock_connect forgets the interface.
        await _until_connected(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def show(connection: socket.socket, kind: bytes, ticket: bytes) -> None:
    """Send the kind of a connection and its ticket, the first bytes on it, which always fit. Closes
    the connection and raises OSError if that fails."""
    try:
        connection.sendall(kind + ticket)
    except OSError:
        connection.close()
        raise


async def _until_connected(connection: socket.socket) -> None:
    """Wait until a non-blocking connect is done. Raises OSError."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(connection, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_writer(connection)
    if error := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(error, os.strerror(error))
