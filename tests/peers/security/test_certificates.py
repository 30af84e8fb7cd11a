"""TLS made of a node's certificate: nothing older than 1.3, whoever is at the other end."""

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from peers.security.certificates import (
    certificate_fault,
    certificate_of,
    contexts,
    key_of,
    name_of,
    pem,
    trust_more,
    unverified,
)
from peers.security.keys import OWN, OWN_KEY, Key, OwnKey
from peers.sockets.address import parse_address
from protocols.types.ids import PeerId
from protocols.types.limits import CERTIFICATE_BYTES_MAX
from tests.peers.mesh_node import ALPHA, BETA, EVE, Node, certified, hello, nodes


async def shake_hands(node: Node, context: ssl.SSLContext) -> str:
    """The version that this context and the node's listener agree on. Raises OSError: none.

    A listener of uvloop's hangs up before its alert is out, so that no error says why.
    """
    host, port = parse_address(node.address, key="address")
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    version = writer.get_extra_info("ssl_object").version()
    writer.transport.abort()
    return version


@pytest.mark.asyncio
async def test_a_client_of_an_older_tls_is_shut_out(tmp_path: Path) -> None:
    async with nodes(ALPHA, tls=certified(tmp_path, ALPHA)) as (alpha,):
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        assert await shake_hands(alpha, client) == "TLSv1.3"
        client.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(OSError):  # noqa: PT011  See `shake_hands`.
            await shake_hands(alpha, client)


@pytest.mark.asyncio
@pytest.mark.parametrize("what", ["a peer", "who asks to be let in"])
async def test_we_speak_no_older_tls_with_a_server_that_has_no_other(
    what: str, tmp_path: Path
) -> None:
    tls = certified(tmp_path, ALPHA, BETA)
    client = tls[BETA].dialling if what == "a peer" else unverified()
    async with nodes(ALPHA, tls=tls) as (alpha,):
        server = tls[ALPHA].accepting
        assert await shake_hands(alpha, client) == "TLSv1.3"
        server.minimum_version = server.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(OSError):  # noqa: PT011  See `shake_hands`.
            await shake_hands(alpha, client)


# Trust ------------------------------------------------------------------------------------------


def signed_by(node: Key, peer: PeerId, public: bytes, *, name: str) -> bytes:
    """A certificate that a node makes as if it were an authority."""
    return certificate_of(peer, public, signer=node._key, issuer=name)


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["its own", "signed by a node that is in", "a name that is in"])
async def test_a_key_that_is_not_in_gets_no_connection(how: str, tmp_path: Path) -> None:
    """Also not with a certificate that a node of the run signed."""
    tls = certified(tmp_path, ALPHA, BETA)
    beta, eve = OwnKey(tmp_path / BETA), OwnKey(tmp_path)
    if how == "its own":
        chain = [eve.certificate(EVE)]
    elif how == "a name that is in":
        chain = [eve.certificate(BETA)]
    else:
        chain = [signed_by(beta.key, EVE, eve.key.public, name=BETA), beta.certificate(BETA)]
    (tmp_path / OWN).write_bytes(b"".join(map(pem, chain)))
    trusted = [OwnKey(tmp_path / ALPHA).certificate(ALPHA)]
    context = contexts(tmp_path / OWN, tmp_path / OWN_KEY, trusted).dialling
    async with nodes(ALPHA, tls=tls) as (alpha,):
        host, port = parse_address(alpha.address, key="address")
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        writer.write(hello(EVE))
        with suppress(OSError):
            assert await reader.read(1) == b""
        writer.transport.abort()
        assert alpha.seen == []


def test_running_contexts_learn_of_more_certificates(tmp_path: Path) -> None:
    tls = certified(tmp_path, ALPHA)[ALPHA]
    before = len(tls.accepting.get_ca_certs()), tls.accepting.cert_store_stats()["x509"]
    trust_more(tls, [Key.make().own_certificate(EVE)])
    assert before == (0, 1), "no certificate of a node is that of an authority"
    for context in (tls.accepting, tls.dialling):
        assert context.cert_store_stats()["x509"] == 2


@pytest.mark.parametrize("name", ["", "x" * 65, "with space", "line\nbreak", "\u00e4"])
def test_a_name_that_no_peer_can_have_gets_no_certificate(name: str) -> None:
    with pytest.raises(ValueError, match="64 printable"):
        Key.make().own_certificate(PeerId(name))


def test_a_certificate_is_small_whatever_the_name() -> None:
    made = Key.make().own_certificate(PeerId("x" * 64))
    assert len(made) <= CERTIFICATE_BYTES_MAX
    assert (name_of(made), name_of(b"nonsense"), key_of(b"nonsense")) == ("x" * 64, "", b"")


def test_what_a_certificate_says_is_checked_as_a_whole() -> None:
    key, root, other = Key.make(), Key.make(), Key.make()
    own, founders = key.own_certificate(BETA), root.certificate(BETA, key.public)
    for certificate in (own, founders):
        assert certificate_fault(certificate, BETA, key.public, root=root.public) == ""
        assert certificate_fault(certificate, EVE, key.public, root=root.public)
        assert certificate_fault(certificate, BETA, other.public, root=root.public)
    assert certificate_fault(founders, BETA, key.public, root=other.public)
