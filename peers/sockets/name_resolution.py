"""The addresses that a name has. Must NOT connect with them.

The loops' own ways of connecting try them one after the other within one deadline (uvloop): one
that does not answer took all of it, at every try. Who connects gives each its own.
"""

import asyncio
import ipaddress
import socket
from contextlib import suppress


async def addresses_of(host: str, port: int) -> list[str]:
    """In the resolver's order, each with its interface where it is one of a single link; what is an
    address already is the only one. Raises OSError and UnicodeError."""
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return [host]  # uvloop would look it up without the interface.
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(dialable(name)[0] for *_, name in found))


def dialable(name: tuple[str | int | bytes, ...]) -> tuple[str, int]:
    """Host and port to dial to reach the end of a socket that has this name: an IPv6 address of
    one link is none without the interface."""
    host, port, *rest = name
    scope = rest[1] if len(rest) > 1 else 0
    return (f"{host}%{scope}" if scope and "%" not in str(host) else str(host)), int(port)
