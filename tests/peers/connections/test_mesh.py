"""Two meshes and strangers on real sockets: who is connected, in what order, with which bytes."""

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from peers.connections import acceptor, session
from peers.connections.acceptor import MAGIC, STRANGERS_MAX
from peers.connections.control import STAGE_BYTES
from peers.connections.encryption import TAG_BYTES, Keys, Seal, SealedReader, SealedWriter
from peers.connections.frames import PREFIX
from peers.sockets.listener import bind
from protocols.messages.peer import BulkKeys, Disconnecting, Leave, ReadLog, Refused, WantBulk
from protocols.types.errors import ConfigError
from protocols.types.ids import PeerId
from protocols.types.limits import TICKET_BYTES
from protocols.wire.validators import WireError
from tests.peers.bulk_room import read_no_more
from tests.peers.mesh_node import (
    ALPHA,
    BETA,
    EVE,
    PAYLOAD,
    STATE,
    Down,
    Node,
    Stranger,
    Up,
    bulk_of,
    bulks_of,
    certified,
    cut,
    frame,
    hello,
    nodes,
    pair,
    still_works,
)

# Healthy ----------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_messages_and_chunks_go_both_ways_exactly_and_in_order() -> None:
    beats = [ReadLog(index) for index in range(100)]
    other = PAYLOAD[::-1]
    async with pair() as (alpha, beta):
        for node, to in ((alpha, BETA), (beta, ALPHA)):
            assert all(node.mesh.send(to, beat) for beat in beats)
        await alpha.until_seen(*((BETA, beat) for beat in beats))
        await beta.until_seen(*((ALPHA, beat) for beat in beats))
        alpha.stream(BETA)
        alpha.stream(BETA, other)
        beta.stream(ALPHA, other)
        await beta.until_seen(PAYLOAD, other)
        await alpha.until_seen(other)
        sent, received = alpha.mesh.bytes_moved()
        assert (received, sent) == beta.mesh.bytes_moved()
        assert sent > 2 * len(PAYLOAD)


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["localhost", "[::1]"])
async def test_names_and_ipv6_addresses_work(host: str) -> None:
    async with pair(listen=f"{host}:0") as (alpha, beta):
        assert alpha.address.rpartition(":")[0] in ("127.0.0.1", "[::1]")
        await still_works(alpha, beta)
    async with nodes(ALPHA, BETA, listen=f"{host}:0") as (alpha, beta):
        beta.mesh.connect(f"{host}:{alpha.address.rpartition(':')[2]}", peer=ALPHA)
        await beta.until_seen(Up(ALPHA))


@pytest.mark.asyncio
async def test_an_address_of_one_link_is_dialled_with_its_interface(tmp_path: Path) -> None:
    """For bulk too."""
    host = address_of_one_link()
    async with pair(tls=certified(tmp_path, ALPHA, BETA), listen=f"[{host}]:0") as (alpha, beta):
        await still_works(alpha, beta)


def address_of_one_link() -> str:
    table = Path("/proc/net/if_inet6")
    lines = table.read_text().splitlines() if table.exists() else []
    found = [line.split() for line in lines if line.split()[3] == SCOPE_LINK]
    if not found:
        pytest.skip("no interface here has an address of its link")
    words, *_, interface = found[0]
    return f"{socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words))}%{interface}"


@pytest.mark.asyncio
async def test_control_goes_by_mutual_tls_and_bulk_is_sealed(tmp_path: Path) -> None:
    async with pair(tls=certified(tmp_path, ALPHA, BETA)) as (alpha, beta):
        for session in (alpha.mesh.sessions[BETA], beta.mesh.sessions[ALPHA]):
            assert session.control._transport is not None
            assert session.control._transport.get_extra_info("cipher")[1] == "TLSv1.3"
            (bulk,) = session.bulks
            assert isinstance(bulk.outgoing.writer, SealedWriter)
            assert isinstance(bulk._reader, SealedReader)
        await still_works(alpha, beta)
        alpha.mesh.drop_session(BETA, "cut")
        await beta.until(lambda: Up(ALPHA) in beta.seen)


@pytest.mark.asyncio
async def test_each_direction_of_each_bulk_connection_has_its_own_key(tmp_path: Path) -> None:
    """All count their records from 0: a shared key would seal two of them with one nonce."""
    async with pair(tls=certified(tmp_path, ALPHA, BETA)) as (alpha, beta):
        beta.mesh.sessions[ALPHA].control.send(WantBulk())
        await alpha.until_bulks(BETA, 2)
        await beta.until_bulks(ALPHA, 2)
        alphas, betas = seals_of(alpha, BETA), seals_of(beta, ALPHA)
        for mine, theirs in ((alphas, betas), (betas, alphas)):
            for seal, _ in mine:
                assert not any(opens(seal, incoming) for _, incoming in mine)
                assert [opens(seal, incoming) for _, incoming in theirs].count(True) == 1
        outgoing = [seal for seal, _ in alphas + betas]
        assert all(opens(one, two) == (one is two) for one in outgoing for two in outgoing)


def seals_of(node: Node, peer: PeerId) -> list[tuple[Seal, Seal]]:
    """Of each bulk connection the outgoing one and the incoming one."""
    found: list[tuple[Seal, Seal]] = []
    for bulk in bulks_of(node, peer):
        assert isinstance(bulk.outgoing.writer, SealedWriter)
        assert isinstance(bulk._reader, SealedReader)
        found.append((bulk.outgoing.writer._seal, bulk._reader._seal))
    return found


def opens(sealing: Seal, opening: Seal) -> bool:
    """Does what the one seals first open with the other? On copies: both go on as they are."""
    sealed, beside = memoryview(bytearray(4 + TAG_BYTES)), memoryview(b"beside")
    Seal(sealing._secret).seal(b"data", beside, sealed)
    try:
        Seal(opening._secret).decrypt(sealed, beside, memoryview(bytearray(4)))
    except WireError:
        return False
    return True


@pytest.mark.asyncio
async def test_who_dials_in_the_clear_is_shut_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(acceptor, "HELLO_TIMEOUT_S", 0.5)
    async with pair(tls=certified(tmp_path, ALPHA, BETA)) as (alpha, beta):
        for noise in (b"", hello(EVE), b"\x16\x03\x01" + b"\xff" * 999):
            stranger = Stranger(alpha.address)
            await stranger.send(noise)
            async with asyncio.timeout(5):
                while await asyncio.get_running_loop().sock_recv(stranger.raw, 1 << 16):
                    pass
            stranger.raw.close()
        await still_works(alpha, beta)


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("no-such-host.invalid:0", "cannot listen"),
        ("a..b:0", "cannot listen"),
        ("203.0.113.1:0", "cannot listen"),
        ("nonsense", "not HOST:PORT"),
    ],
)
def test_an_address_that_cannot_be_had_is_one_line(address: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as error:
        bind(address)
    assert "\n" not in str(error.value)


def test_a_port_in_use_is_one_line() -> None:
    taken, address = bind("127.0.0.1:0")
    with taken, pytest.raises(ConfigError, match=r"in use.*choose another port") as error:
        bind(address)
    assert "\n" not in str(error.value)
    assert address in str(error.value)


# Strangers --------------------------------------------------------------------------------------

SCOPE_LINK = "20"
"""In /proc/net/if_inet6."""
GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: alpha\r\n\r\n",
    "huge lengths": b"\xff" * 100_000,
    "a long frame": PREFIX.pack(1 << 20, 0) + bytes(1 << 20),
    "a chunk without hello": frame(replace(STATE, elements=2), b"12345678") * 10,
    "another message first": frame(Leave("bye")),
    "keys": frame(BulkKeys(bytes(32))),
    "a ticket that nobody gave": MAGIC + bytes(TICKET_BYTES),
    "a ticket that nobody gave, and a chunk": MAGIC
    + bytes(TICKET_BYTES)
    + frame(replace(STATE, elements=2), b"12345678"),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", GARBAGE)
async def test_garbage_is_cut_off_at_once_and_disturbs_nobody(kind: str) -> None:
    async with pair() as (alpha, beta):
        stranger = Stranger(alpha.address)
        await stranger.send(GARBAGE[kind])
        assert await stranger.messages(within_s=2) == []
        await alpha.until(lambda: not alpha.strangers)
        await still_works(alpha, beta)


@pytest.mark.asyncio
@pytest.mark.parametrize("says", ["nothing", "a piece of a hello", "only its control hello"])
async def test_who_does_not_come_to_the_point_is_cut_off_in_time(
    says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = hello(EVE)
    said = {"nothing": b"", "a piece of a hello": whole[:-1], "only its control hello": whole}
    async with pair() as (alpha, beta):
        monkeypatch.setattr(acceptor, "HELLO_TIMEOUT_S", 0.1)
        stranger = Stranger(alpha.address)
        await stranger.send(said[says])
        answers = await stranger.messages(within_s=2)
        assert answers[:1] == ([alpha.hello()] if says == "only its control hello" else [])
        assert all(isinstance(answer, BulkKeys) for answer in answers[1:])
        assert not alpha.mesh._half_open
        await still_works(alpha, beta)


@pytest.mark.asyncio
async def test_a_half_made_session_is_held_back_and_delivers_nothing() -> None:
    async with pair() as (alpha, beta):
        stranger = Stranger(alpha.address)
        await stranger.send(hello(EVE))
        assert (await stranger.answers())[0] == alpha.hello()
        flood = asyncio.create_task(stranger.send(frame(Leave("x" * 1000)) * 40_000))
        await still_works(alpha, beta)
        await still_works(alpha, beta)
        assert not flood.done(), "its bytes wait in the kernel, not with us"
        (read,) = (link.received_bytes for link in alpha.mesh._open.links if link.peer == EVE)
        assert read <= STAGE_BYTES
        flood.cancel()
        await asyncio.wait({flood})
        stranger.raw.close()


@pytest.mark.asyncio
async def test_many_strangers_make_room_for_each_other_and_for_a_peer() -> None:
    async with pair() as (alpha, beta):
        strangers = [Stranger(alpha.address) for _ in range(3 * STRANGERS_MAX)]
        # The first ones are closed, so all have been accepted when the last of those is.
        assert await strangers[2 * STRANGERS_MAX - 1].messages(within_s=3) == []
        assert alpha.strangers <= STRANGERS_MAX
        await still_works(alpha, beta)
        alpha.mesh.drop_session(BETA, "cut")
        await beta.until(lambda: Up(ALPHA) in beta.seen)
        for stranger in strangers:
            stranger.raw.close()


@pytest.mark.asyncio
async def test_the_number_of_sessions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SESSIONS_MAX", 1)
    async with pair() as (alpha, beta):
        stranger = Stranger(alpha.address)
        await stranger.send(hello(EVE))
        (refused,) = await stranger.messages()
        assert isinstance(refused, Refused)
        await still_works(alpha, beta)
        alpha.mesh.drop_session(BETA, "cut")  # A known peer may come again.
        await beta.until(lambda: Up(ALPHA) in beta.seen)


# Breaks -----------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("which", ["control", "bulk"])
@pytest.mark.parametrize("by", [ALPHA, BETA])
async def test_when_either_connection_breaks_both_are_made_anew(which: str, by: PeerId) -> None:
    async with pair() as (alpha, beta):
        node, other = (alpha, BETA) if by == ALPHA else (beta, ALPHA)
        session = node.mesh.sessions[other]
        cut(session.control if which == "control" else next(iter(session.bulks)))
        for one, peer in ((alpha, BETA), (beta, ALPHA)):
            await one.until(lambda one=one, peer=peer: Up(peer) in one.seen)
            down, up = one.seen
            assert isinstance(down, Down)
            assert up == Up(peer)
            one.seen.clear()
        await still_works(alpha, beta)


@pytest.mark.asyncio
async def test_nothing_half_received_is_delivered_after_a_cut() -> None:
    async with pair() as (alpha, beta):
        long = bytes(64 << 20)
        alpha.stream(BETA, long)
        assert alpha.mesh.send(BETA, ReadLog(1))
        await beta.until_seen((ALPHA, ReadLog(1)))
        cut(bulk_of(alpha, BETA))
        await beta.until(lambda: Up(ALPHA) in beta.seen)
        assert [type(one) for one in beta.seen] == [Down, Up]
        beta.seen.clear()
        await alpha.until(lambda: Up(BETA) in alpha.seen)
        alpha.stream(BETA)
        await beta.until_seen(PAYLOAD)


@pytest.mark.asyncio
async def test_both_may_close_at_once() -> None:
    async with pair() as (alpha, beta):
        beta.mesh.disconnect(ALPHA, "done")
        alpha.mesh.disconnect(BETA, "done")
        await beta.until_seen(Down(ALPHA, "done"))
        await alpha.until_seen(Down(BETA, "done"))
    async with pair() as (alpha, beta):
        await asyncio.gather(alpha.mesh.close(), beta.mesh.close(), alpha.mesh.close())
        assert alpha.seen == []
        assert beta.seen == []


@pytest.mark.asyncio
async def test_a_peer_that_connects_again_replaces_its_old_connections() -> None:
    """Its side noticed a break that ours did not; or it is a new life."""
    async with nodes(ALPHA) as (alpha,):
        live: list[Stranger] = []
        for incarnation in (1, 1, 2):
            old, live = live, [Stranger(alpha.address), Stranger(alpha.address)]
            control, bulk = live
            await control.send(hello(BETA, incarnation=incarnation), frame(ReadLog(incarnation)))
            answer, keys = await control.answers()
            assert answer == alpha.hello()
            assert alpha.seen == [], "a hello alone moves nothing"
            await bulk.send(MAGIC + Keys.of(keys.secret).ticket)
            gone = [Down(BETA, "it connected again")] if old else []
            await alpha.until_seen(*gone, Up(BETA), (BETA, ReadLog(incarnation)))
            said = [Disconnecting("it connected again")]
            for stranger, expected in zip(old, (said, []), strict=False):
                assert await stranger.messages() == expected
        for stranger in live:
            stranger.raw.close()


@pytest.mark.asyncio
async def test_a_slow_peer_is_told_by_a_full_outbox_and_can_be_dropped() -> None:
    async with pair() as (alpha, beta):
        beta.mesh.sessions[ALPHA].control.pause()
        fits = [alpha.mesh.send(BETA, Leave("x" * 1000)) for _ in range(20_000)]
        assert not all(fits)
        first = fits.index(False)
        assert not any(fits[first:])
        alpha.stream(BETA)
        await beta.until_seen(PAYLOAD)  # The other connection is not held up by this one.
        alpha.mesh.drop_session(BETA, "too slow")
        await alpha.until_seen(Down(BETA, "too slow"), Up(BETA))
        beta.seen.clear()
        await still_works(alpha, beta)


@pytest.mark.asyncio
async def test_a_peer_that_reads_no_bulk_holds_back_what_is_made_for_it() -> None:
    async with pair() as (alpha, beta):
        read_no_more(bulk_of(beta, ALPHA))
        long = bytes(24 << 20)
        alpha.stream(BETA, long)
        waits = 25
        while alpha.waiting(BETA) < waits:  # Until the kernels are full.
            waits = alpha.waiting(BETA)
            await still_control(alpha, beta)
        assert waits >= 10, "24 pieces, of which only what the kernels take is fetched"
        alpha.mesh.wake(BETA)
        assert alpha.waiting(BETA) == waits, "it asked for no more"
        bulk_of(beta, ALPHA).start()
        await beta.until_seen(long)
        assert alpha.waiting(BETA) == 0


@pytest.mark.asyncio
async def test_what_waited_before_the_connection_is_fetched_when_it_is_there() -> None:
    async with nodes(ALPHA, BETA) as (alpha, beta):
        alpha.stream(BETA)
        assert alpha.waiting(BETA) == 3
        beta.mesh.connect(alpha.address, peer="")
        await beta.until_seen(Up(ALPHA), PAYLOAD)


async def still_control(alpha: Node, beta: Node) -> None:
    assert alpha.mesh.send(BETA, ReadLog(5))
    await beta.until_seen((ALPHA, ReadLog(5)))


@pytest.mark.asyncio
async def test_what_is_sent_to_nobody_is_dropped() -> None:
    async with nodes(ALPHA) as (alpha,):
        assert alpha.mesh.send(BETA, ReadLog(1))
        alpha.mesh.wake(BETA)
        alpha.mesh.drop_session(BETA, "nobody")
        alpha.mesh.disconnect(BETA, "nobody")
        assert alpha.seen == []
