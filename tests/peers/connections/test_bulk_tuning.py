"""Connections over long lines are tried out before there is anything to send."""

import asyncio
import socket
from pathlib import Path

import pytest

from peers.connections import bulk, bulk_tuning
from peers.connections.mesh import Mesh
from peers.sockets import tcp_info
from peers.sockets.rate_limit import RateLimit
from peers.sockets.tcp_info import Flow
from protocols.types.ids import PeerId
from tests.peers.mesh_node import ALPHA, BETA, PAYLOAD, Node, certified, pair, still_works

GAMMA = PeerId("gamma.00000004")
SIZE = 1 << 20


@pytest.fixture(autouse=True)
def every_line_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """And bbr goes on doubling its rate on each, and would remember it."""

    def said(connection: socket.socket) -> bool:
        return True

    monkeypatch.setattr(bulk_tuning, "LOOK_S", 0.01)
    monkeypatch.setattr(bulk_tuning, "RTT_MIN_S", 0.0)
    monkeypatch.setattr(tcp_info, "LOSS_KEEPS", (b"",))
    monkeypatch.setattr(bulk, "is_starting", said)


def looks(of: Mesh) -> int:
    """What it would say now; nobody needs another connection here."""
    return len(bulk_tuning.look(of.sessions.values(), of._owner.padding_bytes))


@pytest.mark.asyncio
async def test_each_side_warms_what_it_sends_on_once(tmp_path: Path) -> None:
    async with pair(tls=certified(tmp_path, ALPHA, BETA)) as (alpha, beta):
        alpha.padding = beta.padding = SIZE
        await alpha.until(lambda: alpha.padded_bytes[BETA] >= SIZE)
        await beta.until(lambda: beta.padded_bytes[ALPHA] >= SIZE)
        for _ in range(3):
            assert looks(alpha.mesh) == 0
        assert (alpha.padded_bytes, beta.padded_bytes) == ({BETA: SIZE}, {ALPHA: SIZE})
        await still_works(alpha, beta)


async def warms(alpha: Node, beta: Node) -> bool:
    """Is anything tried out, if it is worth a lot?"""
    alpha.padding = SIZE
    for _ in range(3):
        assert looks(alpha.mesh) == 0
    alpha.padding = 0
    await still_works(alpha, beta)
    return bool(alpha.padded_bytes)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (bulk_tuning, "RTT_MIN_S", 10.0),
        (tcp_info, "LOSS_KEEPS", (b"none",)),
        (bulk_tuning, "PADDING_BYTES_MIN", SIZE + 1),
        (bulk_tuning, "IDLE_S", 0.0),  # Nobody is that idle.
    ],
)
async def test_what_is_short_or_forgets_or_is_in_use_is_left_alone(
    place: object, name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair() as (alpha, beta):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            assert not await warms(alpha, beta)
        assert await warms(alpha, beta)


@pytest.mark.asyncio
async def test_what_goes_through_a_relay_is_left_alone() -> None:
    async with pair() as (alpha, beta):
        control = alpha.mesh.sessions[BETA].control
        control.through = GAMMA
        assert not await warms(alpha, beta)
        control.through = PeerId("")
        assert await warms(alpha, beta)


@pytest.mark.asyncio
async def test_payload_comes_whole_before_and_after_padding() -> None:
    async with pair() as (alpha, beta):
        alpha.padding = SIZE
        alpha.stream(BETA, PAYLOAD)
        await beta.until_seen(PAYLOAD)
        await alpha.until(lambda: alpha.padded_bytes[BETA] >= SIZE)
        alpha.stream(BETA, PAYLOAD[4:])
        await beta.until_seen(PAYLOAD[4:])


@pytest.mark.asyncio
async def test_who_is_to_be_slower_is_while_it_is_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_tuning, "SAMPLE_S", 0.01)
    asked = asyncio.Event()

    def half(self: RateLimit, flow: Flow, now: float) -> int:
        """As fast as it likes at first."""
        if flow.pace == 4_000_000:
            asked.set()
        return (flow.pace or 8_000_000) // 2

    monkeypatch.setattr(RateLimit, "sample", half)
    async with pair():
        await asyncio.wait_for(asked.wait(), 10.0)
