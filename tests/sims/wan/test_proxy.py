"""Sizes and ports of the relay; its streams are tested with real ones in tests/cluster."""

import asyncio
import json
import os
import random
import socket
import time
from pathlib import Path

import pytest

from sims.wan.control import OWNER_LOOK_S, Owner, links_to_json
from sims.wan.link import WanLink
from sims.wan.proxy import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Way, chunk_bytes, free_ports, serve


def test_a_stream_takes_the_line_for_a_moment_at_a_time() -> None:
    assert chunk_bytes(WanLink(rate_bps=1e5)) == CHUNK_BYTES_MIN
    assert chunk_bytes(WanLink(rate_bps=1e8)) == 25_000
    assert chunk_bytes(WanLink()) == chunk_bytes(WanLink(rate_bps=1e12)) == CHUNK_BYTES_MAX


def test_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20


def test_no_outgoing_connection_can_take_a_chosen_port() -> None:
    path = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(path.read_text().split()[0]) if path.exists() else 32768
    assert all(port < first for port in free_ports(20))


def test_a_way_follows_its_link() -> None:
    way = Way(WanLink(up=False), random.Random(1))
    way.change(WanLink(delay_s=0.1))
    assert way.link == way.lane.link == WanLink(delay_s=0.1)


@pytest.mark.asyncio
async def test_a_request_is_answered_that_comes_as_a_busy_process_looks_for_its_owner() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        send_json(ours, {"peers": 2, "links": links_to_json({}), "seed": 1, "token": "t"})
        serving = asyncio.create_task(serve(Owner(theirs, owner_pid=os.getppid())))
        async with asyncio.timeout(10):
            loop = asyncio.get_running_loop()
            assert "listen" in json.loads(await loop.sock_recv(ours, 1 << 16))

            def be_busy() -> None:
                send_json(ours, {})
                until = time.monotonic() + 0.1
                while time.monotonic() < until:
                    pass  # The look at the owner is due now, and the request is there.

            loop.call_later(OWNER_LOOK_S - 0.05, be_busy)
            assert json.loads(await loop.sock_recv(ours, 1 << 16)) == {}
            ours.shutdown(socket.SHUT_RDWR)
            await serving


def send_json(to: socket.socket, request: dict[str, object]) -> None:
    to.sendall(json.dumps(request).encode() + b"\n")
