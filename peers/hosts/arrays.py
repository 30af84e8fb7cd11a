"""Contributions and results that travel between the memories of two hosts, in pieces.

The daemon's host and the other one each have a memory of whole fragments (peers/ipc); only the
parts that ranks of the other host write or read are ever sent. Both ends know these parts, so a
piece carries values alone. Must NOT send a frame, nor decide when a fragment is contributed.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence

from peers.hosts.frames import Frame, FrameKind
from peers.ipc.messages import Contributed, Result
from peers.ipc.msgpack_records import LinkError
from peers.ipc.parts import Runs, unpack_parts
from peers.ipc.shared_memory import Slots


class Arriving:
    """The pieces of one contribution or result, of which some have come."""

    def __init__(self, generation: int, runs: Iterable[Runs]) -> None:
        self.generation = generation
        self._pieces = itertools.chain.from_iterable(run.pieces() for run in runs)
        self._next = next(self._pieces, None)

    @property
    def is_whole(self) -> bool:
        return self._next is None

    def place_next(self, values: bytes, place: memoryview) -> None:
        """Put the next piece into the whole fragment, uint8 [fragment_bytes]. Raises LinkError."""
        if self._next is None:
            raise LinkError("more pieces than the part of a rank has")
        self._next.scatter(place, memoryview(values))
        self._next = next(self._pieces, None)


class HostParts:
    """The parts of fragments that the ranks of one host write and read, in one attempt."""

    def __init__(self, slots: Slots) -> None:
        self._slots, self._shape = slots, slots.shape
        self._written: dict[tuple[int, int], list[Runs]] = {}
        """By rank and fragment."""
        self._read: dict[int, dict[Runs, None]] = {}
        """By fragment, in order; several ranks may read the same part."""
        self._contributions: dict[tuple[int, int], Arriving] = {}
        """By rank and fragment, the last one that came or comes."""
        self._results: dict[tuple[int, int], Arriving] = {}
        """By fragment and place."""
        self._sent: dict[int, int] = {}
        """By fragment, the generation of the last result that is sent."""

    def add_parts(self, rank: int, packed: bytes) -> None:
        """The parts that this rank has reported. Raises LinkError."""
        for run in unpack_parts(packed, self._shape.fragment_bytes):
            if run.writes:
                self._written.setdefault((rank, run.fragment), []).append(run)
            shared = Runs(run.fragment, run.start, run.length, run.step, run.count, False)
            self._read.setdefault(run.fragment, {})[shared] = None

    # The host of the ranks ------------------------------------------------------------------

    def contribution(self, rank: int, message: Contributed) -> Iterator[Frame]:
        """The pieces of the contribution of this rank, made while they are iterated over. Raises
        LinkError if the rank writes the next one already."""
        slots, fragment, generation = self._slots, message.fragment, message.generation
        for run in self._written.get((rank, fragment), ()):
            for piece in run.pieces():
                values = piece.gather(slots.contribution(fragment))
                if not slots.all_done(fragment, generation, ranks=(rank,)):
                    raise LinkError(f"rank {rank} wrote over a contribution before it was sent")
                kind = FrameKind.CONTRIBUTED_PIECE
                yield Frame(kind, values, rank, fragment, generation)

    def take_result_piece(self, frame: Frame) -> None:
        """Put it into this host's memory. Raises LinkError; SlotsError if there is no memory."""
        fragment, place = self._check(frame, frame.rank), frame.rank
        arriving = self._results.get((fragment, place))
        if arriving is None or arriving.generation != frame.generation:
            arriving = Arriving(frame.generation, self._read.get(fragment, ()))
            self._results[fragment, place] = arriving
            self._slots.begin_result(fragment, place)
        arriving.place_next(frame.payload, self._slots.result(fragment, place))

    def publish(self, result: Result) -> None:
        """All pieces of this result have come: the ranks may read it. Raises LinkError if not."""
        fragment, place, generation = result.fragment, result.place, result.generation
        if self._read.get(fragment):
            arriving = self._results.get((fragment, place))
            if arriving is None or arriving.generation != generation or not arriving.is_whole:
                raise LinkError(f"result {generation} of fragment {fragment} is not whole")
        self._slots.publish_result(fragment, place, generation)

    # The daemon's host ----------------------------------------------------------------------

    def take_contribution_piece(self, frame: Frame) -> None:
        """Put it into the node's memory. Raises LinkError."""
        key = frame.rank, self._check(frame, 0)
        arriving = self._contributions.get(key)
        if arriving is None or arriving.generation != frame.generation:
            arriving = Arriving(frame.generation, self._written.get(key, ()))
            self._contributions[key] = arriving
        arriving.place_next(frame.payload, self._slots.contribution(frame.fragment))

    def complete(self, rank: int, message: Contributed) -> None:
        """All pieces of this contribution have come: set its flag. Raises LinkError if not."""
        fragment, generation = message.fragment, message.generation
        if fragment >= len(self._shape.fragment_bytes):
            return  # It is refused as that of a rank on this host is.
        if self._written.get((rank, fragment)):
            arriving = self._contributions.get((rank, fragment))
            if arriving is None or arriving.generation != generation or not arriving.is_whole:
                raise LinkError(f"rank {rank} has not sent all of fragment {fragment}")
        self._slots.set_done(fragment, generation, rank)

    def result(self, result: Result) -> Iterator[Frame]:
        """The pieces of a result, made while they are iterated over; none if another rank of the
        host got it before. Raises LinkError if a later one is written over it."""
        fragment, place, generation = result.fragment, result.place, result.generation
        if self._sent.get(fragment) == generation:
            return
        self._sent[fragment] = generation
        for run in self._read.get(fragment, ()):
            for piece in run.pieces():
                values = piece.gather(self._slots.result(fragment, place))
                if self._slots.result_generation(fragment, place) != generation:
                    raise LinkError(f"result {generation} of fragment {fragment} was overwritten")
                yield Frame(FrameKind.RESULT_PIECE, values, place, fragment, generation)

    def take_steps(self, steps: Sequence[int], *, first: int) -> None:
        """Copy the step counters of the host's ranks, the first of them of rank `first`."""
        for rank, step in enumerate(steps, start=first):
            self._slots.count_step(rank, step)

    def _check(self, frame: Frame, place: int) -> int:
        """The fragment of the piece. Raises LinkError."""
        shape = self._shape
        places = shape.copies + bool(shape.moves_bytes)
        if frame.fragment >= len(shape.fragment_bytes) or place >= places:
            raise LinkError(f"a piece of fragment {frame.fragment}, place {place}")
        return frame.fragment
