"""Connections through a third peer, for two that cannot reach each other: asked for on the control
connection with the third one, begun with the ticket that it gives, and from then on a connection
with the other end like any other. What is said on it is secured between the two ends.

Must NOT choose through whom (the core does), nor know what is said.
"""

import asyncio
import os
import socket
from contextlib import suppress
from typing import Protocol

from protocols.messages.peer import Control, NoTunnel, TunnelTicket, WantTunnel
from protocols.types.ids import PeerId

TUNNEL = b"LCT1"
"""How a connection begins that is to be joined with another one (tunnels/relay.py)."""
OPENING_MAX = 16
"""Connections at a time that others had us make: no third peer can have us make many."""
OPEN_TIMEOUT_S = 5.0


class TunnelError(OSError):
    """There is no tunnel this time: why."""


class TunnelHost(Protocol):
    """What tunnels need from the mesh. No method may raise or block but `remote`."""

    def send(self, peer: PeerId, message: Control) -> bool: ...

    def remote(self, peer: PeerId) -> tuple[str, int]:
        """Where the control connection with this peer goes. Raises OSError without one."""
        ...

    def tunnel_came(self, connection: socket.socket) -> None:
        """Somebody wants to speak with us through a third peer; the connection is the host's."""
        ...


class Tunnels:
    """`open` on one end; on the other `take` is all."""

    def __init__(self, host: TunnelHost) -> None:
        self._host = host
        self._asked = 0
        self._answers: dict[int, tuple[PeerId, asyncio.Future[bytes]]] = {}
        """By number of the question: who was asked, and the ticket."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, peer: PeerId, *, relay: PeerId) -> socket.socket:
        """Connect with the peer through the relay. The caller sets a deadline. Raises OSError."""
        ticket = await self._ask(relay, peer)
        return await self._end(relay, ticket)

    def take(self, relay: PeerId, message: TunnelTicket | NoTunnel) -> None:
        """The answer to a question of ours, or somebody else wants to speak with us."""
        if isinstance(message, TunnelTicket) and not message.number:
            if len(self._tasks) < OPENING_MAX:
                work = self._meet(relay, message.ticket)
                task = asyncio.get_running_loop().create_task(work, name=f"tunnel by {relay}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            return
        asked, answer = self._answers.get(message.number, (None, None))
        if answer is None or asked != relay or answer.done():
            return  # It was asked no longer ago than our patience lasts, or never.
        if isinstance(message, TunnelTicket):
            answer.set_result(message.ticket)
        else:
            answer.set_exception(TunnelError(f"{relay} gives no tunnel: {message.why}"))

    def gone(self, relay: PeerId) -> None:
        """It answers no more."""
        for asked, answer in self._answers.values():
            if asked == relay and not answer.done():
                answer.set_exception(TunnelError(f"{relay} is not connected any more"))

    async def close(self) -> None:
        """End what others had us begin; idempotent."""
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
            self._host.remote(relay)  # Nobody answers who is not there.
            self._host.send(relay, WantTunnel(peer, number))
            return await answer
        finally:
            del self._answers[number]

    async def _meet(self, relay: PeerId, ticket: bytes) -> None:
        with suppress(OSError):  # Whoever wants us tries again, or another way.
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                connection = await self._end(relay, ticket)
            self._host.tunnel_came(connection)

    async def _end(self, relay: PeerId, ticket: bytes) -> socket.socket:
        """Ours of a tunnel through this peer. Raises OSError."""
        connection = await connect(self._host.remote(relay))
        show(connection, TUNNEL, ticket)
        return connection


async def connect(remote: tuple[str, int]) -> socket.socket:
    """A connection on which nothing is said yet. Raises OSError."""
    # Where the other end of a socket is: nothing is looked up.
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
    """What a connection is for; the first bytes on it, for which there is always room. Raises
    OSError, and closes it then."""
    try:
        connection.sendall(kind + ticket)
    except OSError:
        connection.close()
        raise


async def _until_connected(connection: socket.socket) -> None:
    """Raises OSError."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(connection, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_writer(connection)
    if error := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(error, os.strerror(error))
