"""One connection between two hosts: what opens it, and how it ends."""

import asyncio
import ssl
from pathlib import Path

import pytest

from peers.hosts import sealed_link
from peers.hosts.frames import Frame, FrameKind
from peers.hosts.messages import VERSION, HostDismissed, HostHello, HostWelcome
from peers.hosts.sealed_link import LostLink, SealedLink
from peers.ipc.msgpack_records import decode, kinds_of
from peers.security.node_secret import make_secret, secret_tls
from tests.peers.hosts_room import dialled, two_hosts

ANSWERS = kinds_of(HostWelcome, HostDismissed)


async def heard(link: SealedLink) -> Frame | LostLink:
    """The next frame that is no sign of life."""
    async with asyncio.timeout(20):
        while True:
            frame = await link.receive()
            if isinstance(frame, LostLink) or frame.kind is not FrameKind.STEPS:
                return frame


@pytest.mark.asyncio
async def test_a_host_is_welcomed_and_a_new_connection_replaces_its_old_one(
    tmp_path: Path,
) -> None:
    async with two_hosts(tmp_path) as two:
        two.hosts.open()
        async with dialled(two.address, two.tls) as old, dialled(two.address, two.tls) as new:
            for link in (old, new):
                link.send(HostHello(host=1, version=VERSION))
                frame = await heard(link)
                assert isinstance(frame, Frame)
                assert decode(frame.payload, ANSWERS) == HostWelcome(first=1, ranks=1)
            assert isinstance(await heard(old), LostLink)
            assert two.hosts.missing == []


@pytest.mark.asyncio
async def test_another_version_is_refused(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as two:
        two.hosts.open()
        async with dialled(two.address, two.tls) as link:
            link.send(HostHello(host=1, version=VERSION + 1))
            frame = await heard(link)
            assert isinstance(frame, Frame)
            answer = decode(frame.payload, ANSWERS)
            assert isinstance(answer, HostDismissed)
            assert answer.failed
            assert "another version" in answer.why


@pytest.mark.asyncio
async def test_a_host_with_another_secret_or_none_is_not_heard(tmp_path: Path) -> None:
    make_secret(tmp_path / "other.pem")
    other = secret_tls(tmp_path / "other.pem").dialling
    none = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    none.check_hostname, none.verify_mode = False, ssl.CERT_NONE
    async with two_hosts(tmp_path) as two:
        two.hosts.open()
        with pytest.raises(ssl.SSLError):  # It does not trust this daemon either.
            await asyncio.open_connection(*two.address, ssl=other)
        reader, writer = await asyncio.open_connection(*two.address, ssl=none)
        link = SealedLink(reader, writer)
        assert isinstance(await heard(link), LostLink)
        assert two.hosts.missing == [1]
        link.give_up("the test is over")


@pytest.mark.asyncio
async def test_a_silent_side_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_link, "SILENT_S", 0.2)
    async with two_hosts(tmp_path) as two:
        two.hosts.open()
        async with dialled(two.address, two.tls) as link:
            link.send(HostHello(host=1, version=VERSION))
            assert isinstance(await heard(link), Frame)
            assert isinstance(await heard(link), LostLink)
            lost = await asyncio.wait_for(two.hosts.exits.get(), 20)
            assert str(lost).startswith("host 1 of this node is lost: nothing came from it")
