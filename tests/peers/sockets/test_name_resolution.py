"""The addresses of names, and of ends of sockets."""

import asyncio
import socket

import pytest

from peers.sockets.name_resolution import addresses_of, dialable


@pytest.mark.asyncio
async def test_a_name_has_its_addresses_once_each_in_their_order() -> None:
    async def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        of = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        four = (socket.AF_INET, *of, ("192.0.2.1", 5))
        return [(socket.AF_INET6, *of, ("fe80::1", 5, 0, 2)), four, four]

    asyncio.get_running_loop().getaddrinfo = resolve  # type: ignore[method-assign,assignment]
    assert await addresses_of("gpu1.example.org", 5) == ["fe80::1%2", "192.0.2.1"]
    for address in ("192.0.2.7", "2001:db8::7", "fe80::7%eth0"):  # None is looked up.
        assert await addresses_of(address, 5) == [address]


def test_an_address_of_one_link_is_dialled_by_its_interface() -> None:
    assert dialable(("192.0.2.1", 5)) == ("192.0.2.1", 5)
    assert dialable(("2001:db8::1", 5, 0, 0)) == ("2001:db8::1", 5)
    assert dialable(("fe80::1", 5, 0, 2)) == ("fe80::1%2", 5)
    assert dialable(("fe80::1%eth0", 5, 0, 2)) == ("fe80::1%eth0", 5)
