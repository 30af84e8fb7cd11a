"""The certificates that a node trusts follow its log, and are found again after a restart."""

from dataclasses import replace
from pathlib import Path

import pytest

from peers.security.keys import Key, OwnKey
from peers.security.proofs import new_token, proof_of
from peers.security.trust_store import TRUSTED, TrustStore
from protocols.interface.commands import Trust
from protocols.messages.log_entries import TokenSpent
from protocols.state.tokens import Token, fingerprint, renewed
from protocols.types.errors import ConfigError
from protocols.types.ids import PeerId, PeerInfo
from tests.peers.mesh_node import ALPHA, BETA, EVE

ROOT = Key.make()
GAMMA = PeerId("gamma.00000004")


def admits(
    peer: PeerId, own: Key, *, by: Key = ROOT, named: str = "", root: Key = ROOT
) -> TokenSpent:
    """What the log says about a peer that came with a token."""
    token: Token = new_token(by, root=root.public, uses=1, hours=1.0, named=named)
    signatures = (token.signature, proof_of(token, own.public))
    certificate = own.own_certificate(peer)
    return TokenSpent(token.terms, peer, own.hex, certificate, *signatures)


ALPHAS, BETAS, EVES = Key.make(), Key.make(), Key.make()
FOUNDER = admits(ALPHA, ALPHAS)
MEMBER = admits(BETA, BETAS, by=ALPHAS, named=ALPHA)


def info(peer: PeerId, address: str) -> PeerInfo:
    return PeerInfo(peer, peer[:4], 1, address, 0)


def test_it_trusts_what_the_log_admits_and_finds_it_again(tmp_path: Path) -> None:
    store = TrustStore.load(tmp_path)
    assert (store.root, store.peer, store.certificates) == ("", "", {})
    store.admitted_as(ALPHA, root=ROOT.hex, by=FOUNDER)
    voters = (info(ALPHA, "a:1"), info(EVE, "e:1"))
    assert store.follow(Trust(ROOT.hex, (FOUNDER, MEMBER), voters, voters_issue=False)) == {}
    assert store.trusts(MEMBER.certificate)
    assert store.voters == {ALPHA: ("a:1", fingerprint(ALPHAS.public).hex())}
    store.write(store.content())
    assert TrustStore.load(tmp_path) == store
    assert (tmp_path / TRUSTED).stat().st_mode & 0o777 == 0o600


def test_no_secret_is_in_the_file(tmp_path: Path) -> None:
    store = TrustStore(tmp_path)
    store.admitted_as(BETA, root=ROOT.hex, by=MEMBER)
    for key in (ROOT, ALPHAS, BETAS):
        assert key.secret.hex() not in store.content().decode()


@pytest.mark.parametrize(
    "forged",
    [
        admits(EVE, EVES, by=EVES),  # By its own key.
        admits(EVE, EVES, by=EVES, named=ALPHA),
        admits(EVE, EVES, by=ALPHAS, named=GAMMA),  # By a peer that is not in.
        admits(EVE, EVES, root=Key.make()),  # Of another run.
        replace(MEMBER, peer=EVE),
        replace(MEMBER, peer=EVE, key=EVES.hex, certificate=EVES.own_certificate(EVE)),
        replace(admits(EVE, EVES), terms=replace(FOUNDER.terms, uses=9)),
        replace(admits(EVE, EVES), signature=b""),
        TokenSpent(renewed(MEMBER), EVE, EVES.hex, EVES.own_certificate(EVE), b"", b""),
    ],
)
def test_what_a_leader_wrote_without_a_token_is_not_trusted(forged: TokenSpent) -> None:
    store = TrustStore(Path("/nowhere"))
    faults = store.follow(Trust(ROOT.hex, (FOUNDER, MEMBER, forged), ()))
    assert list(faults) == [EVE]
    assert not store.trusts(forged.certificate) or forged.certificate == MEMBER.certificate


OPERATOR = Key.make()
JOINED = admits(GAMMA, EVES, by=OPERATOR, named=OPERATOR.hex)


def test_who_came_by_an_operators_token_is_trusted_also_when_it_is_no_operator_any_more(
    tmp_path: Path,
) -> None:
    for now in ((OPERATOR.hex,), ()):
        store = TrustStore(tmp_path)
        store.admitted_as(ALPHA, root=ROOT.hex, by=FOUNDER)
        trust = Trust(ROOT.hex, (FOUNDER, JOINED), (), False, now, (OPERATOR.hex,))
        assert store.follow(trust) == {}
        assert store.trusts(JOINED.certificate)
        assert store.operators == now
        store.write(store.content())
        assert TrustStore.load(tmp_path) == store


@pytest.mark.parametrize(
    ("forged", "operators"),
    [
        (JOINED, ()),
        (JOINED, (EVES.hex,)),
        (admits(GAMMA, EVES, by=EVES, named=OPERATOR.hex), (OPERATOR.hex,)),
        (admits(GAMMA, EVES, by=OPERATOR), (OPERATOR.hex,)),
    ],
)
def test_a_token_of_a_key_that_was_no_operators_proves_nothing(
    forged: TokenSpent, operators: tuple[str, ...]
) -> None:
    store = TrustStore(Path("/nowhere"))
    trust = Trust(ROOT.hex, (FOUNDER, forged), (), True, operators, operators)
    assert list(store.follow(trust)) == [GAMMA]


def test_a_node_that_became_another_peer_is_trusted_with_its_key() -> None:
    store = TrustStore(Path("/nowhere"))
    later = TokenSpent(renewed(MEMBER), GAMMA, BETAS.hex, BETAS.own_certificate(GAMMA), b"", b"")
    assert store.follow(Trust(ROOT.hex, (FOUNDER, MEMBER, later), ())) == {}
    assert store.trusts(later.certificate)


def test_an_issuer_that_the_log_has_forgotten_is_known_here() -> None:
    store = TrustStore(Path("/nowhere"))
    store.follow(Trust(ROOT.hex, (FOUNDER,), ()))
    assert store.follow(Trust(ROOT.hex, (MEMBER,), ())) == {}


def test_another_run_is_not_followed() -> None:
    store = TrustStore(Path("/nowhere"))
    store.admitted_as(ALPHA, root=ROOT.hex, by=FOUNDER)
    other = Key.make()
    foreign = admits(EVE, EVES, by=other, root=other)
    assert EVE in store.follow(Trust(other.hex, (foreign,), ()))
    assert not store.trusts(foreign.certificate)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"root": 1', '{"certificates": []}'])
def test_a_torn_file_is_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / TRUSTED).write_text(content)
    with pytest.raises(ConfigError, match="cannot be used: it is not whole; put it back"):
        TrustStore.load(tmp_path)


def test_a_fingerprint_is_that_of_the_own_key(tmp_path: Path) -> None:
    store, own = TrustStore(tmp_path), OwnKey(tmp_path)
    assert store.own_fingerprint == b""
    store.admitted_as(ALPHA, root=ROOT.hex, by=admits(ALPHA, own.key))
    assert store.own_fingerprint == fingerprint(own.key.public)
