"""Two that nobody can dial, and others that join them: who speaks with whom, and who may."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from peers.connections.acceptor import TUNNEL
from peers.connections.session import Tls
from peers.tunnels import relay
from peers.tunnels.client import TunnelError
from peers.tunnels.splice import BytePump
from protocols.messages.peer import WantBulk
from protocols.types.ids import PeerId
from protocols.types.limits import TICKET_BYTES
from tests.peers.mesh_node import (
    ALPHA,
    BETA,
    EVE,
    PAYLOAD,
    Down,
    Node,
    Stranger,
    Up,
    bulk_of,
    certified,
    nodes,
    still_works,
)

DELTA = PeerId("delta.00000004")
SECRET = b"nobody else reads this. " * 40_000


@asynccontextmanager
async def hidden_pair(
    *relays: PeerId, tls: Mapping[PeerId, Tls] | None = None
) -> AsyncGenerator[list[Node]]:
    """Alpha and beta, which nobody can dial and which have dialled all relays; then those."""
    async with nodes(ALPHA, BETA, *relays, tls=tls, hidden=(ALPHA, BETA)) as made:
        for node in made[:2]:
            for relay in made[2:]:
                node.mesh.connect(relay.address, peer=relay.peer)
                await node.until_seen(Up(relay.peer))
                await relay.until_seen(Up(node.peer))
        yield made


async def joined(alpha: Node, beta: Node, *relays: PeerId) -> None:
    alpha.mesh.connect("", peer=BETA, via=relays)
    await alpha.until_seen(Up(BETA))
    await beta.until_seen(Up(ALPHA))


def splices(relay: Node) -> list[BytePump]:
    found = [joint.splice for joint in relay.mesh._tunnel_service._tunnel_relay._joints]
    return [splice for splice in found if splice is not None]


@pytest.mark.asyncio
@pytest.mark.parametrize("encrypted", [True, False])
async def test_two_that_nobody_can_dial_speak_through_a_third(
    tmp_path: Path, encrypted: bool
) -> None:
    tls = certified(tmp_path, ALPHA, BETA, EVE) if encrypted else None
    async with hidden_pair(EVE, tls=tls) as (alpha, beta, eve):
        await joined(alpha, beta, EVE)
        await still_works(alpha, beta)
        assert eve.seen == [], "it carries, and hears nothing"
        assert eve.relayed_bytes[BETA, ALPHA] > len(PAYLOAD)
        assert eve.relayed_bytes[ALPHA, BETA] > 0
        assert len(eve.mesh._tunnel_service) == 2, "one for control, one for bulk"


@pytest.mark.asyncio
@pytest.mark.parametrize("encrypted", [True, False])
async def test_who_carries_cannot_read(tmp_path: Path, encrypted: bool) -> None:
    """In the clear it could, which shows that we would see it."""
    tls = certified(tmp_path, ALPHA, BETA, EVE) if encrypted else None
    async with hidden_pair(EVE, tls=tls) as (alpha, beta, eve):
        await joined(alpha, beta, EVE)
        if encrypted:
            assert alpha.mesh.sessions[BETA].control.certified == BETA
            assert beta.mesh.sessions[ALPHA].control.certified == ALPHA
        beta.stream(ALPHA, SECRET)
        await alpha.until_seen(SECRET)
        seen = b"".join(bytes(way._buffer) for each in splices(eve) for way in each._ways)
        assert (b"nobody else" in seen) != encrypted


@pytest.mark.asyncio
async def test_what_who_carries_changes_does_not_open(tmp_path: Path) -> None:
    async with hidden_pair(EVE, tls=certified(tmp_path, ALPHA, BETA, EVE)) as (alpha, beta, eve):
        await joined(alpha, beta, EVE)
        for way in (way for each in splices(eve) for way in each._ways):
            way._send = lambda way=way, send=way._send: _flipped(way._left) or send()
        beta.stream(ALPHA)
        await alpha.until(lambda: any(isinstance(seen, Down) for seen in alpha.seen))
        assert PAYLOAD not in alpha.seen


def _flipped(left: memoryview) -> None:
    left[-1] ^= 1


@pytest.mark.asyncio
async def test_more_connections_for_bulk_go_the_same_way() -> None:
    async with hidden_pair(EVE) as (alpha, beta, eve):
        await joined(alpha, beta, EVE)
        alpha.mesh.sessions[BETA].control.send(WantBulk())
        await alpha.until_bulks(BETA, 2)
        await beta.until_bulks(ALPHA, 2)
        assert len(eve.mesh._tunnel_service) == 3
        alpha.stream(BETA)
        await beta.until_seen(PAYLOAD)


@pytest.mark.asyncio
async def test_when_who_joins_them_dies_another_one_does() -> None:
    async with hidden_pair(EVE, DELTA) as (alpha, beta, eve, delta):
        await joined(alpha, beta, EVE, DELTA)
        assert alpha.mesh.sessions[BETA].control.through == EVE
        await eve.mesh.close()
        await alpha.until(lambda: Up(BETA) in alpha.seen)
        await beta.until(lambda: Up(ALPHA) in beta.seen)
        assert {seen.peer for seen in alpha.seen if isinstance(seen, Down)} == {EVE, BETA}
        assert alpha.mesh.sessions[BETA].control.through == DELTA
        for node in (alpha, beta):
            node.seen.clear()
        await still_works(alpha, beta)
        assert delta.relayed_bytes[BETA, ALPHA] > len(PAYLOAD)


@pytest.mark.asyncio
async def test_the_loss_of_one_end_ends_what_goes_through() -> None:
    async with hidden_pair(EVE) as (alpha, beta, eve):
        await joined(alpha, beta, EVE)
        await beta.mesh.close()
        await alpha.until_seen(Down(BETA, "end of stream"))
        await eve.until(lambda: not splices(eve))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("members", "why"), [({ALPHA}, "is not connected"), ({BETA}, "only members"), ((), "only")]
)
async def test_only_members_get_a_tunnel_and_to_members_only(
    members: set[PeerId], why: str
) -> None:
    async with hidden_pair(EVE) as (alpha, beta, eve):
        eve.members = set(members)
        with pytest.raises(TunnelError, match=why):
            await alpha.mesh._tunnel_service.open_tunnel(BETA, EVE)
        assert not eve.mesh._tunnel_service
        assert beta.seen == []


@pytest.mark.asyncio
async def test_tunnels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hidden_pair(EVE, DELTA) as (alpha, beta, *_):
        await joined(alpha, beta, EVE)
        monkeypatch.setattr(relay, "TUNNELS_PER_PEER_MAX", 2)
        with pytest.raises(TunnelError, match="has 2 tunnels already"):
            await alpha.mesh._tunnel_service.open_tunnel(BETA, EVE)
        monkeypatch.setattr(relay, "TUNNELS_MAX", 2)
        with pytest.raises(TunnelError, match="there are 2 tunnels already"):
            await beta.mesh._tunnel_service.open_tunnel(ALPHA, EVE)
        with pytest.raises(TunnelError, match="is not connected"):
            await alpha.mesh._tunnel_service.open_tunnel(BETA, PeerId("nobody.1"))
        await still_works(alpha, beta)


@pytest.mark.asyncio
async def test_an_end_that_never_comes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "WAIT_S", 0.2)
    async with hidden_pair(EVE) as (alpha, beta, eve):
        await beta.mesh._tunnel_service.close()  # It takes no such word any more.
        one = await alpha.mesh._tunnel_service.open_tunnel(BETA, EVE)
        await eve.until(lambda: len(eve.mesh._tunnel_service) == 1)
        with one:
            await alpha.until_closed(one)
        assert not eve.mesh._tunnel_service


@pytest.mark.asyncio
async def test_a_ticket_that_nobody_gave_joins_nothing() -> None:
    async with hidden_pair(EVE) as (alpha, beta, eve):
        await joined(alpha, beta, EVE)
        stranger = Stranger(eve.address)
        await stranger.send(TUNNEL + bytes(TICKET_BYTES))
        assert await stranger.messages() == []
        await still_works(alpha, beta)
        assert bulk_of(alpha, BETA).is_open
