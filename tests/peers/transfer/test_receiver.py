"""Cells on their way to us: what gets memory, where it goes, and what is kept."""

import asyncio
import os
from dataclasses import replace

from peers.exchange.pieces import PIECE_ELEMENTS
from peers.transfer.receiver import COMING_MAX, IncomingTransfer
from peers.transfer.tree_hashing import TreeHashing, digest_of
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages.peer import StateChunk
from protocols.messages.transfer import CellSpan
from protocols.state.parts import ELEMENT_BYTES
from protocols.types.ids import PeerId, Version
from tests.peers.xor_node import XorWork

ALPHA, BETA, EVE = PeerId("alpha.1"), PeerId("beta.2"), PeerId("eve.9")
CELL_BYTES = PIECE_ELEMENTS * ELEMENT_BYTES
EXPECT = c.ExpectState(7, (ALPHA, BETA), (Version(0, 5, ""),))
ALL = c.ExpectCells(7, 0, (CellSpan(0, 0, 3),))


class Joiner:
    """A transfer, and a core that believes whom it is told to."""

    def __init__(self) -> None:
        self.work = XorWork("joiner")
        self.state = os.urandom(len(self.work.state))
        self.events = asyncio.Queue[v.Event]()
        self.tree_hashing = TreeHashing()
        self.transfer = IncomingTransfer(
            lambda: self.work, self.events.put_nowait, self.tree_hashing
        )
        self.transfer.expect(EXPECT, 1.0)
        self.transfer.expect_cells(ALL)

    def chunk(self, cell: int) -> StateChunk:
        elements = len(self.state) // ELEMENT_BYTES
        return StateChunk(1, 2, 7, 0, 5, cell * PIECE_ELEMENTS, elements)

    def cell(self, cell: int) -> bytes:
        return self.state[CELL_BYTES * cell : CELL_BYTES * (cell + 1)]

    def place(self, peer: PeerId, chunk: StateChunk, size: int | None = None) -> memoryview | None:
        cell = chunk.start // PIECE_ELEMENTS
        return self.transfer.place(peer, chunk, len(self.cell(cell)) if size is None else size)

    async def bring(self, peer: PeerId, cell: int, *, believe: bool = True) -> v.CellReceived:
        """It arrives, and the core looks at it."""
        place = self.place(peer, self.chunk(cell))
        assert place is not None
        place[:] = self.cell(cell)
        self.transfer.arrived(peer, self.chunk(cell))
        event = await asyncio.wait_for(self.events.get(), 10)
        assert isinstance(event, v.CellReceived)
        kept = c.KeepCell(peer, 7, 0, cell)
        self.transfer.decided(event, [kept] if believe else [])
        return event


def test_a_state_comes_cell_by_cell_from_several_donors() -> None:
    async def scenario() -> None:
        joiner = Joiner()
        events = [await joiner.bring(peer, x) for peer, x in ((BETA, 2), (ALPHA, 0), (BETA, 1))]
        assert [(x.sender, x.cell) for x in events] == [(BETA, 2), (ALPHA, 0), (BETA, 1)]
        assert [x.digest for x in events] == [digest_of(joiner.cell(x)) for x in (2, 0, 1)]
        assert bytes(joiner.transfer.state(0)) == joiner.state
        last = len(joiner.cell(2))
        assert joiner.transfer.cut.by_donor == {ALPHA: CELL_BYTES, BETA: CELL_BYTES + last}
        assert joiner.transfer.adopted()
        assert joiner.place(ALPHA, joiner.chunk(0)) is None, "it is over"
        joiner.tree_hashing.close()

    asyncio.run(scenario())


def test_nothing_else_gets_memory() -> None:
    joiner = Joiner()
    good = joiner.chunk(1)
    for peer, chunk, size in (
        (EVE, good, None),
        (ALPHA, replace(good, cut_index=6), None),
        (ALPHA, replace(good, fragment=1), None),
        (ALPHA, replace(good, start=5), None),
        (ALPHA, replace(good, start=3 * PIECE_ELEMENTS), 4),
        (ALPHA, replace(good, elements=good.elements + 1), None),
        (ALPHA, good, CELL_BYTES - 4),
    ):
        refused = joiner.transfer.refused
        assert joiner.place(peer, chunk, size) is None
        assert joiner.transfer.refused == refused + 1
    assert joiner.place(ALPHA, good) is not None
    assert joiner.place(ALPHA, good) is None, "it is on its way by another connection"


def test_what_is_here_cannot_be_written_again_and_what_was_a_lie_can() -> None:
    async def scenario() -> None:
        joiner = Joiner()
        late = joiner.place(BETA, joiner.chunk(0))
        assert late is not None
        await joiner.bring(ALPHA, 0)
        late[:] = bytes(CELL_BYTES)
        assert bytes(joiner.transfer.state(0))[:CELL_BYTES] == joiner.cell(0)
        assert joiner.place(ALPHA, joiner.chunk(0)) is None
        await joiner.bring(ALPHA, 1, believe=False)
        assert joiner.transfer.cut.by_donor[ALPHA] == CELL_BYTES
        await joiner.bring(BETA, 1)
        assert joiner.transfer.cut.by_donor[BETA] == CELL_BYTES
        joiner.tree_hashing.close()

    asyncio.run(scenario())


def test_a_connection_that_ends_takes_with_it_only_what_is_not_whole() -> None:
    async def scenario() -> None:
        joiner = Joiner()
        assert joiner.place(ALPHA, joiner.chunk(1)) is not None
        place = joiner.place(ALPHA, joiner.chunk(0))
        assert place is not None
        place[:] = joiner.cell(0)
        joiner.transfer.arrived(ALPHA, joiner.chunk(0))
        joiner.transfer.forget(ALPHA)
        joiner.transfer.arrived(ALPHA, joiner.chunk(1))
        event = await asyncio.wait_for(joiner.events.get(), 10)
        assert isinstance(event, v.CellReceived)
        assert event.cell == 0
        await asyncio.sleep(0.05)
        assert joiner.events.empty()
        await joiner.bring(ALPHA, 1)
        joiner.tree_hashing.close()

    asyncio.run(scenario())


def test_cells_of_an_earlier_cut_stay_if_the_core_does_not_expect_them_again() -> None:
    async def scenario() -> None:
        joiner = Joiner()
        for cell in (0, 1):
            await joiner.bring(ALPHA, cell)
        joiner.transfer.expect(replace(EXPECT, cut_index=9), 2.0)
        assert joiner.place(ALPHA, replace(joiner.chunk(2), cut_index=9)) is None, "no tree yet"
        joiner.transfer.expect_cells(c.ExpectCells(9, 0, (CellSpan(0, 1, 3),)))
        assert joiner.place(ALPHA, replace(joiner.chunk(0), cut_index=9)) is None
        assert joiner.place(ALPHA, replace(joiner.chunk(1), cut_index=9)) is not None
        assert bytes(joiner.transfer.state(0))[:CELL_BYTES] == joiner.cell(0)
        joiner.tree_hashing.close()

    asyncio.run(scenario())


def test_memory_is_bounded_for_each_donor() -> None:
    joiner = Joiner()
    many = COMING_MAX + 5
    joiner.work.state = bytes(CELL_BYTES * many)
    joiner.transfer.expect_cells(c.ExpectCells(7, 1, (CellSpan(1, 0, many),)))
    chunk = StateChunk(1, 2, 7, 1, 5, 0, PIECE_ELEMENTS * many)
    places = [
        joiner.transfer.place(peer, replace(chunk, start=x * PIECE_ELEMENTS), CELL_BYTES)
        for peer in (ALPHA, BETA)
        for x in range(many)
    ]
    assert sum(place is not None for place in places) == 2 * COMING_MAX
