"""The receiver's side in bytes: the cells of a cut's state, from several donors at once.

A cell arrives in a buffer of its own, is hashed there, and is copied to its place once the core has
accepted it, so that no peer can write into checked data. Must NOT look into a state, nor decide
which donor gives it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from peers.exchange.interfaces import StateStore
from peers.exchange.pieces import PIECE_ELEMENTS, Pool
from peers.transfer.tree_hashing import TreeHashing, digest_of
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import StateChunk
from protocols.state import ELEMENT_BYTES
from protocols.types import PeerId

COMING_MAX = 32
"""Cells of one donor that are arriving or not handled yet: twice a request. Further ones are
dropped and requested again."""
Cell = tuple[int, int]
"""(fragment, index of the cell)."""


@dataclass(slots=True)
class IncomingFragment:
    """The arriving state of a fragment."""

    elements: int
    buffer: memoryview
    lacking: set[int] = field(default_factory=set[int])
    """Cells that are missing and may come."""


@dataclass(slots=True)
class IncomingCut:
    """A cut of which this peer receives the state."""

    index: int = 0
    """Index of the cut's log entry."""
    donors: tuple[PeerId, ...] = ()
    """Peers that may send cells; () once all fragments are adopted."""
    since: float = 0.0
    """When the Cut was read."""
    unadopted: int = 0
    """Number of fragments that are not adopted yet."""
    by_donor: dict[PeerId, int] = field(default_factory=dict[PeerId, int])
    """By donor, its bytes that were kept."""


class IncomingTransfer:
    """The transfer to this peer, for all of its cuts: cells of one cut may belong to the next one
    too."""

    def __init__(
        self,
        states: Callable[[], StateStore],
        feed: Callable[[v.Event], None],
        tree_hashing: TreeHashing,
    ) -> None:
        self._states = states
        self._feed = feed
        self._tree_hashing = tree_hashing
        self._pool = Pool()
        self.cut = IncomingCut()
        """The newest one."""
        self.refused = 0
        """Number of cells that were not requested, or here already."""
        self._incoming: dict[int, IncomingFragment] = {}
        self._coming: dict[tuple[PeerId, Cell], memoryview] = {}
        self._here: dict[tuple[PeerId, Cell], memoryview] = {}
        """Cells that are hashed or being hashed, and not handled by the core yet."""

    # Commands -------------------------------------------------------------------------------

    def expect(self, command: c.ExpectState, now: float) -> None:
        """This peer has a cut."""
        donors, fragments = command.donors, len(command.versions)
        kept = dict.fromkeys(donors, 0)
        self.cut = IncomingCut(command.cut_index, donors, now, fragments, kept)
        for incoming in self._incoming.values():
            incoming.lacking.clear()

    def expect_cells(self, command: c.ExpectCells) -> None:
        """These cells are missing; all others of the fragment are here."""
        states = self._states()
        size = states.state_bytes(command.fragment)
        incoming = self._incoming.get(command.fragment)
        if incoming is None:
            incoming = IncomingFragment(size // ELEMENT_BYTES, states.arrays.buffer(size))
            self._incoming[command.fragment] = incoming
        incoming.lacking = {x for span in command.cells for x in range(span.first, span.stop)}

    def decided(self, event: v.CellReceived, commands: Sequence[c.Command]) -> None:
        """The core has handled a cell: copy it to its place, or drop it."""
        cell = (event.fragment, event.cell)
        piece = self._here.pop((event.sender, cell))
        kept = c.KeepCell(event.sender, event.cut_index, *cell) in commands
        if kept:
            incoming, start = self._incoming[event.fragment], event.cell * PIECE_ELEMENTS
            first = ELEMENT_BYTES * start
            incoming.buffer[first : first + piece.nbytes] = piece
            incoming.lacking.discard(event.cell)
            self.cut.by_donor[event.sender] += piece.nbytes
        else:
            self.refused += 1
        self._pool.give(piece)

    def state(self, fragment: int) -> memoryview:
        """The state of a fragment of which all cells are here."""
        return self._incoming[fragment].buffer

    def adopted(self) -> bool:
        """A fragment's state was adopted; True if it was the cut's last one: then all cells are
        freed."""
        self.cut.unadopted -= 1
        if not self.cut.unadopted:
            self._incoming.clear()
            self.cut.donors = ()
            self._pool = Pool()
        return not self.cut.unadopted

    # The link's side ------------------------------------------------------------------------

    def place(self, peer: PeerId, chunk: StateChunk, size: int) -> memoryview | None:
        """The memory for a cell; None: drop it."""
        cell = self._lacks(peer, chunk, size)
        coming = sum(sender == peer for sender, _ in (*self._coming, *self._here))
        if cell is None or coming >= COMING_MAX or (peer, cell) in self._coming:
            self.refused += 1
            return None
        if (peer, cell) in self._here:
            return None
        self._coming[peer, cell] = piece = self._pool.take(size)
        return piece

    def _lacks(self, peer: PeerId, chunk: StateChunk, size: int) -> Cell | None:
        """The missing cell of this chunk; None unless it is from a donor of the newest cut."""
        incoming = self._incoming.get(chunk.fragment)
        number, rest = divmod(chunk.start, PIECE_ELEMENTS)
        if incoming is None or peer not in self.cut.donors or chunk.cut_index != self.cut.index:
            return None
        elements = min(PIECE_ELEMENTS, incoming.elements - chunk.start)
        fits = not rest and size == ELEMENT_BYTES * elements and chunk.elements == incoming.elements
        return (chunk.fragment, number) if fits and number in incoming.lacking else None

    def arrived(self, peer: PeerId, chunk: StateChunk) -> None:
        """The cell has arrived."""
        cell = (chunk.fragment, chunk.start // PIECE_ELEMENTS)
        piece = self._coming.pop((peer, cell), None)
        if piece is None:
            return
        self._here[peer, cell] = piece
        self._tree_hashing.submit(
            lambda: digest_of(piece),
            lambda digest: self._feed(v.CellReceived(peer, chunk.cut_index, *cell, digest)),
        )

    def forget(self, peer: PeerId) -> None:
        """The peer is disconnected: complete cells are handled, others are lost."""
        for key in [key for key in self._coming if key[0] == peer]:
            del self._coming[key]
