"""Dialling: who is tried for how long, who stops us, and which of two dials wins."""

import asyncio
from pathlib import Path

import pytest

from peers.connections import dialer
from peers.connections.dialer import Dial, DialError
from peers.sockets.address import parse_address
from peers.sockets.listener import bind
from tests.peers.mesh_node import (
    ALPHA,
    BETA,
    RUN,
    Down,
    Node,
    Up,
    a_name_of_three,
    certified,
    cut,
    nodes,
    pair,
    still_works,
)

ANEW = "it connected again"


@pytest.mark.asyncio
@pytest.mark.parametrize("what", ["protocol", "run"])
async def test_a_refused_hello_ends_with_the_reason_at_its_sender(what: str) -> None:
    async with nodes(ALPHA, BETA) as (alpha, beta):
        setattr(beta, what, 99)
        beta.mesh.connect(alpha.address, peer="")
        await beta.until_seen(f"refused by {alpha.address}: another {what}")
        assert alpha.seen == []
        assert not alpha.mesh.sessions


@pytest.mark.asyncio
async def test_a_refusal_by_one_whom_the_log_names_stops_nobody() -> None:
    async with nodes(ALPHA, BETA) as (alpha, beta):
        alpha.run = 99
        beta.mesh.connect(alpha.address, peer=ALPHA)
        await asyncio.sleep(0.2)  # Long enough for two tries.
        assert beta.seen == []
        alpha.run = RUN
        await beta.until_seen(Up(ALPHA))


@pytest.mark.asyncio
async def test_a_disconnected_peer_is_dialled_no_more() -> None:
    async with pair() as (alpha, beta):
        beta.mesh.disconnect(ALPHA, "gone")
        await beta.until_seen(Down(ALPHA, "gone"))
        await alpha.until_seen(Down(BETA, "it disconnects: gone"))
        assert not beta.mesh._dialer._tasks
        beta.mesh.connect(alpha.address, peer=ALPHA)
        await beta.until_seen(Up(ALPHA))


@pytest.mark.asyncio
async def test_two_that_dial_each_other_settle_on_one_session() -> None:
    async with nodes(ALPHA, BETA) as (alpha, beta):
        alpha.mesh.connect(beta.address, peer=BETA)
        beta.mesh.connect(alpha.address, peer=ALPHA)
        for _ in range(5):
            await alpha.until(lambda: BETA in alpha.mesh.sessions)
            await beta.until(lambda: ALPHA in beta.mesh.sessions)
            await until_dialled(alpha, beta)
            for node, other in ((alpha, BETA), (beta, ALPHA)):
                ups = [one for one in node.seen if one == Up(other)]
                assert 1 <= len(ups) <= 2, "they fight for ever"
                node.seen.clear()
            await still_works(alpha, beta)
            cut(alpha.mesh.sessions[BETA].control)
            await alpha.until(lambda: alpha.seen)
            await beta.until(lambda: beta.seen)


@pytest.mark.asyncio
async def test_of_two_dials_at_once_one_stays(tmp_path: Path) -> None:
    """One of them gives way before the other side has dropped its own for it: else both would be
    over, and be made anew after a wait."""
    tls = certified(tmp_path, ALPHA, BETA)
    for turn in range(24):
        async with nodes(ALPHA, BETA, tls=tls) as (alpha, beta):
            dials = [(alpha, beta), (beta, alpha)]
            for one, other in dials[:: 1 if turn % 2 else -1]:
                one.mesh.connect(other.address, peer=other.peer)
                await asyncio.sleep(turn % 4 * 0.001)
            await until_dialled(alpha, beta)
            await alpha.until_seen(Up(BETA))
            await beta.until(lambda: is_of_one_dial(alpha, beta))
            # Beta, whose id is larger, may have to change over to alpha's connection, at once.
            assert beta.seen in ([Up(ALPHA)], [Up(ALPHA), Down(ALPHA, ANEW), Up(ALPHA)])
            beta.seen.clear()
            await still_works(alpha, beta)


async def until_dialled(alpha: Node, beta: Node) -> None:
    """Neither tries any more."""
    async with asyncio.timeout(10):
        while tasks := alpha.mesh._dialer._tasks | beta.mesh._dialer._tasks:
            await asyncio.wait(tasks)


def is_of_one_dial(alpha: Node, beta: Node) -> bool:
    """What one of them dialled is what the other one has."""
    ends = alpha.mesh.sessions.get(BETA), beta.mesh.sessions.get(ALPHA)
    return None not in ends and sum(bool(end and end.address) for end in ends) == 1


@pytest.mark.asyncio
async def test_a_typed_address_where_nobody_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialer, "FIRST_DIAL_S", 0.1)
    free, address = bind("127.0.0.1:0")
    free.close()
    async with nodes(BETA) as (beta,):
        beta.mesh.connect(address, peer="")
        await beta.until(lambda: beta.seen)
        (why,) = beta.seen
        assert isinstance(why, str)
        assert why.startswith(f"no peer answers at {address}: ")
        assert not beta.mesh._dialer._dials


@pytest.mark.asyncio
async def test_one_who_accepts_and_says_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialer, "FIRST_DIAL_S", 0.05)
    monkeypatch.setattr(dialer, "DIAL_TIMEOUT_S", 0.1)
    silent, address = bind("127.0.0.1:0")
    with silent:
        async with nodes(BETA) as (beta,):
            beta.mesh.connect(address, peer="")
            await beta.until_seen(f"no peer answers at {address}: no answer in time")


@pytest.mark.asyncio
@pytest.mark.parametrize("address", ["nonsense", "a..b:1", "127.0.0.1:0", "no-such.invalid:1"])
async def test_an_address_that_a_peer_made_up_is_one_that_does_not_answer(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialer, "FIRST_DIAL_S", 0.05)
    async with nodes(BETA) as (beta,):
        beta.mesh.connect(address, peer=ALPHA)
        beta.mesh.connect(address + "1", peer="")
        await beta.until(lambda: beta.seen)
        assert len(beta.seen) == 1, "nobody is asked to stop because of the first one"


@pytest.mark.asyncio
async def test_an_address_of_a_name_that_does_not_answer_is_not_all_that_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialer, "DIAL_TIMEOUT_S", 0.3)
    async with nodes(ALPHA, BETA) as (alpha, beta):
        with a_name_of_three(parse_address(alpha.address, key="")[1]) as name:
            beta.mesh.connect(name, peer=ALPHA)
            await beta.until_seen(Up(ALPHA))


@pytest.mark.asyncio
async def test_a_dial_waits_for_its_peer_to_come() -> None:
    free, address = bind("127.0.0.1:0")
    free.close()
    async with nodes(BETA) as (beta,):
        beta.mesh.connect(address, peer=ALPHA)
        beta.mesh.connect(address, peer=ALPHA)
        assert len(beta.mesh._dialer._tasks) == 1
        await asyncio.sleep(0.2)  # Long enough for a try.
        assert beta.mesh.dial_faults() == {address: "Connection refused"}
        async with nodes(ALPHA, listen=address):
            await beta.until_seen(Up(ALPHA))
            assert beta.mesh.dial_faults() == {}
        await beta.until(lambda: beta.seen)
        assert isinstance(beta.seen[0], Down)


@pytest.mark.asyncio
async def test_another_peer_at_the_address_is_not_taken_for_the_one_we_want() -> None:
    async with nodes(ALPHA, BETA) as (alpha, beta):
        beta.mesh.connect(alpha.address, peer="alpha.00000009")
        await asyncio.sleep(0.2)  # Long enough for two tries.
        assert beta.seen == []
        assert alpha.seen == []
        beta.mesh.connect(alpha.address, peer=ALPHA)  # Now it is that one we want.
        await beta.until_seen(Up(ALPHA))


@pytest.mark.asyncio
@pytest.mark.parametrize("address", ["192.0.2.1:1", "gpu1.example.org:1"])
async def test_nobody_dials_another_machine_in_the_clear(address: str) -> None:
    """Whoever says that somebody listens there."""
    async with nodes(ALPHA) as (alpha,):
        with pytest.raises(DialError, match="for this machine only"):
            await alpha.mesh._dialer._hosts(Dial(address, ""))
