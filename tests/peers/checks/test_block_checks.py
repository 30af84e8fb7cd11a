"""Owner checks between real peers: lies are found before the commit, and nothing else is."""

import asyncio
from dataclasses import replace
from typing import TypeVar

import pytest

from peers.checks.block_checks import BlockChecks, Check, IncomingAnswer
from peers.checks.samples import PartSample
from peers.fault_injection import Lie
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.state.parts import ELEMENT_BYTES
from protocols.types.ids import PartBlocks, PeerId
from tests.peers.exchange_room import Alone
from tests.peers.payload_room import STAMP
from tests.peers.xor_node import ALPHA, BETA, ELEMENTS, GAMMA, Node, XorWork, digest, running, xor

E = TypeVar("E", bound=e.Entry)
LIE_ROUND = 2
SAMPLED_BYTES = 150 * 64 * 4
"""Of each part: a half of 300 blocks for each of two receivers, of 64 fp32 values each."""


def entries(node: Node, kind: type[E]) -> list[E]:
    log = node.driver.core.raft.log
    return [x.body for x in log.since(log.base + 1) if isinstance(x.body, kind)]


def listens(node: Node, sizes: list[int]) -> None:
    """Note the size of each answer that a peer receives."""
    take = node.driver.mesh_shell.block_checks.blocks_received

    def noted(peer: PeerId, message: m.Blocks) -> None:
        if message.offset_bytes == 0:
            sizes.append(message.total_bytes)
        take(peer, message)

    node.driver.mesh_shell.block_checks.blocks_received = noted


def digest_after(rounds: int, commits: list[e.Commit]) -> str:
    """The digest of the state that follows from the contributions of these rounds alone."""
    sources = {peer: XorWork(peer).random for peer in (ALPHA, BETA, GAMMA)}
    state = bytes(ELEMENTS * ELEMENT_BYTES)
    for commit in commits[:rounds]:
        made = {peer: x.randbytes(len(state)) for peer, x in sources.items()}
        state = xor([state, *(made[term.peer] for term in commit.contributors)])
    return digest(state)


@pytest.mark.asyncio
@pytest.mark.parametrize("gathers", [False, True])
async def test_true_results_are_checked_and_pass(gathers: bool) -> None:
    sizes: list[int] = []
    async with running(ALPHA, BETA, GAMMA, outer_steps=4, gathers=gathers, patient=True) as nodes:
        for node in nodes:
            listens(node, sizes)
        for node in nodes:
            assert node.task is not None
            await asyncio.wait_for(node.task, 20)
        assert len({node.digests[4] for node in nodes}) == 1
        assert entries(nodes[0], e.Attempt) == []
    # In each of four rounds each of three peers gets an answer from each other one, about two
    # parts; in a gather, a digest of 16 bytes for each part.
    assert len(sizes) == 4 * 3 * 2
    whole = 2 * 16 if gathers else 2 * SAMPLED_BYTES
    assert all(whole - 256 < size <= whole for size in sizes), "the last block may be shorter"


@pytest.mark.asyncio
@pytest.mark.parametrize("gathers", [False, True])
async def test_an_owner_that_falsifies_its_part_is_found_before_the_commit(gathers: bool) -> None:
    async with running(ALPHA, BETA, GAMMA, outer_steps=999, gathers=gathers, patient=True) as nodes:
        alpha, *_, gamma = nodes
        gamma.driver.data_plane.reducer.falsify = Lie(LIE_ROUND, 100).falsify
        await alpha.until(lambda: alpha.round > LIE_ROUND)
        (commit,) = (x for x in entries(alpha, e.Commit) if x.round == LIE_ROUND)
        assert commit.attempt > 0, "not the attempt with the false result"
        if not gathers:
            assert [x.peer for x in entries(alpha, e.Lost)] == [GAMMA], "two peers found it"
            assert alpha.digests[LIE_ROUND] == digest_after(LIE_ROUND, entries(alpha, e.Commit))
        truth = [node.digests[LIE_ROUND] for node in nodes if LIE_ROUND in node.digests]
        assert len(truth) >= 2
        assert len(set(truth)) == 1
        kinds = [note.kind for node in nodes for note in node.notes]
        assert "owner" in kinds


@pytest.mark.asyncio
async def test_an_honest_run_goes_on_after_a_peer_lied_about_one_percent() -> None:
    async with running(ALPHA, BETA, GAMMA, outer_steps=999, patient=True) as nodes:
        alpha, *_, gamma = nodes
        gamma.driver.data_plane.reducer.falsify = Lie(LIE_ROUND, 1).falsify
        await alpha.until(lambda: alpha.round > LIE_ROUND)
        for attempt in entries(alpha, e.Attempt):
            assert "gamma" in attempt.why


def test_only_pieces_of_answers_that_were_asked_for_get_memory() -> None:
    room = Alone()
    sent: list[m.Control] = []
    checks = BlockChecks(
        room.data_plane._core,
        room.data_plane,
        send=lambda _, message: sent.append(message),
        feed=room.events.append,
    )
    sample = PartSample(PartBlocks(0, (0, 2)), 0, 1000, 64)
    check = checks._open[STAMP.fragment] = Check(STAMP, (sample,))
    check.incoming[ALPHA, ALPHA] = IncomingAnswer(((0, 700_000), (1, 5)))

    def piece(at: int, size: int, *, total: int = 700_005, who: PeerId = ALPHA) -> m.Blocks:
        return m.Blocks(STAMP, who, at, total, bytes([at % 251]) * size)

    checks.blocks_received(BETA, piece(0, 10))
    checks.blocks_received(ALPHA, piece(0, 10, who=BETA))
    checks.blocks_received(ALPHA, piece(0, 10, total=11))
    checks.blocks_received(ALPHA, piece(5, 10))
    checks.blocks_received(ALPHA, replace(piece(0, 10), stamp=replace(STAMP, attempt=9)))
    assert check.incoming[ALPHA, ALPHA].data == b""
    checks.blocks_received(ALPHA, piece(0, 500_000))
    checks.blocks_received(ALPHA, piece(500_000, 200_006))
    assert room.events == []
    checks.blocks_received(ALPHA, piece(500_000, 200_005))
    assert room.events == [v.BlocksReceived(ALPHA, STAMP, ALPHA)]
    assert {part: len(x) for part, x in check.blocks[ALPHA, ALPHA].items()} == {0: 700_000, 1: 5}
    checks.blocks_received(ALPHA, piece(0, 700_005))
    assert len(room.events) == 1, "it is here"
    checks.drop_fragment(STAMP.fragment)
    assert checks._open == {}
