"""A node listens where it listened before, if its configuration leaves the port open."""

import pytest

from peers.sockets.listener import bind, listen
from protocols.types import ConfigError


def test_an_open_port_is_the_one_of_the_last_start() -> None:
    first = listen("127.0.0.1:0")
    first.close()
    again = listen("127.0.0.1:0", before=first.address)
    again.close()
    assert again.address == first.address


def test_another_port_is_taken_if_that_one_is_taken() -> None:
    taken, address = bind("127.0.0.1:0")
    with taken:
        other = listen("127.0.0.1:0", before=address)
        other.close()
        assert other.address != address


def test_a_configured_port_counts_whatever_was_before() -> None:
    free, configured = bind("127.0.0.1:0")
    free.close()
    found = listen(configured, before="127.0.0.1:1")
    found.close()
    assert found.address == configured
    taken, address = bind("127.0.0.1:0")
    with taken, pytest.raises(ConfigError, match=r"node\.listen: cannot listen on"):
        listen(address, before=configured)


def test_a_node_that_does_not_listen_has_no_address() -> None:
    none = listen("", before="127.0.0.1:1")
    assert (none.socket, none.address) == (None, "")
