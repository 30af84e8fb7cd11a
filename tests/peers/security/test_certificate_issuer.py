"""The door of a run on real sockets: certificates, strangers, and those who ask to be let in."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from peers.connections import acceptor, session
from peers.connections.acceptor import MAGIC
from peers.connections.frames import PREFIX
from peers.security import certificate_client
from peers.security.certificate_client import ask
from peers.security.certificate_issuer import FORGED, CertificateIssuer
from peers.security.certificates import CA_KEY, Authority, OwnKey, contexts, unverified
from peers.sockets.address import parse_address
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages.peer import Admit, AuthorityKey, BulkKeys, Leave, NotAdmitted
from protocols.state.tokens import Token, encode_token
from protocols.types import limits
from protocols.types.errors import RefusedError
from protocols.types.ids import PROTOCOL_VERSION, PeerId
from protocols.types.limits import TICKET_BYTES
from protocols.wire import codec
from tests.peers.mesh_node import (
    ALPHA,
    BETA,
    EVE,
    Node,
    Up,
    a_name_of_three,
    certified,
    frame,
    hello,
    nodes,
    pair,
    still_works,
)

GAMMA = PeerId("gamma.00000004")


async def soon(condition: Callable[[], object]) -> None:
    """Of what nobody tells a node."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("not within 5 s")


@pytest.mark.asyncio
async def test_who_has_a_certificate_of_another_peer_is_not_that_peer(tmp_path: Path) -> None:
    tls = certified(tmp_path, ALPHA, BETA, EVE)
    async with pair(tls=tls) as (alpha, beta), nodes(GAMMA, tls={GAMMA: tls[EVE]}) as (eve,):
        for dials, to, peer in ((eve, alpha, ""), (beta, eve, GAMMA)):  # Nor when it is dialled.
            dials.mesh.connect(to.address, peer=peer)
            dial = dials.mesh._dialer._dials[to.address]
            await soon(lambda dial=dial: dial.tries > 1)  # Two did not work.
        assert Up(GAMMA) not in alpha.seen + beta.seen
        beta.mesh.disconnect(GAMMA, "enough")
        await still_works(alpha, beta)


@pytest.mark.asyncio
async def test_a_certificate_of_another_run_is_none(tmp_path: Path) -> None:
    tls = certified(tmp_path / "run", ALPHA, BETA)
    other = certified(tmp_path / "other", EVE)
    async with pair(tls=tls) as (alpha, beta), nodes(EVE, tls=other) as (eve,):
        eve.mesh.connect(alpha.address, peer="")
        beta.mesh.connect(eve.address, peer=EVE)
        for _ in range(20):
            await asyncio.sleep(0.02)
            assert eve.seen == []
        beta.mesh.disconnect(EVE, "enough")
        await still_works(alpha, beta)


# Without a certificate --------------------------------------------------------------------------


ADMIT = Admit(PROTOCOL_VERSION, "lc1-word", EVE, b"k" * 32, b"", b"")
NO_WORD_OF_HIS = {
    "a hello": hello(EVE),
    "a hello as somebody else": hello(BETA),
    "keys": frame(BulkKeys(bytes(32))),
    "a bulk connection's ticket": MAGIC + bytes(TICKET_BYTES),
    "a control message": frame(Leave("bye")),
    "the authority's key": frame(AuthorityKey(b"key")),
    "an answer": frame(NotAdmitted("no", final=True)),
    "too much": PREFIX.pack(limits.ADMIT_BYTES_MAX + 1, 0) + bytes(limits.ADMIT_BYTES_MAX + 1),
    "garbage": b"\xff" * 100,
    "payload": PREFIX.pack(8, 8) + bytes(16),
}


async def dial(node: Node) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = parse_address(node.address, key="address")
    return await asyncio.open_connection(host, port, ssl=unverified())


async def hung_up(reader: asyncio.StreamReader, *, within_s: float = 2) -> bytes:
    """All that came until then."""
    try:
        async with asyncio.timeout(within_s):
            return await reader.read(1 << 16)
    except ConnectionResetError:
        return b""


@pytest.mark.asyncio
@pytest.mark.parametrize("word", NO_WORD_OF_HIS)
async def test_without_a_certificate_nothing_is_heard_but_an_admit(
    word: str, tmp_path: Path
) -> None:
    async with pair(tls=certified(tmp_path, ALPHA, BETA)) as (alpha, beta):
        reader, writer = await dial(alpha)
        writer.write(NO_WORD_OF_HIS[word])
        assert await hung_up(reader) == b""
        writer.transport.abort()
        await soon(lambda: not alpha.strangers)
        await still_works(alpha, beta)


@pytest.mark.asyncio
async def test_an_admit_is_answered_once_and_a_second_one_ends_it(tmp_path: Path) -> None:
    async with pair(tls=certified(tmp_path, ALPHA, BETA)) as (alpha, beta):
        reader, writer = await dial(alpha)
        writer.write(frame(ADMIT))
        await alpha.until_seen((1, ADMIT))
        alpha.mesh.answer(1, NotAdmitted("not now", final=False))
        answer = await hung_up(reader)
        assert codec.decode(answer[PREFIX.size :], size_max=100) == NotAdmitted(
            "not now", final=False
        )
        writer.transport.abort()
        reader, writer = await dial(alpha)
        writer.write(frame(ADMIT) * 2)
        await alpha.until_seen((2, ADMIT))
        assert await hung_up(reader) == b""
        writer.transport.abort()
        alpha.mesh.answer(2, NotAdmitted("too late", final=False))
        alpha.mesh.answer(7, NotAdmitted("nobody", final=False))
        await soon(lambda: not alpha.strangers)
        assert not alpha.mesh._certificate_requests
        await still_works(alpha, beta)


@pytest.mark.asyncio
@pytest.mark.parametrize("says", ["nothing", "half an admit", "an admit that nobody answers"])
async def test_who_has_no_certificate_may_not_stay(
    says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = frame(ADMIT)
    words = {"nothing": b"", "half an admit": whole[:-1], "an admit that nobody answers": whole}
    async with pair(tls=certified(tmp_path, ALPHA, BETA)) as (alpha, beta):
        monkeypatch.setattr(acceptor, "HELLO_TIMEOUT_S", 0.5)
        monkeypatch.setattr(session, "ANSWER_TIMEOUT_S", 0.1)
        reader, writer = await dial(alpha)
        writer.write(words[says])
        assert await hung_up(reader) == b""
        writer.transport.abort()
        await soon(lambda: not alpha.strangers)
        alpha.seen.clear()
        await still_works(alpha, beta)


# Asking -----------------------------------------------------------------------------------------


class Door:
    """Alpha's gate; what a core would decide, the test does."""

    def __init__(self, directory: Path, authority: Authority, node: Node) -> None:
        self.authority = authority
        self.node = node
        self.told: list[v.Event] = []
        self.gate = CertificateIssuer(directory / ALPHA, node.mesh, self.told.append)

    def token(self, **changes: object) -> str:
        hour = int(time.time()) + 3600
        plain = Token((self.node.address,), self.authority.public, b"n" * 16, 1, hour)
        changed = replace(plain, **changes)  # pyright: ignore[reportArgumentType]
        return encode_token(changed.sealed(self.authority.token_key))

    def sign(self, admit: Admit) -> v.Event:
        """What it says to a request."""
        self.gate.do(c.Sign(ALPHA, 1, admit))
        return self.told.pop()

    async def lets_in(self) -> None:
        """The next one that asks, if its token is good."""
        await self.node.until(lambda: self.node.seen)
        (seen,) = self.node.seen
        self.node.seen.clear()
        assert isinstance(seen, tuple)
        number, admit = seen
        assert isinstance(number, int)
        assert isinstance(admit, Admit)
        match self.sign(admit):
            case v.Signed(certificate=certificate):
                self.gate.do(c.Answer(number, certificate, "", final=False))
            case v.NotSigned(why=why, final=final):
                self.gate.do(c.Answer(number, b"", why, final))
            case other:
                raise AssertionError(other)


@asynccontextmanager
async def door(tmp_path: Path) -> AsyncGenerator[Door]:
    """Alpha listens, and holds the authority's key."""
    authority = Authority.make()
    tls = certified(tmp_path, ALPHA, authority=authority)
    authority.save(tmp_path / ALPHA)
    async with nodes(ALPHA, tls=tls) as (alpha,):
        made = Door(tmp_path, authority, alpha)
        assert made.told.pop() == v.Secured(has_key=True)
        yield made


def own_key(tmp_path: Path) -> OwnKey:
    (tmp_path / "new").mkdir(exist_ok=True)
    return OwnKey(tmp_path / "new")


def asks(own: OwnKey, token: str, *, peer: PeerId = BETA) -> Admit:
    return Admit(PROTOCOL_VERSION, token, peer, own.public, b"", b"")


@pytest.mark.asyncio
async def test_a_token_gets_a_certificate_with_which_one_is_connected(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        own, authority = own_key(tmp_path), here.authority.public
        admit = asks(own, here.token())
        letting_in = asyncio.create_task(here.lets_in())
        got = await ask([here.node.address], admit, authority=authority)
        await letting_in
        assert own.is_mine(got.certificate, BETA, authority)
        assert not own.is_mine(got.certificate, EVE, authority)
        own.keep(got.certificate, got.authority)
        assert own.certified() == BETA
        async with nodes(BETA, tls={BETA: contexts(tmp_path / "new")}) as (beta,):
            beta.mesh.connect(here.node.address, peer="")
            await here.node.until_seen(Up(BETA))


@pytest.mark.asyncio
async def test_a_name_has_more_addresses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(certificate_client, "DIAL_TIMEOUT_S", 0.3)
    async with door(tmp_path) as here:
        admit = asks(own_key(tmp_path), here.token())
        with a_name_of_three(parse_address(here.node.address, key="")[1]) as name:
            await asyncio.gather(
                here.lets_in(), ask([name], admit, authority=here.authority.public)
            )


@pytest.mark.asyncio
async def test_what_the_door_sees_for_itself(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        own, stranger = own_key(tmp_path), Authority.make()
        good = asks(own, here.token())
        signed = here.sign(good)
        assert isinstance(signed, v.Signed)
        assert signed.entry.peer == BETA
        old = here.sign(replace(good, token=here.token(expires=int(time.time()) - 1)))
        assert "expired: it was good until" in str(old)
        forged = Token((here.node.address,), here.authority.public, b"n" * 16, 9, 1 << 40)
        foreign = replace(forged, authority=stranger.public).sealed(stranger.token_key)
        for word in ("lc1-word", "x" * 1000, encode_token(forged.sealed(b"k" * 32))):
            assert here.sign(replace(good, token=word)) == v.NotSigned(ALPHA, 1, FORGED, final=True)
        answer = here.sign(replace(good, token=encode_token(foreign)))
        assert answer == v.NotSigned(ALPHA, 1, FORGED, final=True)
        for name in ("x" * 65, "with space", "line\nbreak", "\u00e4"):
            refused = here.sign(replace(good, peer=PeerId(name)))
            assert isinstance(refused, v.NotSigned)
            assert refused.final


@pytest.mark.asyncio
async def test_a_certificate_is_good_for_one_other_of_the_same_node(tmp_path: Path) -> None:
    """Who gave its branch of the log up comes as another peer, without a person's help."""
    async with door(tmp_path) as here:
        own = own_key(tmp_path)
        own.keep(here.authority.sign(BETA, own.public), here.authority.certificate_bytes())
        certificate, proof = own.renewal(GAMMA)
        admit = Admit(PROTOCOL_VERSION, "", GAMMA, own.public, certificate, proof)
        signed = here.sign(admit)
        assert isinstance(signed, v.Signed)
        assert (signed.entry.peer, signed.entry.uses) == (GAMMA, 1)
        again = here.sign(admit)
        assert isinstance(again, v.Signed)
        assert again.entry == signed.entry
        other = Authority.make()
        stolen = other.sign(BETA, own.public)
        for bad in (
            replace(admit, peer=EVE),
            replace(admit, key=b"k" * 32),
            replace(admit, proof=b""),
            replace(admit, certificate=b"nonsense"),
            replace(admit, certificate=stolen),
        ):
            refused = here.sign(bad)
            assert isinstance(refused, v.NotSigned)
            assert refused.final


@pytest.mark.asyncio
async def test_a_voter_gets_the_key_and_no_other_in_its_place(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        tls = certified(tmp_path / "others", BETA, authority=here.authority)
        async with nodes(BETA, tls=tls) as (beta,):
            told: list[v.Event] = []
            place = tmp_path / "others" / BETA
            gate = CertificateIssuer(place, beta.mesh, told.append)
            assert told.pop() == v.Secured(has_key=False)
            beta.mesh.connect(here.node.address, peer="")
            await beta.until_seen(Up(ALPHA))
            await here.node.until_seen(Up(BETA))
            here.gate.do(c.GiveKey(BETA))
            await beta.until(lambda: beta.seen)
            ((sender, message),) = [x for x in beta.seen if isinstance(x, tuple)]
            assert sender == ALPHA
            assert isinstance(message, AuthorityKey)
            for key in (b"", b"nonsense", Authority.make().key_bytes()):
                gate.do(c.TakeKey(key))
                assert told == []
            gate.do(c.Sign(BETA, 1, asks(own_key(tmp_path), here.token())))
            refused = told.pop()
            assert isinstance(refused, v.NotSigned)
            assert not refused.final
            gate.do(c.TakeKey(message.key))
            assert told.pop() == v.Secured(has_key=True)
            assert (place / CA_KEY).stat().st_mode & 0o777 == 0o600
            gate.do(c.Sign(BETA, 1, asks(own_key(tmp_path), here.token())))
            assert isinstance(told.pop(), v.Signed)


@pytest.mark.asyncio
async def test_no_impostor_hears_the_token(tmp_path: Path) -> None:
    """Whoever listens there has a certificate, of another run."""
    async with door(tmp_path) as here:
        other = Authority.make()
        admit = asks(own_key(tmp_path), here.token())
        with pytest.raises(RefusedError, match="not of the run that the token names"):
            await ask([here.node.address], admit, authority=other.public)
        await soon(lambda: not here.node.strangers)
        assert here.node.seen == []


@pytest.mark.asyncio
async def test_who_asks_goes_on_to_the_next_address_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_client, "AGAIN_S", 0.01)
    waits: list[str] = []
    async with door(tmp_path) as here:
        own, authority = own_key(tmp_path), here.authority.public

        async def answers() -> None:
            for number in (1, 2):
                await here.node.until(lambda: here.node.seen)
                here.node.seen.clear()
                here.node.mesh.answer(number, NotAdmitted("nobody leads", final=False))
            await here.lets_in()

        answering = asyncio.create_task(answers())
        got = await ask(
            ["127.0.0.1:1", here.node.address],
            asks(own, here.token()),
            authority=authority,
            waits=waits.append,
        )
        await answering
        assert got.address == here.node.address
        assert waits == ["nobody leads"]


@pytest.mark.asyncio
async def test_a_refusal_is_final_and_nobody_at_all_is_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_client, "FIRST_DIAL_S", 0.05)
    monkeypatch.setattr(certificate_client, "AGAIN_S", 0.1)
    async with door(tmp_path) as here:
        admit, authority = asks(own_key(tmp_path), "lc1-word"), here.authority.public
        letting_in = asyncio.create_task(here.lets_in())
        with pytest.raises(RefusedError, match=r"refused by 127.*: this is no token"):
            await ask([here.node.address], admit, authority=authority)
        await letting_in
        with pytest.raises(RefusedError, match=r"no peer of the run answers at 127\.0\.0\.1:1"):
            await ask(["127.0.0.1:1"], admit, authority=authority)
