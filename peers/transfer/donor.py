"""The donor's side in bytes: lent states, and the cells that are sent.

A lent state does not change while rounds go on, and is hashed meanwhile. Must NOT decide which peer
gets which cells (the core), nor look into a state.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from peers.exchange.background_rate import BackgroundRate
from peers.exchange.interfaces import Bytes, StateStore
from peers.exchange.outbound import CellStream, Stream
from peers.exchange.pieces import PIECE_ELEMENTS
from peers.transfer.tree_hashing import TreeHashing, cell_of, elements_of, leaves_of, num_cells
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import StateChunk
from protocols.types import PeerId

Lent = tuple[Bytes, ...]


@dataclass(slots=True)
class Copy:
    """A lent state of a fragment, which does not change while it is held."""

    run: int
    lineage: int
    fragment: int
    round: int
    state: tuple[Bytes, ...] = ()
    """Its buffers; empty until it is lent."""
    cuts: set[int] = field(default_factory=set[int])
    """Log indexes of the cuts that share it: two joiners at once may."""
    asked: set[int] = field(default_factory=set[int])
    """Those of `cuts` for which its leaves are wanted."""
    digest: str = ""
    leaves: bytes | None = None
    """None until it is hashed."""


class DonorHost(Protocol):
    """What StateLender needs from its owner. No method may raise or block."""

    @property
    def states(self) -> StateStore: ...

    def feed(self, event: v.Event, /) -> None: ...

    def compute(self, work: Callable[[], Lent], done: Callable[[Lent], None], /) -> None:
        """Run `work` in the worker thread, in order; then `done` in the event loop."""
        ...

    def replace_cells(self, peer: PeerId, stream: Stream | None, /) -> None:
        """Send the peer these cells, and no earlier ones."""
        ...

    def served(self, peer: PeerId, size_bytes: int, /) -> None:
        """The peer needs nothing more; so many bytes of a state were sent."""
        ...


class StateLender:
    """The lent states of one peer."""

    def __init__(self, shell: DonorHost, tree_hashing: TreeHashing, pace: BackgroundRate) -> None:
        self._shell = shell
        self._tree_hashing = tree_hashing
        self._pace = pace
        self._copies: list[Copy] = []
        self._sent_bytes: dict[tuple[PeerId, int], int] = {}
        """Sent bytes by (receiver, cut)."""

    def copy_state(self, command: c.CopyState, *, run: int, lineage: int) -> None:
        """Borrow the state, or share a copy of the same version."""
        of = (run, lineage, command.fragment, command.round)
        for known in self._copies:
            if (known.run, known.lineage, known.fragment, known.round) == of:
                known.cuts.add(command.cut_index)
                if known.state:
                    self._copied(known, command.cut_index)
                return
        copy = Copy(*of, cuts={command.cut_index})
        self._copies.append(copy)
        states, fragment, round_ = self._shell.states, command.fragment, command.round

        def lent(state: Lent) -> None:
            copy.state = state
            if not (state and copy.cuts):
                self._copies.remove(copy)  # Our state had changed by then, or no receiver waits.
            for index in sorted(copy.cuts):
                self._copied(copy, index)

        self._shell.compute(lambda: states.lend_state(fragment, round_), lent)

    def _copied(self, copy: Copy, index: int) -> None:
        self._shell.feed(v.StateCopied(index, copy.fragment, num_cells(copy.state)))

    def hash(self, command: c.HashState) -> None:
        """Hash a copy, once for all cuts that share it."""
        copy = self._of(command.cut_index).get(command.fragment)
        if copy is None:
            return
        is_first = not copy.asked
        copy.asked.add(command.cut_index)
        if copy.leaves is not None:
            self._hashed(copy, [command.cut_index])
        elif is_first:
            states, state = self._shell.states, copy.state
            of = (copy.fragment, copy.round, state)
            give_way, go_on = self._pace.giving_way(), self._tree_hashing.go_on

            def before_cell() -> None:
                give_way()
                go_on()

            def found(made: tuple[str, bytes]) -> None:
                copy.digest, copy.leaves = made
                self._hashed(copy, sorted(copy.asked))

            self._tree_hashing.submit(
                lambda: (states.check_state(*of, go_on), leaves_of(state, before_cell)), found
            )

    def _hashed(self, copy: Copy, cuts: Iterable[int]) -> None:
        for index in cuts:
            of = (index, copy.fragment, copy.digest)
            self._shell.feed(v.StateHashed(*of, copy.leaves or b""))

    def _of(self, index: int) -> dict[int, Copy]:
        """By fragment, the copies of a cut."""
        return {copy.fragment: copy for copy in self._copies if index in copy.cuts}

    def serve(self, command: c.ServeCells) -> None:
        """Send these cells in place of earlier ones."""
        found: list[tuple[StateChunk, memoryview]] = []
        held = self._of(command.cut_index)
        for span in command.cells:
            copy = held.get(span.fragment)
            if copy is None:
                continue
            elements = elements_of(copy.state)
            of = (copy.run, copy.lineage, command.cut_index, copy.fragment, copy.round)
            for cell in range(span.first, span.stop):
                chunk = StateChunk(*of, cell * PIECE_ELEMENTS, elements)
                found.append((chunk, cell_of(copy.state, cell)))
        key = (command.peer, command.cut_index)
        self._sent_bytes.setdefault(key, 0)

        def count(size: int) -> None:
            if key in self._sent_bytes:
                self._sent_bytes[key] += size

        self._shell.replace_cells(command.peer, CellStream(found, self._pace, count))

    def release(self, command: c.ReleaseCopy) -> None:
        """The receiver has its state, or does not need it any more."""
        self._shell.replace_cells(command.peer, None)
        for copy in list(self._copies):
            copy.cuts.discard(command.cut_index)
            copy.asked.discard(command.cut_index)
            if not copy.cuts and copy.state:
                self._copies.remove(copy)
        sent_bytes = self._sent_bytes.pop((command.peer, command.cut_index), 0)
        if sent_bytes:
            self._shell.served(command.peer, sent_bytes)
