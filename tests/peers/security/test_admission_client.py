"""The joiner's side of admission, on real sockets."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from peers.security import admission_client
from peers.security.admission_client import ask
from peers.security.certificates import load_certificate
from peers.security.keys import OWN
from peers.sockets.address import parse_address
from protocols.messages.peer import Admit, Admitted, NotAdmitted
from protocols.state.tokens import NO_TERMS
from protocols.types.errors import RefusedError
from protocols.types.ids import PROTOCOL_VERSION, PeerId
from tests.peers.mesh_node import ALPHA, BETA, Node, a_name_of_three, certified, nodes

ADMIT = Admit(
    PROTOCOL_VERSION, BETA, b"k" * 32, b"c", False, NO_TERMS, b"s" * 64, b"p" * 64, PeerId("")
)
VOTERS = (b"one", b"another")


@asynccontextmanager
async def door(tmp_path: Path) -> AsyncGenerator[tuple[Node, bytes]]:
    """Alpha listens; with its certificate."""
    async with nodes(ALPHA, tls=certified(tmp_path, ALPHA)) as (alpha,):
        yield alpha, load_certificate(tmp_path / ALPHA / OWN)


async def answers(node: Node, *given: Admitted | NotAdmitted) -> None:
    for number, answer in enumerate(given, start=1):
        await node.until_seen((number, ADMIT))
        node.mesh.answer(number, answer)


@pytest.mark.asyncio
async def test_who_is_admitted_gets_the_certificates_of_the_voters(tmp_path: Path) -> None:
    async with door(tmp_path) as (alpha, shown):
        answering = asyncio.create_task(answers(alpha, Admitted(VOTERS)))
        got = await ask([alpha.address], ADMIT, is_ours=shown.__eq__)
        await answering
        assert got.address == alpha.address
        assert got.certificates == (shown, *VOTERS)


@pytest.mark.asyncio
async def test_a_name_has_more_addresses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(admission_client, "DIAL_TIMEOUT_S", 0.3)
    async with door(tmp_path) as (alpha, shown):
        with a_name_of_three(parse_address(alpha.address, key="")[1]) as name:
            await asyncio.gather(
                answers(alpha, Admitted(VOTERS)), ask([name], ADMIT, is_ours=shown.__eq__)
            )


@pytest.mark.asyncio
async def test_no_impostor_is_asked(tmp_path: Path) -> None:
    """Whoever listens there has a key that the token does not name."""
    async with door(tmp_path) as (alpha, _):
        with pytest.raises(RefusedError, match="not of the run that the token names"):
            await ask([alpha.address], ADMIT, is_ours=lambda _: False)
        assert alpha.seen == []


@pytest.mark.asyncio
async def test_who_asks_goes_on_to_the_next_address_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_client, "AGAIN_S", 0.01)
    waits: list[str] = []
    async with door(tmp_path) as (alpha, _):
        later = NotAdmitted("nobody leads", final=False)
        answering = asyncio.create_task(answers(alpha, later, later, Admitted(VOTERS)))
        places = ["127.0.0.1:1", alpha.address]
        got = await ask(places, ADMIT, is_ours=lambda _: True, waits=waits.append)
        await answering
        assert got.address == alpha.address
        assert waits == ["nobody leads"]


@pytest.mark.asyncio
async def test_a_refusal_is_final_and_nobody_at_all_is_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_client, "FIRST_DIAL_S", 0.05)
    monkeypatch.setattr(admission_client, "AGAIN_S", 0.1)
    async with door(tmp_path) as (alpha, _):
        refusing = asyncio.create_task(answers(alpha, NotAdmitted("no token", final=True)))
        with pytest.raises(RefusedError, match=r"refused by 127.*: no token"):
            await ask([alpha.address], ADMIT, is_ours=lambda _: True)
        await refusing
        with pytest.raises(RefusedError, match=r"no peer of the run answers at 127\.0\.0\.1:1"):
            await ask(["127.0.0.1:1"], ADMIT, is_ours=lambda _: True)
