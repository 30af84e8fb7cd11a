"""The data plane of one peer without a driver: what is kept for whom, and sums on their way out."""

import asyncio
from dataclasses import replace

from peers.exchange import Exchange
from peers.link import Frame
from peers.pieces import PIECE_ELEMENTS, Encoding, Pool
from protocols import commands as c
from protocols import events as v
from protocols.core import PeerCore
from protocols.errors import LowcommError
from protocols.hellos import Identity
from protocols.ids import PeerId
from protocols.messages import PieceChunk, StateChunk
from tests.peers.payload_room import (
    ALPHA,
    BETA,
    STAMP,
    CodedWork,
    contributor,
    pieces_of,
    result_of,
    summed,
)

ME = PeerId("me.0")
STATE = StateChunk(1, 2, 3, 0, 4, 0, 3)
ELEMENTS = 5 * PIECE_ELEMENTS


class Alone:
    """An exchange whose events and wakes are remembered."""

    def __init__(self) -> None:
        self.events: list[v.Event] = []
        self.woken: list[PeerId] = []
        self.failed: list[LowcommError] = []
        self.notes: list[str] = []
        self.work = CodedWork(ELEMENTS)
        me = Identity(peer=ME, name="me", incarnation=1, address="127.0.0.1:1")
        self.exchange = Exchange(
            PeerCore(me, join=True),
            feed=self.events.append,
            note=self.notes.append,
            failed=self.failed.append,
            state_here=lambda peer, chunk, state: None,
        )
        self.exchange.work = self.exchange.states = self.work
        self.exchange.wake = self.woken.append

    def reduce(self) -> None:
        """A sum of our own contribution only."""
        self.exchange.encoded[0, STAMP.round] = Encoding(self.work, 0, ELEMENTS, Pool())
        terms = (contributor(ME),)
        self.exchange.reduce(c.ReducePart(STAMP, 0, 0, ELEMENTS, terms))
        for peer in (ALPHA, BETA):
            self.exchange.send_result(c.SendResult(peer, STAMP, 0, terms))

    def fetch(self, peer: PeerId) -> list[Frame]:
        """What a link does when it is woken."""
        return list(iter(lambda: self.exchange.next_chunk(peer), None))


def test_what_is_sent_to_nobody_is_not_kept() -> None:
    alone = Alone()
    assert alone.exchange.send_state(ALPHA, STATE, bytes(12))
    assert alone.exchange._outbound == {}
    alone.exchange.meet(ALPHA)
    assert alone.fetch(ALPHA) == [], "nor for whoever comes later"
    alone.exchange.send_state(ALPHA, STATE, b"state of it!")
    assert alone.woken == [ALPHA]
    alone.exchange.forget(ALPHA)
    alone.exchange.meet(ALPHA)
    assert alone.fetch(ALPHA) == [], "the core says again what it still needs"


def test_a_result_goes_out_while_it_is_made() -> None:
    alone, fetched = Alone(), list[PieceChunk]()

    def wake(peer: PeerId) -> None:
        for frame in alone.fetch(peer):
            assert isinstance(frame[0], PieceChunk)
            if peer == ALPHA:
                fetched.append(frame[0])

    async def scenario() -> None:
        for peer in (ALPHA, BETA):
            alone.exchange.meet(peer)
        alone.exchange.wake = wake
        alone.reduce()
        assert 0 < len(fetched) < 5
        assert alone.events == []
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(scenario())
    wanted = summed([alone.work.whole])
    (event,) = alone.events
    assert isinstance(event, v.PartReduced)
    header = replace(result_of(ELEMENTS), contributors=(contributor(ME),))
    assert fetched == [chunk for chunk, _ in pieces_of(header, wanted)]
    assert b"".join(map(bytes, alone.exchange.parts(STAMP, 1))) == wanted
    assert alone.fetch(BETA) == []


def test_what_cannot_be_encoded_for_a_link_is_our_own_failure() -> None:
    alone = Alone()
    alone.exchange.meet(ALPHA)
    alone.exchange.encoded[0, STAMP.round] = Encoding(alone.work, 0, ELEMENTS, Pool())
    alone.work.fails = "no memory of the ranks"
    alone.exchange.send_slice(c.SendSlice(ALPHA, STAMP, 0, 0, ELEMENTS, contributor(ME)))
    assert alone.fetch(ALPHA) == []
    assert [str(error) for error in alone.failed] == ["no memory of the ranks"]


def test_a_commit_and_a_release_leave_nothing() -> None:
    alone = Alone()

    async def scenario() -> None:
        for peer in (ALPHA, BETA):
            alone.exchange.meet(peer)
        alone.reduce()
        alone.exchange.drop_slices(0, STAMP.round)  # Before the sum is whole.
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(scenario())
    assert alone.events == []
    assert alone.fetch(ALPHA) == alone.fetch(BETA) == []
    assert alone.exchange.encoded == {}
    alone.exchange.release(0, STAMP.round)
    assert alone.exchange.inbound.results == {}
