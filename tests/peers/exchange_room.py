"""The data plane of one peer without a driver, for tests of it.

Must NOT hold tests.
"""

from peers.connections.frames import Frame
from peers.exchange.data_plane import DataPlane
from peers.exchange.pieces import PIECE_ELEMENTS, Encoding, Pool
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links.handshake import Identity
from protocols.peer.core import PeerCore
from protocols.types.errors import LowcommError
from protocols.types.ids import PeerId
from tests.peers.payload_room import ALPHA, BETA, STAMP, CodedWork, contributor

ME = PeerId("me.0")
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
        self.data_plane = DataPlane(
            PeerCore(me, join=True),
            feed=self.events.append,
            note=self.notes.append,
            failed=self.failed.append,
        )
        self.data_plane.work = self.data_plane.states = self.work
        self.data_plane.outbounds.wake = self.woken.append

    def reduce(self) -> None:
        """A sum of our own contribution only."""
        self.data_plane.own.encoded[0, STAMP.round] = Encoding(self.work, 0, ELEMENTS, Pool())
        terms = (contributor(ME),)
        self.data_plane.reduce(c.ReducePart(STAMP, 0, 0, ELEMENTS, terms))
        for peer in (ALPHA, BETA):
            self.data_plane.send_result(c.SendResult(peer, STAMP, 0, terms))

    def fetch(self, peer: PeerId) -> list[Frame]:
        """What a link does when it is woken."""
        return list(iter(lambda: self.data_plane.outbounds.next_chunk(peer), None))
