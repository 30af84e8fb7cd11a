"""The door of a run on real sockets: certificates, strangers, and those who ask to be let in."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from peers.connections import acceptor, session
from peers.connections.acceptor import MAGIC
from peers.connections.frames import PREFIX
from peers.security.admission_shell import AdmissionShell
from peers.security.certificates import trust_more, unverified
from peers.security.keys import Key, OwnKey
from peers.security.proofs import FORGED, new_token, proof_of
from peers.security.trust_store import TRUSTED, TrustStore
from peers.sockets.address import parse_address
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages.log_entries import TokenSpent
from protocols.messages.peer import Admit, Admitted, BulkKeys, Leave, NotAdmitted
from protocols.state.tokens import NO_TERMS, Token
from protocols.types import limits
from protocols.types.ids import PROTOCOL_VERSION, PeerId
from protocols.types.limits import TICKET_BYTES
from protocols.wire import codec
from tests.peers.mesh_node import (
    ALPHA,
    BETA,
    EVE,
    Node,
    Up,
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
async def test_a_certificate_that_no_log_admits_is_none(tmp_path: Path) -> None:
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


ADMIT = Admit(
    PROTOCOL_VERSION, EVE, b"k" * 32, b"c", False, NO_TERMS, b"s" * 64, b"p" * 64, PeerId("")
)
NO_WORD_OF_HIS = {
    "a hello": hello(EVE),
    "a hello as somebody else": hello(BETA),
    "keys": frame(BulkKeys(bytes(32))),
    "a bulk connection's ticket": MAGIC + bytes(TICKET_BYTES),
    "a control message": frame(Leave("bye")),
    "an admission": frame(Admitted((b"c",))),
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


# The core's commands ----------------------------------------------------------------------------

ROOT, VOTER = Key.make(), Key.make()


def token(**changes: object) -> Token:
    """A token that the root key signed."""
    wanted = {"root": ROOT.public, "uses": 1, "hours": 1.0, **changes}
    return new_token(ROOT, **wanted)  # pyright: ignore[reportArgumentType]


def entry(own: OwnKey, word: Token, *, peer: PeerId = BETA) -> TokenSpent:
    proof = proof_of(word, own.key.public)
    certificate = own.certificate(peer)
    return TokenSpent(word.terms, peer, own.key.hex, certificate, word.signature, proof)


def own_key(tmp_path: Path, name: str = "new") -> OwnKey:
    (tmp_path / name).mkdir(parents=True, exist_ok=True)
    return OwnKey(tmp_path / name)


def founder(directory: Path) -> tuple[TrustStore, TokenSpent]:
    """Alpha's store, and its admission."""
    own = entry(own_key(directory, ALPHA), token(), peer=ALPHA)
    store = TrustStore(directory / ALPHA)
    store.admitted_as(ALPHA, root=ROOT.hex, by=own)
    return store, own


class Gate:
    """Alpha's shell; a core's decisions are the test's."""

    def __init__(self, directory: Path, node: Node, store: TrustStore | None = None) -> None:
        self.told: list[v.Event] = []
        self.notes: list[str] = []
        made, self.entry = founder(directory)
        self.store = store or made
        self.shell = AdmissionShell(
            self.store, node.mesh, self.told.append, note=lambda _, text: self.notes.append(text)
        )

    def says(self, spent: TokenSpent, *, issuer: str = ROOT.hex) -> v.Event:
        """Its answer to a request."""
        self.shell.do(c.CheckProof(ALPHA, 1, spent, ROOT.hex, issuer))
        return self.told.pop()

    def trust(self, *admitted: TokenSpent) -> None:
        self.shell.do(c.Trust(ROOT.hex, (self.entry, *admitted), ()))


@pytest.mark.asyncio
async def test_signatures_are_checked_before_the_log_is_asked(tmp_path: Path) -> None:
    async with nodes(ALPHA) as (alpha,):
        gate, own = Gate(tmp_path, alpha), own_key(tmp_path)
        assert gate.told.pop() == v.Secured()
        good = entry(own, token())
        assert gate.says(good) == v.Proved(ALPHA, 1, good)
        by_voter = new_token(VOTER, root=ROOT.public, uses=1, hours=1.0, named=ALPHA)
        voters = entry(own, by_voter)
        assert gate.says(voters, issuer=VOTER.hex) == v.Proved(ALPHA, 1, voters)
        for forged in (
            replace(good, terms=replace(good.terms, uses=2)),
            replace(good, terms=replace(good.terms, expires=1 << 40)),
            replace(good, terms=replace(good.terms, witness=True)),
            replace(good, signature=voters.signature),
            replace(good, proof=entry(own_key(tmp_path, "other"), token()).proof),
            voters,
        ):
            assert gate.says(forged) == v.NotProved(ALPHA, 1, FORGED, final=True)
        late = gate.says(entry(own, token(hours=-1.0)))
        assert "expired: it was good until" in str(late)


@pytest.mark.asyncio
async def test_a_certificate_is_of_the_key_and_the_peer_that_ask(tmp_path: Path) -> None:
    async with nodes(ALPHA) as (alpha,):
        gate, own, other = Gate(tmp_path, alpha), own_key(tmp_path), own_key(tmp_path, "other")
        good = entry(own, token())
        for certificate in (b"", b"nonsense", other.certificate(BETA), own.certificate(GAMMA)):
            refused = gate.says(replace(good, certificate=certificate))
            assert isinstance(refused, v.NotProved)
            assert refused.final
            assert "its certificate is" in refused.why


@pytest.mark.asyncio
async def test_who_the_log_admits_is_trusted_and_nobody_else(tmp_path: Path) -> None:
    store, own = founder(tmp_path)
    tls = {ALPHA: store.open(), **certified(tmp_path / "others", BETA)}
    trust_more(tls[BETA], [own.certificate])
    async with nodes(ALPHA, BETA, tls=tls) as (alpha, beta):
        gate = Gate(tmp_path, alpha, store)
        beta.mesh.connect(alpha.address, peer="")
        await soon(lambda: beta.mesh._dialer._dials[alpha.address].tries > 1)
        assert alpha.seen == []
        spent = entry(own_key(tmp_path / "others", BETA), token())
        gate.entry = own
        gate.trust(replace(spent, proof=bytes(64)))
        await soon(lambda: beta.mesh._dialer._dials[alpha.address].tries > 3)
        assert alpha.seen == [], "a leader without a token has written that"
        assert gate.notes == [f"{BETA} is not trusted: {FORGED}"]
        gate.trust(spent)
        await alpha.until_seen(Up(BETA))
        await gate.shell.close()
        assert TrustStore.load(tmp_path / ALPHA).trusts(spent.certificate)
        assert (tmp_path / ALPHA / TRUSTED).stat().st_mode & 0o777 == 0o600


@pytest.mark.asyncio
async def test_an_answer_goes_to_the_connection_that_asked(tmp_path: Path) -> None:
    async with pair(tls=certified(tmp_path, ALPHA, BETA)) as (alpha, _):
        gate = Gate(tmp_path / "own", alpha)
        for number, (command, answer) in enumerate(
            (
                (c.AdmissionAnswer(1, (b"a", b"b"), "", final=False), Admitted((b"a", b"b"))),
                (c.AdmissionAnswer(2, (), "no", final=True), NotAdmitted("no", final=True)),
            ),
            start=1,
        ):
            reader, writer = await dial(alpha)
            writer.write(frame(ADMIT))
            await alpha.until_seen((number, ADMIT))
            gate.shell.do(command)
            got = await hung_up(reader)
            assert codec.decode(got[PREFIX.size :], size_max=100) == answer
            writer.transport.abort()
