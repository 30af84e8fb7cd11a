"""Resolves names to addresses. Must NOT connect.

uvloop's own connect tries all addresses of a name within one deadline, so that one without an
answer used up all of it at every try. Callers give each address a deadline of its own.
"""

import asyncio
import ipaddress
import socket
from contextlib import suppress


async def addresses_of(host: str, port: int) -> list[str]:
    """The addresses of a name in the resolver's order, link-local ones with their interface. An
    address is returned as it is. Raises OSError and UnicodeError."""
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return [host]  # uvloop would resolve it without the interface.
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(dialable(name)[0] for *_, name in found))


def dialable(name: tuple[str | int | bytes, ...]) -> tuple[str, int]:
    """(host, port) to dial for this socket name; a link-local IPv6 address needs its interface."""
    host, port, *rest = name
    scope = rest[1] if len(rest) > 1 else 0
    return (f"{host}%{scope}" if scope and "%" not in str(host) else str(host)), int(port)
