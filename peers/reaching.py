"""A TCP connection with HOST:PORT, for whoever has something to say on it.

The loops' own ways try a name's addresses one after the other without an end to each (uvloop), or
look up in a thread what is an address already. Must NOT say anything, nor try again.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Sequence

_Found = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str | int | bytes, ...]]


async def reach(host: str, port: int, *, within_s: float) -> socket.socket:
    """Connect with one of the addresses that a name has: none takes the time of all. The caller
    sets the deadline, `within_s` from now; a part of it is left for what is to be said.

    Raises OSError and UnicodeError.
    """
    found = await _addresses(host, port)
    share_s = within_s / (len(found) + 1)
    failure: OSError = ConnectionError(f"{host} has no address")
    for number, (family, kind, protocol, _, name) in enumerate(found, 1):
        connection = socket.socket(family, kind, protocol)
        try:
            async with asyncio.timeout(share_s if number < len(found) else None):
                await _connect(connection, name)
        except OSError as error:  # A TimeoutError is one.
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise failure


async def _addresses(host: str, port: int) -> Sequence[_Found]:
    kind = socket.SOCK_STREAM
    try:  # Looks nothing up: at once.
        return socket.getaddrinfo(host, port, type=kind, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=kind)


async def _connect(connection: socket.socket, name: tuple[str | int | bytes, ...]) -> None:
    """Raises OSError."""
    connection.setblocking(False)
    code = connection.connect_ex(name)
    if code == errno.EINPROGRESS:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_writer(connection, lambda: ready.done() or ready.set_result(None))
        try:
            await ready
        finally:
            loop.remove_writer(connection)
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
