"""Addresses and sockets, without any protocol.

In: HOST:PORT texts and file descriptors. Out: listening sockets, resolved addresses, socket
options, the kernel's figures about a connection (tcp_info.py), a rate for a connection that
overfills its line, and large memory (memory_pages.py). Must NOT know peers, messages or
certificates.

Start reading: address.py and listener.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from peers.sockets.address import (
        format_address,
        is_loopback,
        is_wildcard,
        parse_address,
        require_loopback,
    )
    from peers.sockets.listener import BoundSocket, bind, listen, way_to
    from peers.sockets.memory_pages import fresh, unnamed_file
    from peers.sockets.options import known_congestion, tune

__all__ = [
    "BoundSocket",
    "bind",
    "format_address",
    "fresh",
    "is_loopback",
    "is_wildcard",
    "known_congestion",
    "listen",
    "parse_address",
    "require_loopback",
    "tune",
    "unnamed_file",
    "way_to",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "address": "format_address is_loopback is_wildcard parse_address require_loopback",
        "listener": "BoundSocket bind listen way_to",
        "memory_pages": "fresh unnamed_file",
        "options": "known_congestion tune",
    },
)
