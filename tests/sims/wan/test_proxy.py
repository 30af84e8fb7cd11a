"""Sizes and ports of the relay; its streams are tested with real ones in tests/cluster."""

import random
from pathlib import Path

from sims.wan.link import Link
from sims.wan.proxy import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Way, chunk_bytes, free_ports


def test_a_stream_takes_the_line_for_a_moment_at_a_time() -> None:
    assert chunk_bytes(Link(rate_bps=1e5)) == CHUNK_BYTES_MIN
    assert chunk_bytes(Link(rate_bps=1e8)) == 25_000
    assert chunk_bytes(Link()) == chunk_bytes(Link(rate_bps=1e12)) == CHUNK_BYTES_MAX


def test_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20


def test_no_outgoing_connection_can_take_a_chosen_port() -> None:
    path = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(path.read_text().split()[0]) if path.exists() else 32768
    assert all(port < first for port in free_ports(20))


def test_a_way_follows_its_link() -> None:
    way = Way(Link(up=False), random.Random(1))
    way.change(Link(delay_s=0.1))
    assert way.link == way.lane.link == Link(delay_s=0.1)
