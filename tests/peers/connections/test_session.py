"""The connections with one peer: more for bulk where they are wanted, and never too many."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from peers.connections import bulk_tuning
from peers.connections.acceptor import MAGIC
from peers.connections.encryption import Keys
from peers.sockets import tcp_info
from peers.sockets.tcp_info import CONNECTIONS_MAX, Flow
from protocols.messages.peer import BulkKeys, ReadLog, Refused, WantBulk
from protocols.types.ids import PeerId
from tests.peers.mesh_node import (
    ALPHA,
    BETA,
    PAYLOAD,
    Down,
    Stranger,
    Up,
    bulks_of,
    certified,
    frame,
    hello,
    nodes,
    pair,
    still_works,
)


@pytest.mark.asyncio
@pytest.mark.parametrize("asks", [ALPHA, BETA])
async def test_either_side_has_more_bulk_connections_opened(
    asks: PeerId, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The one that dialled asks, the other one gives keys; chunks go by all of them."""
    monkeypatch.setattr(bulk_tuning, "LOOK_S", 0.01)
    async with pair(tls=certified(tmp_path, ALPHA, BETA)) as (alpha, beta):
        node, other = (alpha, BETA) if asks == ALPHA else (beta, ALPHA)
        mine = node.mesh.sessions[other].bulks

        def wants_more(flows: Sequence[Flow]) -> bool:
            """This side alone."""
            return len(flows) == len(mine) < CONNECTIONS_MAX

        monkeypatch.setattr(bulk_tuning, "wants_more", wants_more)
        await alpha.until_bulks(BETA, CONNECTIONS_MAX)
        await beta.until_bulks(ALPHA, CONNECTIONS_MAX)
        payload = PAYLOAD * 16
        node.stream(other, payload)
        await (beta if asks == ALPHA else alpha).until_seen(payload)
        assert all(bulk.sent_bytes > 1 << 20 for bulk in bulks_of(node, other))
        await still_works(alpha, beta)


@pytest.mark.asyncio
@pytest.mark.parametrize("far", [False, True])
async def test_who_is_far_is_known_with_the_connection(
    far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_info, "RTT_MIN_S", 0.0 if far else 10.0)
    async with pair() as (alpha, beta):
        assert alpha.mesh.sessions[BETA].far is beta.mesh.sessions[ALPHA].far is far


@pytest.mark.asyncio
async def test_the_number_of_bulk_connections_is_limited() -> None:
    async with nodes(ALPHA) as (alpha,):
        control, bulks = Stranger(alpha.address), [Stranger(alpha.address)]
        await control.send(hello(BETA))
        _, keys = await control.answers()
        await bulks[0].send(MAGIC + Keys.of(keys.secret).ticket)
        await alpha.until_seen(Up(BETA))
        for _ in range(CONNECTIONS_MAX - 1):
            await control.send(frame(WantBulk()) * 3)
            given = [await control.next() for _ in range(3)]
            assert len(set(given)) == 1, "one at a time"
            (keys,) = set(given)
            assert isinstance(keys, BulkKeys)
            bulks.append(Stranger(alpha.address))
            await bulks[-1].send(MAGIC + Keys.of(keys.secret).ticket)
            await alpha.until_bulks(BETA, len(bulks))
        await control.send(frame(WantBulk()) * 3, frame(ReadLog(1)))
        await alpha.until_seen((BETA, ReadLog(1)))
        assert not alpha.mesh._bulk_connections.tickets
        assert len(bulks_of(alpha, BETA)) == CONNECTIONS_MAX
        bulks[3].raw.close()
        await alpha.until_seen(Down(BETA, "end of stream"))
        for stranger in (control, *bulks):
            stranger.raw.close()


@pytest.mark.asyncio
async def test_who_was_dialled_gives_no_secrets_to_who_was_not_asked() -> None:
    """Keys come from the side that accepted: it knows its own port."""
    async with pair() as (alpha, beta):
        beta.mesh.sessions[ALPHA].control.send(BulkKeys(bytes(32)))
        await alpha.until(lambda: Down in map(type, alpha.seen))
        assert isinstance(alpha.seen[0], Down)
        assert "the accepting side gives keys" in alpha.seen[0].why
        await beta.until(lambda: Up(ALPHA) in beta.seen)


@pytest.mark.asyncio
async def test_another_bulk_connection_that_cannot_be_had_harms_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pair() as (alpha, beta):

        async def fails(*_: object) -> None:
            raise OSError("no way")

        monkeypatch.setattr(beta.mesh._dialer, "_open_bulk", fails)
        alpha.mesh.sessions[BETA].control.send(BulkKeys(bytes(32)))
        await still_works(alpha, beta)
        await beta.until_bulks(ALPHA, 1)
        await still_works(alpha, beta)


@pytest.mark.asyncio
async def test_keys_that_were_used_and_come_again_are_not_used_again() -> None:
    """Whoever gave them says the same until the connection has arrived."""
    async with pair() as (alpha, beta):
        secret = alpha.mesh._bulk_connections.tickets.give(alpha.mesh.sessions[BETA].control)
        for _ in range(2):
            alpha.mesh.sessions[BETA].control.send(BulkKeys(secret))
            await beta.until_bulks(ALPHA, 2)
        await alpha.until_bulks(BETA, 2)
        alpha.mesh.sessions[BETA].control.send(BulkKeys(secret))
        await still_works(alpha, beta)
        await still_works(alpha, beta)
        assert len(bulks_of(beta, ALPHA)) == 2


@pytest.mark.asyncio
async def test_nobody_speaks_with_whose_certificate_was_revoked_whoever_dials(
    tmp_path: Path,
) -> None:
    async with nodes(ALPHA, BETA, tls=certified(tmp_path, ALPHA, BETA)) as (alpha, beta):
        alpha.revoked = {BETA}
        beta.mesh.connect(alpha.address, peer=ALPHA)
        await beta.until(lambda: beta.seen)
        assert beta.seen[0] == (ALPHA, Refused("revoked", revoked=True)), "it hears why"
        beta.mesh.disconnect(ALPHA, "it is of no use")
        alpha.mesh.connect(beta.address, peer=BETA)
        with pytest.raises(TimeoutError):
            await alpha.until(lambda: alpha.mesh.sessions or beta.mesh.sessions, within_s=0.5)
        alpha.revoked = set()
        await alpha.until_seen(Up(BETA))


@pytest.mark.asyncio
async def test_a_peer_that_closes_a_connection_says_that_it_lives() -> None:
    async with pair() as (alpha, beta):
        alpha.mesh.drop_session(BETA, "silent for 3.0 s")
        await beta.until_seen(Down(ALPHA, "it disconnects: silent for 3.0 s"))
        assert beta.living == [ALPHA]
        assert alpha.living == []


@pytest.mark.asyncio
async def test_a_process_that_ends_does_not_say_so() -> None:
    async with pair() as (alpha, beta):
        await alpha.mesh.close()
        await beta.until_seen(Down(ALPHA, "end of stream"))
        assert beta.living == []
