"""The outer state of one node, and all arithmetic that the daemon does on it.

Implements peers.work.Work with numpy, piece by piece. The ranks own the local parameters; this
owns the outer ones, their momentum, and the version that the ranks started from. Must NOT import
torch or know of connections.

Two threads: the loop's encodes and reduces, the worker's does the rest, each with scratch of its
own. What the loop's thread reads of a fragment, the worker changes only once its round is
committed, when nobody encodes for it any more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from lowcomm import outer
from lowcomm.checkpoint import CheckpointError, newest_checkpoint, read_checkpoint
from lowcomm.codecs import direct
from lowcomm.methods.base import Method
from lowcomm.outer import F32
from peers.pieces import PIECE_ELEMENTS, spans
from peers.work import Bytes
from protocols.errors import ConfigError, LowcommError
from protocols.ids import Contributor, TensorSpec

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
class FragmentState:
    """All arrays are fp32, 1-D, of the fragment's size P."""

    outer_P: F32
    momentum_P: F32
    base_P: F32
    """The outer parameters that the ranks' present work started from."""
    local_P: F32 | None = None
    """The ranks' parameters, in the shared memory slot of their last contribution."""
    given: tuple[F32, F32] | None = None
    """The base and the local parameters that `encode` is about."""
    version: int = 0
    """The last round that `outer_P` contains."""
    digest: str = ""
    """xxh3-128 of the state at that version."""


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
            self._states.append(
                FragmentState(
                    outer_P=np.zeros(size, np.float32),
                    momentum_P=np.zeros(size, np.float32),
                    base_P=np.zeros(size, np.float32),
                )
            )
        self._looping = Scratch()
        self._working = Scratch()

    # What the node does ---------------------------------------------------------------------

    def initialise(self, fragment: int, local: memoryview) -> str:
        """The ranks' first parameters are version 0. Returns the state digest."""
        state = self._states[fragment]
        state.outer_P[:] = np.frombuffer(local, np.float32)
        return self._at(state, 0)

    def restore(self, fragment: int, version: int, outer_P: F32, momentum_P: F32) -> str:
        """Go on from a checkpoint. Returns the state digest."""
        state = self._states[fragment]
        state.outer_P[:], state.momentum_P[:] = outer_P, momentum_P
        return self._at(state, version)

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
        state.base_P[:] = state.outer_P
        state.local_P = None

    def arrays(self, fragment: int) -> tuple[F32, F32]:
        """Copies of (outer, momentum)."""
        state = self._states[fragment]
        return state.outer_P.copy(), state.momentum_P.copy()

    def version(self, fragment: int) -> tuple[int, str]:
        """(the last round in the outer parameters, the state digest)."""
        state = self._states[fragment]
        return state.version, state.digest

    @staticmethod
    def _at(state: FragmentState, version: int) -> str:
        state.version = version
        state.digest = outer.state_digest(state.outer_P, state.momentum_P)
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

    def apply(
        self, fragment: int, round_: int, borders: Sequence[int], parts: Sequence[Bytes]
    ) -> str:
        state, codec = self._states[fragment], self.method.result_codec
        for first, last, part in zip(borders[:-1], borders[1:], parts, strict=True):
            view = memoryview(part)
            for start, stop in spans(last - first):
                # The owner too takes the decoded bytes: what others hold, bit by bit.
                piece = view[codec.encoded_bytes(start) : codec.encoded_bytes(stop)]
                mean = direct.decoded(codec, piece, self._working.piece(0, stop - start))
                here = slice(first + start, first + stop)
                self.method.outer_step(state.outer_P[here], state.momentum_P[here], mean)
        return self._at(state, round_)

    def copy_state(self, fragment: int) -> Bytes:
        state = self._states[fragment]
        return np.concatenate((state.outer_P, state.momentum_P)).tobytes()

    def check_state(self, fragment: int, payload: Bytes) -> str:
        expected = self.state_bytes(fragment)
        if not expected or memoryview(payload).nbytes != expected:
            return ""
        return _digest(payload)

    def adopt_state(self, fragment: int, round_: int, payload: Bytes) -> None:
        state = self._states[fragment]
        arrays = np.frombuffer(payload, np.float32)
        state.outer_P[:], state.momentum_P[:] = np.split(arrays, 2)
        self._at(state, round_)

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


def check_memory(layout: Sequence[TensorSpec], *, memory_max_bytes: int, free_bytes: int) -> None:
    """Refuse now, with figures, rather than be killed later. Raises ConfigError."""
    needed = 4 * ARRAYS_PER_FRAGMENT * sum(fragment_elements(layout))
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


def _digest(payload: Bytes) -> str:
    return xxhash.xxh3_128_hexdigest(payload)
