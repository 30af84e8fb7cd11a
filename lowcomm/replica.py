"""The outer state of one node, and all arithmetic that the daemon does on it.

Implements peers.work.Work with numpy, piece by piece. The ranks own the local parameters; this
owns the outer ones, their momentum, and the version that the ranks started from. Must NOT import
torch or know of connections.

Two threads: the loop's encodes and reduces, the worker's does the rest, each with scratch of its
own. What is encoded is made from arrays that never change; only the next version of the outer
parameters is made by both, under a lock for which the loop's thread never waits.
"""

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lowcomm import outer
from lowcomm.checkpoint import CheckpointError, newest_checkpoint, read_checkpoint
from lowcomm.codecs import direct
from lowcomm.methods.base import Method
from lowcomm.outer import F32
from peers.pieces import PIECE_ELEMENTS, spans
from peers.slots import SlotsShape
from peers.work import Bytes
from protocols.errors import ConfigError, LowcommError
from protocols.ids import Contributor, Stamp, TensorSpec

ARRAYS_PER_FRAGMENT = 15
"""Fragment-sized fp32 arrays at the busiest moment: outer, momentum, base (3), the four slots of
shared memory, an encoded contribution, the slices of our part, two results, a state copied for a
joiner and one for a checkpoint (2 each)."""


class Scratch:
    """Arrays for pieces, made when they are first needed."""

    def __init__(self) -> None:
        self._pieces: list[F32] = []

    def piece(self, number: int, elements: int) -> F32:
        """fp32 [elements]; what is in it is anybody's guess."""
        while len(self._pieces) <= number:
            self._pieces.append(np.empty(PIECE_ELEMENTS, np.float32))
        return self._pieces[number][:elements]


class LayoutError(LowcommError):
    """These tensors do not fill their fragments: which one, and where it should be."""


@dataclass(slots=True)
class Ahead:
    """What of the next version is made, from a result that may be committed."""

    stamp: Stamp
    made: dict[int, Bytes] = field(default_factory=dict[int, Bytes])
    """By first element of each piece: the part that it was made from."""
    digests: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """Of the cells that are made, by first element."""


@dataclass(slots=True)
class FragmentState:
    """All arrays are fp32, 1-D, of the fragment's size P."""

    outer_P: F32
    momentum_P: F32
    next_P: F32
    """Where the next version of the outer parameters is made; it takes the place of `outer_P`."""
    base_P: F32
    """The outer parameters that the ranks' present work started from: `outer_P`, or those of an
    older version. Never written to."""
    local_P: F32 | None = None
    """The ranks' parameters, in the shared memory slot of their last contribution."""
    given: tuple[F32, F32] | None = None
    """The base and the local parameters that `encode` is about."""
    version: int = 0
    """The last round that `outer_P` contains."""
    digest: str = ""
    """Of the state at that version."""
    ahead: Ahead | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Of `next_P` and what becomes of it: the loop's thread works ahead only where nobody is."""


class Replica:
    """One per node, for the life of its daemon."""

    def __init__(self, method: Method, layout: Sequence[TensorSpec]) -> None:
        """All zeros until `initialise`, `restore` or `adopt_state`. Raises LayoutError."""
        self.method = method
        self.layout = tuple(layout)
        self.checkpoints: Path | None = None
        """Where this node's checkpoints are."""
        self.sizes = fragment_elements(layout)
        """Elements of each fragment."""
        self._states: list[FragmentState] = []
        for size in self.sizes:
            outer_P, momentum_P, next_P = np.zeros((3, size), np.float32)
            self._states.append(FragmentState(outer_P, momentum_P, next_P, base_P=outer_P))
        self._looping = Scratch()
        self._working = Scratch()

    # What the node does ---------------------------------------------------------------------

    def initialise(self, fragment: int, local: memoryview) -> str:
        """The ranks' first parameters are version 0. Returns the state digest."""
        state = self._states[fragment]
        return self._replace(state, 0, np.frombuffer(local, np.float32), state.momentum_P)

    def restore(self, fragment: int, version: int, outer_P: F32, momentum_P: F32) -> str:
        """Go on from a checkpoint. Returns the state digest."""
        return self._replace(self._states[fragment], version, outer_P, momentum_P)

    def take_local(self, fragment: int, local: memoryview) -> None:
        """The ranks wrote their parameters there; they stay until the next `fill_result`."""
        self._states[fragment].local_P = np.frombuffer(local, np.float32)

    def fill_result(self, fragment: int, result: memoryview, *, full: bool) -> None:
        """Write what the ranks go on with: outer parameters, or what those moved by."""
        state = self._states[fragment]
        result_P = np.frombuffer(result, np.float32)
        if full:
            result_P[:] = state.outer_P
        else:
            outer.rebase(state.outer_P, state.base_P, result_P)
        state.base_P, state.local_P = state.outer_P, None

    def shape(self, ranks: int) -> SlotsShape:
        """The shared memory that the ranks need."""
        return SlotsShape(ranks, tuple(4 * size for size in self.sizes))

    def arrays(self, fragment: int) -> tuple[F32, F32]:
        """Copies of (outer, momentum)."""
        state = self._states[fragment]
        return state.outer_P.copy(), state.momentum_P.copy()

    def version(self, fragment: int) -> tuple[int, str]:
        """(the last round in the outer parameters, the state digest)."""
        state = self._states[fragment]
        return state.version, state.digest

    def _replace(self, state: FragmentState, version: int, outer_P: F32, momentum_P: F32) -> str:
        """The fragment is another one now; the ranks' base is what it was."""
        with state.lock:
            _make_room(state)
            state.next_P[:] = outer_P
            state.momentum_P[:] = momentum_P
            return self._turn(state, version, {})

    @staticmethod
    def _turn(state: FragmentState, version: int, digests: Mapping[int, bytes]) -> str:
        """What was made takes the place of the outer parameters. `digests`: of cells, if known."""
        state.outer_P, state.next_P = state.next_P, state.outer_P
        outer_P, momentum_P = state.outer_P, state.momentum_P
        found = [
            digests.get(cell.start) or outer.cell_digest(outer_P[cell], momentum_P[cell])
            for cell in outer.cells(outer_P.size)
        ]
        state.version, state.digest, state.ahead = version, outer.digest_of_cells(found), None
        return state.digest

    # Work -----------------------------------------------------------------------------------

    def begin(self, fragment: int) -> None:
        state = self._states[fragment]
        assert state.local_P is not None, "nothing was contributed"
        state.given = (state.base_P, state.local_P)

    def encode(self, fragment: int, start: int, stop: int, out: memoryview) -> None:
        given, codec = self._states[fragment].given, self.method.contribution_codec
        assert given is not None, "nothing was contributed"
        base_P, local_P = given
        delta = direct.to_encode(codec, out, self._looping.piece(0, stop - start))
        outer.pseudo_gradient(base_P[start:stop], local_P[start:stop], delta)
        direct.encode(codec, delta, out)

    def reduce(
        self,
        elements: int,
        slices: Sequence[Bytes],
        contributors: Sequence[Contributor],
        out: memoryview,
    ) -> None:
        codec, scratch = self.method.contribution_codec, self._looping
        decoded = [
            direct.decoded(codec, piece, scratch.piece(number + 1, elements))
            for number, piece in enumerate(slices)
        ]
        tokens = [contributor.tokens for contributor in contributors]
        mean = direct.to_encode(self.method.result_codec, out, scratch.piece(0, elements))
        outer.weighted_mean(decoded, tokens, mean)
        direct.encode(self.method.result_codec, mean, out)

    def ahead(self, stamp: Stamp, start: int, piece: Bytes, part: Bytes, elements: int) -> None:
        state = self._states[stamp.fragment]
        if not state.lock.acquire(blocking=False):
            return  # It is made with the rest, once it is committed.
        try:
            if state.version != stamp.round - 1 or state.next_P is state.base_P:
                return
            if state.ahead is None or state.ahead.stamp != stamp:
                state.ahead = Ahead(stamp)
            mean = self._mean(piece, self._looping, elements)
            self._make_ahead(state, state.ahead, slice(start, start + elements), mean)
            state.ahead.made[start] = part
        finally:
            state.lock.release()

    def _make_ahead(self, state: FragmentState, ahead: Ahead, here: slice, mean: F32) -> None:
        next_P = state.next_P[here]
        self.method.outer_step(state.outer_P[here], state.momentum_P[here], mean, next_P)
        if _is_cell(here, state.outer_P.size):
            momentum_P = self._looping.piece(1, mean.size)
            momentum_P[:] = state.momentum_P[here]
            self.method.momentum_step(momentum_P, mean)
            ahead.digests[here.start] = outer.cell_digest(next_P, momentum_P)

    def apply(self, stamp: Stamp, borders: Sequence[int], parts: Sequence[Bytes]) -> str:
        state = self._states[stamp.fragment]
        with state.lock:
            _make_room(state)
            ahead, digests = state.ahead, dict[int, bytes]()
            if ahead is None or ahead.stamp != stamp:
                ahead = Ahead(stamp)
            for first, last, part in zip(borders[:-1], borders[1:], parts, strict=True):
                for start, stop in spans(last - first):
                    here = slice(first + start, first + stop)
                    # The owner too takes the decoded bytes: what others hold, bit by bit.
                    mean = self._mean(self._cut(part, start, stop), self._working, stop - start)
                    if ahead.made.get(here.start) is part:
                        digests[here.start] = ahead.digests.get(here.start, b"")
                    else:
                        outer_P, momentum_P = state.outer_P[here], state.momentum_P[here]
                        self.method.outer_step(outer_P, momentum_P, mean, state.next_P[here])
                    self.method.momentum_step(state.momentum_P[here], mean)
            return self._turn(state, stamp.round, digests)

    def _cut(self, part: Bytes, start: int, stop: int) -> Bytes:
        size_of = self.method.result_codec.encoded_bytes
        return memoryview(part)[size_of(start) : size_of(stop)]

    def _mean(self, piece: Bytes, scratch: Scratch, elements: int) -> F32:
        return direct.decoded(self.method.result_codec, piece, scratch.piece(0, elements))

    def copy_state(self, fragment: int) -> Bytes:
        state = self._states[fragment]
        return np.concatenate((state.outer_P, state.momentum_P)).tobytes()

    def check_state(self, fragment: int, payload: Bytes) -> str:
        expected = self.state_bytes(fragment)
        if not expected or memoryview(payload).nbytes != expected:
            return ""
        return outer.state_digest(*np.split(np.frombuffer(payload, np.float32), 2))

    def adopt_state(self, fragment: int, round_: int, payload: Bytes) -> None:
        state = self._states[fragment]
        self._replace(state, round_, *np.split(np.frombuffer(payload, np.float32), 2))

    def adopt_kept(self, fragment: int, round_: int) -> str:
        try:
            path, _ = newest_checkpoint(self.checkpoints) if self.checkpoints else (None, ())
            if path is None:
                return ""
            cut, _, arrays = read_checkpoint(path)
        except CheckpointError:
            return ""
        if fragment >= len(arrays) or cut.fragments[fragment].version != round_:
            return ""
        pair = arrays[fragment]
        if pair.outer.size != self._states[fragment].outer_P.size:
            return ""
        return self.restore(fragment, round_, pair.outer, pair.momentum)

    def contribution_bytes(self, fragment: int, elements: int) -> int:
        return self.method.contribution_codec.encoded_bytes(elements)

    def result_bytes(self, fragment: int, elements: int) -> int:
        return self.method.result_codec.encoded_bytes(elements)

    def state_bytes(self, fragment: int) -> int:
        if fragment >= len(self._states):
            return 0
        return 2 * self._states[fragment].outer_P.nbytes


def _make_room(state: FragmentState) -> None:
    """The ranks' base stays as it is while they train from it."""
    if state.next_P is state.base_P:
        state.next_P = np.empty_like(state.outer_P)
        state.ahead = None


def _is_cell(here: slice, elements: int) -> bool:
    """Cells begin at multiples of a piece, and only the last one is shorter."""
    aligned = here.start % PIECE_ELEMENTS == 0
    return aligned and (here.stop - here.start == PIECE_ELEMENTS or here.stop == elements)


def fragment_elements(layout: Sequence[TensorSpec]) -> tuple[int, ...]:
    """Size of each fragment: its tensors lie densely, one after the other.

    Raises LayoutError for a gap or an overlap, and when a fragment before another has no tensor.
    """
    sizes: dict[int, int] = {}
    for tensor in layout:
        end = sizes.get(tensor.fragment, 0)
        if tensor.offset != end:
            raise LayoutError(
                f"parameter {tensor.name} begins at element {tensor.offset} of fragment "
                f"{tensor.fragment}, expected {end}"
            )
        sizes[tensor.fragment] = end + math.prod(tensor.shape)
    if sorted(sizes) != list(range(len(sizes))):
        raise LayoutError(f"the layout has fragments {sorted(sizes)}: one is missing")
    return tuple(sizes[fragment] for fragment in range(len(sizes)))


def needed_bytes(layout: Sequence[TensorSpec]) -> int:
    """What the daemon needs, at the busiest moment."""
    return 4 * ARRAYS_PER_FRAGMENT * sum(fragment_elements(layout))


def check_memory(needed: int, *, memory_max_bytes: int, free_bytes: int) -> None:
    """Refuse now, with figures, rather than be killed later. Raises ConfigError."""
    allowed = memory_max_bytes or free_bytes // 2
    if needed > allowed:
        raise ConfigError(
            f"the daemon needs about {needed / 2**30:.2f} GiB for this model and may use "
            f"{allowed / 2**30:.2f} GiB: set node.memory_max_bytes higher if the machine has it"
        )


def free_memory_bytes() -> int:
    """What the kernel says can be had without swapping."""
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0
