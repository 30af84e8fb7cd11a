"""The line between a network's owner and its carrier, without processes."""

import socket

from sims.wan.control import (
    Owner,
    counters_from_json,
    links_from_json,
    links_to_json,
)
from sims.wan.link import LinkCounters, WanLink


def test_requests_come_in_pieces_and_several_at_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        owner = Owner(theirs, owner_pid=1)
        ours.sendall(b'{"a": ')
        assert owner.receive() == []
        ours.sendall(b'1}\n{"b": 2}\n{')
        assert owner.receive() == [{"a": 1}, {"b": 2}]
        ours.sendall(b"}\n")
        assert owner.receive() == [{}]
        ours.close()
        assert owner.receive() is None


def test_links_and_counters_come_back_as_they_were() -> None:
    links = {(0, 1): WanLink(rate_bps=1e6, delay_s=0.1, jitter_s=0.01, loss=0.5, up=False)}
    assert links_from_json(links_to_json(links)) == links
    assert counters_from_json([[2, 1, {"packets": 3}]]) == {(2, 1): LinkCounters(packets=3)}
