"""TLS made of a node's certificate: nothing older than 1.3, whoever is at the other end."""

import asyncio
import ssl
from pathlib import Path

import pytest

from peers.security.certificates import unverified
from peers.sockets.address import parse_address
from tests.peers.mesh_node import ALPHA, BETA, Node, certified, nodes


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
