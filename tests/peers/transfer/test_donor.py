"""Copies for joiners: made once, hashed beside the rounds, and sent cell by cell."""

import asyncio
import os
from collections.abc import Callable

from peers.exchange.background_rate import BackgroundRate
from peers.exchange.interfaces import StateStore
from peers.exchange.outbound import Stream
from peers.exchange.pieces import PIECE_ELEMENTS
from peers.transfer.donor import Lent, StateLender
from peers.transfer.tree_hashing import TreeHashing, leaves_of
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages.peer import StateChunk
from protocols.messages.transfer import CellSpan
from protocols.state.parts import ELEMENT_BYTES
from protocols.types.ids import PeerId
from tests.peers.xor_node import XorWork, digest

ALPHA, BETA = PeerId("alpha.1"), PeerId("beta.2")
CELL_BYTES = PIECE_ELEMENTS * ELEMENT_BYTES


class Donor:
    """The shell of a donation; its worker thread is at rest until `works`."""

    def __init__(self) -> None:
        self.work = XorWork("donor")
        self.work.state, self.work.round = os.urandom(len(self.work.state)), 5
        self.events = asyncio.Queue[v.Event]()
        self.jobs: list[Callable[[], None]] = []
        self.streams: dict[PeerId, Stream | None] = {}
        self.told: list[tuple[PeerId, int]] = []
        self.tree_hashing = TreeHashing()
        self.pace = BackgroundRate(lambda: None)
        self.state_lender = StateLender(self, self.tree_hashing, self.pace)

    @property
    def states(self) -> StateStore:
        return self.work

    def feed(self, event: v.Event, /) -> None:
        self.events.put_nowait(event)

    def compute(self, work: Callable[[], Lent], done: Callable[[Lent], None], /) -> None:
        self.jobs.append(lambda: done(work()))

    def replace_cells(self, peer: PeerId, stream: Stream | None, /) -> None:
        self.streams[peer] = stream

    def served(self, peer: PeerId, size_bytes: int, /) -> None:
        self.told.append((peer, size_bytes))

    def copies(self, index: int) -> None:
        self.state_lender.copy_state(c.CopyState(index, 0, 5), run=1, lineage=2)

    def works(self) -> None:
        """All that the worker thread has to do."""
        while self.jobs:
            self.jobs.pop(0)()

    async def hears(self) -> v.Event:
        return await asyncio.wait_for(self.events.get(), 10)

    def sends(self, peer: PeerId) -> list[tuple[StateChunk, bytes]]:
        stream, found = self.streams[peer], list[tuple[StateChunk, bytes]]()
        while (
            stream is not None and not stream.is_complete and (frame := stream.next()) is not None
        ):
            assert isinstance(frame[0], StateChunk)
            found.append((frame[0], bytes(frame[1])))
        return found


def test_a_copy_is_told_of_and_hashed_when_that_is_wanted() -> None:
    async def scenario() -> None:
        donor = Donor()
        donor.copies(7)
        donor.works()
        assert await donor.hears() == v.StateCopied(7, 0, 3)
        state = donor.work.state
        donor.state_lender.hash(c.HashState(7, 0))
        donor.copies(9)
        assert await donor.hears() == v.StateCopied(9, 0, 3)
        donor.state_lender.hash(c.HashState(9, 0))
        said = [await donor.hears(), await donor.hears()]
        assert said == [v.StateHashed(x, 0, digest(state), leaves_of([state])) for x in (7, 9)]
        assert len(donor.state_lender._copies) == 1, "two joiners at once share it"
        donor.copies(11)
        donor.state_lender.hash(c.HashState(11, 0))
        assert await donor.hears() == v.StateCopied(11, 0, 3)
        assert await donor.hears() == v.StateHashed(11, 0, digest(state), leaves_of([state]))
        donor.tree_hashing.close()

    asyncio.run(scenario())


def test_what_is_another_state_by_then_is_no_copy() -> None:
    async def scenario() -> None:
        donor = Donor()
        donor.copies(7)
        donor.work.round = 6
        donor.works()
        assert await donor.hears() == v.StateCopied(7, 0, 0)
        assert donor.state_lender._copies == []
        donor.state_lender.hash(c.HashState(7, 0))
        assert donor.events.empty()
        donor.tree_hashing.close()

    asyncio.run(scenario())


def test_cells_are_sent_in_the_order_in_which_they_are_wanted() -> None:
    async def scenario() -> None:
        donor = Donor()
        donor.copies(7)
        donor.works()
        state, elements = donor.work.state, len(donor.work.state) // ELEMENT_BYTES
        donor.work.state, donor.work.round = bytes(len(state)), 6
        donor.state_lender.serve(c.ServeCells(BETA, 7, (CellSpan(0, 2, 3), CellSpan(0, 0, 1))))
        found = donor.sends(BETA)
        assert [chunk.start for chunk, _ in found] == [2 * PIECE_ELEMENTS, 0]
        assert {chunk.elements for chunk, _ in found} == {elements}
        assert [cell for _, cell in found] == [state[2 * CELL_BYTES :], state[:CELL_BYTES]]
        assert found[1][0] == StateChunk(1, 2, 7, 0, 5, 0, elements)
        donor.state_lender.release(c.ReleaseCopy(BETA, 7))
        assert donor.told == [(BETA, sum(len(cell) for _, cell in found))]
        assert donor.streams[BETA] is None
        assert donor.state_lender._copies == []
        donor.tree_hashing.close()

    asyncio.run(scenario())


def test_a_copy_stays_as_long_as_anybody_needs_it() -> None:
    async def scenario() -> None:
        donor = Donor()
        for index in (7, 9):
            donor.copies(index)
        donor.works()
        donor.state_lender.release(c.ReleaseCopy(ALPHA, 7))
        assert donor.told == [], "it got nothing"
        donor.state_lender.serve(c.ServeCells(BETA, 9, (CellSpan(0, 0, 1),)))
        assert len(donor.sends(BETA)) == 1
        donor.state_lender.serve(c.ServeCells(ALPHA, 7, (CellSpan(0, 0, 1),)))
        assert donor.sends(ALPHA) == []
        donor.tree_hashing.close()

    asyncio.run(scenario())


def test_a_copy_that_nobody_waits_for_when_it_is_made_is_dropped() -> None:
    donor = Donor()
    donor.copies(7)
    donor.state_lender.release(c.ReleaseCopy(BETA, 7))
    donor.works()
    assert donor.events.empty()
    assert donor.state_lender._copies == []


def test_nobody_is_told_of_a_copy_that_was_released_while_it_was_hashed() -> None:
    async def scenario() -> None:
        donor = Donor()
        donor.copies(7)
        donor.works()
        assert await donor.hears() == v.StateCopied(7, 0, 3)
        donor.state_lender.hash(c.HashState(7, 0))
        donor.state_lender.release(c.ReleaseCopy(BETA, 7))
        donor.tree_hashing.submit(lambda: None, lambda _: donor.feed(v.DeadlineReached()))
        assert await donor.hears() == v.DeadlineReached()
        assert donor.state_lender._copies == []
        donor.tree_hashing.close()

    asyncio.run(scenario())


def test_cells_give_way_to_payload() -> None:
    async def scenario() -> None:
        donor = Donor()
        donor.copies(7)
        donor.works()
        donor.state_lender.serve(c.ServeCells(BETA, 7, (CellSpan(0, 0, 3),)))
        donor.pace.moved(9 * CELL_BYTES)
        assert len(donor.sends(BETA)) == 1
        donor.pace.close()
        donor.tree_hashing.close()

    asyncio.run(scenario())
