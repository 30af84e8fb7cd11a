"""Drivers over real TCP: rounds, joiners, deaths, and payloads that must not count."""

import asyncio
import errno
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from peers.exchange.payload_keys import ResultKey, key_of
from peers.exchange.pieces import PIECE_ELEMENTS, Payload
from peers.storage.wal import SYSTEM, Wal
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.state.parts import ELEMENT_BYTES
from protocols.types.errors import LowcommError
from protocols.types.ids import Contributor, PeerId
from tests.peers.xor_node import (
    ALPHA,
    BETA,
    CHECKPOINT_ROUND,
    ELEMENTS,
    EVE,
    GAMMA,
    RULES,
    Node,
    XorWork,
    agree,
    bring,
    count_the_same,
    gives_once,
    open_round,
    running,
    xor,
)

# Rounds -----------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("peers", [(ALPHA, BETA), (ALPHA, BETA, GAMMA)])
async def test_peers_finish_with_equal_states(peers: tuple[PeerId, ...], gathers: bool) -> None:
    async with running(*peers, outer_steps=5, gathers=gathers, patient=True) as nodes:
        for node in nodes:
            assert node.task is not None
            await asyncio.wait_for(node.task, 20)
            assert node.stop is not None
            assert node.stop.outcome == "finished"
            assert node.round == 5
            assert node.driver.discarded == 0
        agree(nodes)
        assert len({node.work.state for node in nodes}) == 1
        # Everybody's five contributions, each counted once.
        again = [XorWork(peer).random for peer in peers]
        size = ELEMENTS * ELEMENT_BYTES
        wanted = xor([source.randbytes(size) for source in again for _ in range(5)])
        assert nodes[0].work.state == wanted
        moved = [node.mesh.bytes_moved() for node in nodes]
        assert all(sent > 5 * size // 2 and received > 5 * size // 2 for sent, received in moved)
        count_the_same(nodes, rounds=5, gathers=gathers)


@pytest.mark.asyncio
async def test_nothing_is_kept_of_rounds_that_are_over() -> None:
    async with running(ALPHA, BETA, outer_steps=6) as nodes:
        for node in nodes:
            assert node.task is not None
            await asyncio.wait_for(node.task, 20)
            data_plane = node.driver.data_plane
            assert data_plane.inbound.slices == {}
            assert {stamp.round for stamp, _ in data_plane.inbound.results} <= {5, 6}
            assert data_plane.own.encoded == {}
            assert data_plane.inbound._undecided == {}
            assert data_plane.reducer._sums == data_plane.reducer._waiting == {}


@pytest.mark.asyncio
@pytest.mark.parametrize("gathers", [False, True])
async def test_a_joiner_gets_its_state_from_several_donors(tmp_path: Path, gathers: bool) -> None:
    async with running(ALPHA, BETA, outer_steps=10_000, gathers=gathers) as nodes:
        alpha, beta = nodes
        await alpha.until(lambda: alpha.round >= 2)
        gamma = Node(GAMMA, tmp_path, join=True, gathers=gathers)
        nodes.append(gamma)
        gives_once(alpha, lambda: BETA in gamma.driver.core.links.up)
        await gamma.start(alpha, peers=2, outer_steps=10_000)
        await gamma.until(lambda: gamma.states)
        (state,) = gamma.states
        size = ELEMENTS * ELEMENT_BYTES
        gave = dict(zip(state.donors, state.donor_bytes, strict=True))
        assert (set(gave), sum(gave.values())) == ({ALPHA, BETA}, size), "each gave a part"
        assert 0 < state.seconds < state.connected_s < 20
        traffic = gamma.driver.counters.traffic(time.monotonic())
        received = {each.peer: each.received["transfer"] for each in traffic}
        for giver in (alpha, beta):
            served = (GAMMA, received[giver.peer])
            await giver.until(lambda giver=giver, served=served: served in giver.served_to)
        first = gamma.round
        await gamma.until(lambda: gamma.round >= first + 3)
        await beta.until(lambda: beta.round >= gamma.round)
        agree(nodes)
        commits = gamma.driver.core.run_state.commits[0]
        await gamma.until(lambda: GAMMA in [term.peer for term in commits[-1].contributors])
        assert gamma.driver.core.links.up == {ALPHA, BETA}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("who", "gathers"), [(ALPHA, False), (BETA, False), (GAMMA, False), (GAMMA, True)]
)
async def test_the_others_go_on_when_one_is_killed_in_a_round(who: PeerId, gathers: bool) -> None:
    async with running(ALPHA, BETA, GAMMA, outer_steps=10_000, gathers=gathers) as nodes:
        for node in nodes:
            await node.until(lambda node=node: node.round >= 2)
        victim = next(node for node in nodes if node.peer == who)
        alive = [node for node in nodes if node is not victim]
        # In the middle: it has reduced its part and sent it to nobody.
        outbounds = victim.driver.data_plane.outbounds
        outbounds.next_chunk = lambda peer: None  # type: ignore[method-assign]
        await victim.until(lambda: victim.driver.data_plane.inbound.slices)
        await victim.die()
        reached = alive[0].round
        for node in alive:
            await node.until(lambda node=node: node.round >= reached + 3)
        run_state = alive[0].driver.core.run_state
        await alive[0].until(lambda: who not in run_state.members)
        assert alive[0].driver.counters._peers[who].control is None
        agree(nodes)


@pytest.mark.asyncio
async def test_it_counts_how_late_a_heartbeat_is_of_whom_it_watches() -> None:
    async with open_round() as (alpha, _):
        late = alpha.driver.counters._heartbeats
        failure_detector = alpha.driver.core.links.failure_detector
        await alpha.until(lambda: BETA in failure_detector.watched)
        failure_detector._since[BETA] = float("-inf")
        late.clear()
        alpha.driver.counters._peers[BETA].heartbeat_at = asyncio.get_running_loop().time() - 5
        for peer, message in (
            (BETA, m.Heartbeat()),
            (BETA, m.HeartbeatReply()),
            (EVE, m.Heartbeat()),
        ):
            alpha.driver._handle_event(v.MessageReceived(peer, message))
        first, second = [late_s for _, late_s in late]
        assert first == pytest.approx(5 - RULES.heartbeat_interval_s, abs=1)
        assert second == 0.0


# The log on the disk ------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_what_a_driver_decided_is_on_its_disk(tmp_path: Path) -> None:
    node = Node(ALPHA, tmp_path, join=False)
    await node.start(None, peers=1, outer_steps=3)
    assert node.task is not None
    await asyncio.wait_for(node.task, 20)
    await node.die()
    wal, saved = Wal.open(tmp_path)
    wal.close()
    assert saved is not None
    assert (saved.term, saved.vote) == (node.driver.core.raft.term, ALPHA)
    commits = [x.body for x in saved.entries if isinstance(x.body, e.Commit)]
    assert commits == node.driver.core.run_state.commits[0]
    assert len(commits) == 3


@pytest.mark.asyncio
async def test_a_full_disk_stops_the_run_until_there_is_room(tmp_path: Path) -> None:
    full: list[bool] = []

    def write(fd: int, data: memoryview) -> int:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(fd, data)

    node = Node(ALPHA, tmp_path, join=False, disk=replace(SYSTEM, write=write))
    try:
        await node.start(None, peers=1, outer_steps=10_000)
        await node.until(lambda: node.round >= 2)
        full.append(True)
        await node.until(lambda: node.notes)
        assert "No space left on device" in node.notes[0].text
        reached = node.round
        assert node.driver.core.raft.disk.why
        full.clear()
        # Its election timer must go on while the disk is full: nobody else could lead.
        await node.until(lambda: node.round >= reached + 3, within_s=8)
        assert [note.kind for note in node.notes] == ["disk"]
    finally:
        await node.die()


@pytest.mark.asyncio
async def test_after_all_have_died_they_go_on_from_what_their_disks_have(tmp_path: Path) -> None:
    """The log comes back from the disk, the state from the checkpoint that both have."""
    first = [Node(peer, tmp_path / peer, join=peer != ALPHA) for peer in (ALPHA, BETA)]
    again: list[Node] = []
    try:
        for node, leader in zip(first, (None, first[0]), strict=True):
            await node.start(leader, peers=2, outer_steps=10_000)
        for node in first:
            await node.until(lambda node=node: node.round >= CHECKPOINT_ROUND + 2)
        for old in first:
            await old.die()
            node = Node(old.peer, tmp_path / old.peer, join=True, life=2, kept=old.kept)
            assert node.saved is not None
            node.work.checkpoint = old.work.checkpoint
            again.append(node)
        for node, leader in zip(again, (None, again[0]), strict=True):
            await node.start(leader, peers=2, outer_steps=10_000)
        for node in again:
            await node.until(lambda node=node: node.round >= CHECKPOINT_ROUND + 4)
        agree(again)
        assert [min(node.digests) for node in again] == [CHECKPOINT_ROUND + 1] * 2
        restored = again[0].driver.core.run_state.restored
        assert restored is not None
        assert first[0].kept is not None
        assert restored.versions == first[0].kept.versions
        assert [node.states for node in again] == [[], []]  # Nobody had to send it.
    finally:
        for node in (*first, *again):
            await node.die()


# Damage -----------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_damaged_result_is_dropped_and_counted_and_sent_again() -> None:
    async with running(ALPHA, BETA, outer_steps=4) as nodes:
        _, beta = nodes
        inbound, damaged = beta.driver.data_plane.inbound, list[m.PieceChunk]()
        whole = inbound.arrived

        def arrived(peer: PeerId, chunk: m.PieceChunk) -> None:
            payload = inbound._open[peer][key_of(chunk)]
            if isinstance(chunk, m.ResultChunk) and payload is not None and not damaged:
                damaged.append(chunk)
                payload.piece(chunk.start // PIECE_ELEMENTS)[0] ^= 1
            whole(peer, chunk)

        inbound.arrived = arrived  # type: ignore[method-assign]
        for node in nodes:
            assert node.task is not None
            await asyncio.wait_for(node.task, 20)
            assert node.round == 4
        assert beta.driver.discarded == 1
        agree(nodes)


@pytest.mark.asyncio
async def test_a_slice_that_cannot_be_summed_costs_an_attempt_and_no_process() -> None:
    async with running(ALPHA, BETA, outer_steps=4) as nodes:
        alpha, _ = nodes
        alpha.work.refuses = 1
        for node in nodes:
            assert node.task is not None
            await asyncio.wait_for(node.task, 20)
            assert node.round == 4
        assert alpha.driver.discarded == 1
        assert [note.kind for note in alpha.notes].count("damaged") == 1
        agree(nodes)


@pytest.mark.asyncio
async def test_an_error_of_our_own_arithmetic_is_what_run_raises() -> None:
    async with running(ALPHA, BETA, outer_steps=4) as nodes:
        alpha, _ = nodes
        alpha.work.fails = "the slot is torn"
        assert alpha.task is not None
        with pytest.raises(LowcommError, match="the slot is torn"):
            await asyncio.wait_for(asyncio.shield(alpha.task), 20)


@pytest.mark.asyncio
async def test_what_cannot_belong_to_the_run_gets_no_memory_and_is_counted() -> None:
    async with open_round() as (alpha, plan):
        who = Contributor(BETA, 1, 1, "a" * 32)
        piece = m.ContributionChunk(plan.stamp, 0, who, 0, 0)
        result = m.ResultChunk(plan.stamp, 0, (who,), "b" * 32, 0, 0, 0, 1, False)
        start, stop = plan.parts.borders[:2]
        size = stop - start
        other = ({"run": 1}, {"lineage": 1}, {"fragment": 1}, {"round": plan.stamp.round - 1})
        foreign = [replace(plan.stamp, **one) for one in other]
        bad: list[tuple[PeerId, m.PieceChunk, int]] = [
            (EVE, piece, size),
            (EVE, result, size),
            (BETA, piece, size - 1),
            (BETA, piece, size + 1),
            (BETA, piece, ELEMENTS),
            (BETA, replace(piece, part=40), size),
            *((BETA, replace(piece, stamp=stamp), size) for stamp in foreign),
            (BETA, replace(result, stamp=replace(plan.stamp, view=9)), 1 << 22),
            (BETA, result, size),  # Part 0 is ours: it cannot come from there.
        ]
        inbound, before = alpha.driver.data_plane.inbound, alpha.driver.discarded
        taken = {peer: set(opened) for peer, opened in inbound._open.items()}
        for sender, chunk, total in bad:
            assert not bring(alpha, sender, chunk, total), (sender, chunk, total)
            refused = set(inbound._open.pop(sender, {})) - taken.get(sender, set())
            assert refused == {key_of(chunk)}, "as another connection would find it"
        assert alpha.driver.discarded == before + len(bad)
        told = {x.peer: x.refused_bytes for x in alpha.driver.counters.traffic(0.0)}
        first = min(size, PIECE_ELEMENTS) * ELEMENT_BYTES
        assert told[EVE] == 2 * first
        assert told[BETA] > 0


@pytest.mark.asyncio
@pytest.mark.parametrize("gathers", [False, True])
async def test_a_result_gets_memory_for_as_many_slices_as_can_be_in_it(gathers: bool) -> None:
    async with open_round() as (alpha, plan):
        alpha.work.gathers = gathers
        later = replace(plan.stamp, attempt=plan.stamp.attempt + 1)
        start, stop = plan.parts.borders[1:3]
        for stamp in (plan.stamp, later):  # Of a later log more may be in.
            taken: list[int] = []
            for layers in (0, 1, 2, 3, 4, 5, 512):
                of = (stamp, 1, (), "b" * 32, 0, stop - start, 0, layers, False)
                size = ELEMENT_BYTES * min(stop - start, PIECE_ELEMENTS)
                if alpha.driver.mesh_shell.place(BETA, m.ResultChunk(*of), size) is not None:
                    taken.append(layers)
                alpha.driver.data_plane.inbound.forget(BETA)
            wanted = [1] if not gathers else [2] if stamp == plan.stamp else [1, 2, 3, 4]
            assert taken == wanted


@pytest.mark.asyncio
async def test_padding_is_no_more_than_a_slice_and_is_dropped_without_blame() -> None:
    async with open_round() as (alpha, _):
        driver = alpha.driver
        assert driver.mesh_shell.padding_bytes(BETA) == ELEMENT_BYTES * ELEMENTS // 2
        assert driver.mesh_shell.padding_bytes(EVE) == 0
        receivers = driver.core.run_state.receivers
        alpha.driver.core.run_state.members[EVE] = receivers[BETA]
        assert driver.mesh_shell.padding_bytes(BETA) == 0, "two share the line"
        del alpha.driver.core.run_state.members[EVE]
        (before,), discarded = driver.counters.traffic(time.monotonic()), driver.discarded
        assert driver.mesh_shell.place(BETA, m.Padding(), 1 << 20) is None
        driver.mesh_shell.payload_received(BETA, m.Padding(), 1 << 20, kept=False)
        (after,) = driver.counters.traffic(time.monotonic())
        assert after.received["control"] >= before.received["control"] + (1 << 20)
        assert after.received["payload"] == before.received["payload"]
        assert (after.refused_bytes, driver.discarded) == (before.refused_bytes, discarded)


@pytest.mark.asyncio
async def test_what_was_refused_is_not_taken_later_on_the_same_connection() -> None:
    async with open_round() as (alpha, plan):
        who = Contributor(BETA, 1, 1, "a" * 32)
        false = m.ContributionChunk(plan.stamp, 0, who, 0, plan.parts.borders[1] + 1)
        before = alpha.driver.discarded
        assert alpha.driver.mesh_shell.place(BETA, false, 4) is None
        assert not bring(alpha, BETA, false, plan.parts.borders[1])
        assert alpha.driver.discarded == before + 1


@pytest.mark.asyncio
async def test_what_the_core_does_not_want_is_counted_and_never_stored() -> None:
    async with open_round() as (alpha, plan):
        who, size = Contributor(BETA, 1, 1, "a" * 32), plan.parts.borders[1]
        piece = m.ContributionChunk(plan.stamp, 0, who, 0, 0)
        inbound, before = alpha.driver.data_plane.inbound, alpha.driver.discarded
        first = replace(piece, contributor=replace(who, manifest="b" * 32))
        for chunk in (first, piece):  # Of one peer the first one stays.
            assert bring(alpha, BETA, chunk, size)
        await alpha.until(lambda: not inbound._undecided)
        assert alpha.driver.discarded > before
        assert all(key.contributor != who for key in inbound.slices)


@pytest.mark.asyncio
async def test_a_false_name_is_blamed_and_its_bytes_never_stand_for_the_true_ones() -> None:
    async with open_round() as (alpha, plan):
        false = Contributor(GAMMA, 1, 1, "a" * 32)
        piece = m.ContributionChunk(plan.stamp, 0, false, 0, 0)
        before = alpha.driver.discarded
        assert not bring(alpha, BETA, piece, plan.parts.borders[1]), "it gets no memory"
        await alpha.until(lambda: alpha.notes)
        assert alpha.notes[0].kind == "misbehaviour"
        assert alpha.driver.discarded > before
        assert all(key.contributor != false for key in alpha.driver.data_plane.inbound.slices)


@pytest.mark.asyncio
async def test_memory_of_a_result_is_not_used_again_while_a_step_may_read_it() -> None:
    async with open_round() as (alpha, plan):
        driver, results = alpha.driver, alpha.driver.data_plane.inbound.results
        results[ResultKey(plan.stamp, 0)] = Payload(1, lambda elements: elements, memoryview(b"."))
        alpha.work.due = ([b"."], [b"."])
        gate, ended = threading.Event(), list[object]()
        driver.compute(gate.wait, ended.append)
        driver._do(c.ReleaseRound(0, plan.stamp.round))
        kept = bool(results)
        gate.set()
        await alpha.until(lambda: ended and not results)
        assert (kept, alpha.work.due[0]) == (True, ()), "steps need these bytes"
