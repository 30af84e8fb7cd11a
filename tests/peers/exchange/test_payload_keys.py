"""Payloads are named by their lineage, too: what a Restore ends is told from what follows it."""

import asyncio
from dataclasses import replace

import pytest

from peers.exchange.payload_keys import ResultKey, slice_key
from peers.exchange.pieces import Payload
from protocols.interface import commands as c
from protocols.messages import log_entries as e
from tests.peers import xor_node
from tests.peers.exchange_room import ELEMENTS, ME, Alone
from tests.peers.payload_room import ALPHA, BETA, STAMP, contributor, size_of


def test_what_another_lineage_left_is_dropped() -> None:
    """A Restore takes the run back by many rounds: nobody waits until their numbers come again."""
    alone = Alone()
    after = replace(STAMP, lineage=STAMP.lineage + 1, round=1)

    async def scenario() -> None:
        for peer in (ALPHA, BETA):
            alone.data_plane.meet(peer, 1)
        alone.reduce()
        alone.data_plane.send_slice(c.SendSlice(ALPHA, STAMP, 0, 0, ELEMENTS, contributor(ME)))
        inbound = alone.data_plane.inbound
        for stamp in (STAMP, after):
            buffer = memoryview(bytearray(size_of(ELEMENTS)))
            payload = Payload(ELEMENTS, size_of, buffer)
            inbound.slices[slice_key(stamp, 0, contributor(BETA))] = payload
            inbound.results[ResultKey(stamp, 1)] = payload
            inbound._open.setdefault(BETA, {})[ResultKey(stamp, 2)] = payload
        alone.data_plane.lineage_changed(after.lineage)
        for _ in range(10):
            await asyncio.sleep(0)
        assert list(inbound.slices) == [slice_key(after, 0, contributor(BETA))]
        assert list(inbound.results) == [ResultKey(after, 1)]
        assert list(inbound._open[BETA]) == [ResultKey(after, 2)]

    asyncio.run(scenario())
    assert alone.events == []
    assert alone.fetch(ALPHA) == alone.fetch(BETA) == []
    assert alone.data_plane.own.encoded == {}


@pytest.mark.asyncio
async def test_a_restore_is_heard_of_in_the_turn_of_the_work() -> None:
    async with xor_node.open_round() as (alpha, _):
        await alpha.until(lambda: bool(alpha.driver.data_plane.own.encoded))
        lineage = alpha.driver.core.run_state.lineage
        entry = e.Left(xor_node.BETA, "over")
        alpha.driver._do(c.Applied(8, entry, lineage))
        alpha.driver._do(c.Encode(0, 77))
        alpha.driver._do(c.Applied(9, entry, lineage + 1))
        alpha.driver._do(c.Encode(0, 78))
        await alpha.until(lambda: (0, 78) in alpha.driver.data_plane.own.encoded)
        assert list(alpha.driver.data_plane.own.encoded) == [(0, 78)]
