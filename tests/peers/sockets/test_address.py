"""HOST:PORT texts: what is one, what is not, and what is this machine."""

import pytest

from peers.sockets.address import format_address, is_wildcard, parse_address, require_loopback
from protocols.types.errors import ConfigError

GOOD = [
    ("127.0.0.1:4711", ("127.0.0.1", 4711)),
    ("localhost:0", ("localhost", 0)),
    ("node-1.example.org:65535", ("node-1.example.org", 65535)),
    ("[::1]:4711", ("::1", 4711)),
    ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
]
BAD = [
    "",
    ":",
    ":4711",
    "localhost",
    "localhost:",
    "localhost:port",
    "localhost:-1",
    "localhost:65536",
    "localhost:" + "9" * 5000,
    "localhost:\u0664\u0667",
    "localhost:\u00b2",
    "::1:4711",
    "fe80::1",
    "[::1]",
    "[::1:4711",
    "[localhost]:4711",
    "[]:1",
]


@pytest.mark.parametrize(("text", "parts"), GOOD)
def test_an_address_is_split_and_put_together_again(text: str, parts: tuple[str, int]) -> None:
    assert parse_address(text, key="k") == parts
    assert format_address(*parts) == text


@pytest.mark.parametrize("text", BAD)
def test_anything_else_is_refused_with_the_name_of_its_key(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^node\.listen: .* is not HOST:PORT"):
        parse_address(text, key="node.listen")


@pytest.mark.parametrize("text", ["127.0.0.1:1", "127.3.2.1:1", "localhost:1", "[::1]:1"])
def test_this_machine_may_be_reached(text: str) -> None:
    assert require_loopback(text, key="k") == parse_address(text, key="k")


@pytest.mark.parametrize("text", ["0.0.0.0:1", "10.0.0.1:1", "[::]:1", "localhost.evil.org:1"])
def test_no_other_machine_may_be_reached(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--join: .* for this machine only"):
        require_loopback(text, key="--join")


def test_what_everybody_listens_on_nobody_can_dial() -> None:
    assert all(map(is_wildcard, ("0.0.0.0", "::")))
    assert not any(map(is_wildcard, ("127.0.0.1", "::1", "localhost", "gpu1.example.org")))
