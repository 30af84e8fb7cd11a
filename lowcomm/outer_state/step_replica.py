"""Copies of the state of a stepwise run, and the daemon's arithmetic on payloads.

The ranks own the state; the daemon handles it as bytes. Implements
peers.exchange.interfaces.StepWork with numpy. Must NOT import torch, nor know connections.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from lowcomm.checkpoints.checkpoint import CheckpointError, newest_checkpoint, read_checkpoint
from lowcomm.methods.base import Parameter, StepMethod
from lowcomm.methods.step_exchange import StepExchange
from lowcomm.numerics.arrays import IN_MEMORY, LargeArrays
from lowcomm.outer_state.fragment_layout import fragment_elements
from lowcomm.outer_state.state_moment import FragmentMoment, Moment
from peers.exchange import Bytes, no_matter
from peers.ipc import SlotsShape, step_shape
from peers.transfer import cells
from protocols.messages import TENTATIVE_COMMITS
from protocols.types import TensorSpec

STATES_HELD = 6
"""Most copies of the state at one time: two in shared memory, the base, one that may follow it, one
that is being sent, one that arrives."""


def needed_for_steps(
    method: StepMethod, layout: Sequence[TensorSpec], *, peers_min: int, in_file: bool = False
) -> int:
    """Most bytes that the daemon needs at one time: states, unless they are in files, and the
    payloads since the base."""
    elements = sum(fragment_elements(layout))
    states = 0 if in_file else 4 * elements * len(method.state_arrays) * STATES_HELD
    steps = method.snapshot_every_steps + TENTATIVE_COMMITS * method.commit_every_steps
    payload = _exchange(method, layout, seed=0).payload_bytes
    return states + payload * steps * (peers_min + 1)


def file_bytes_for_steps(method: StepMethod, layout: Sequence[TensorSpec]) -> int:
    """Bytes of the daemon's files with node.outer_state = "file": the states, another place in
    shared memory, and three places for a payload or a mean."""
    elements = sum(fragment_elements(layout))
    states = 4 * elements * len(method.state_arrays) * (STATES_HELD + 1)
    return states + 3 * max(4 * elements, _exchange(method, layout, seed=0).written_bytes)


@dataclass(frozen=True, slots=True)
class _Copy:
    """The state after one step; it is never written to."""

    state: Bytes
    digest: str
    lineage: int
    """The lineage in which that step was made, or in which the state was adopted."""


class StepReplica:
    """Copies of one node's state. They exist as long as the node's daemon."""

    def __init__(
        self,
        method: StepMethod,
        layout: Sequence[TensorSpec],
        *,
        seed: int,
        arrays: LargeArrays = IN_MEMORY,
    ) -> None:
        """There is no state until `keep_copy` or `adopt_state`. `seed`: the run's; `arrays` makes
        the copies. Raises LayoutError."""
        self.arrays = arrays
        self.method = method
        self.layout = tuple(layout)
        self.sizes = fragment_elements(layout)
        """Number of elements of the only fragment, the whole model."""
        (self._elements,) = self.sizes
        self._exchange = _exchange(method, layout, seed=seed)
        self.payload_bytes = self._exchange.payload_bytes
        self.mean_bytes = 4 * self._elements
        self.checkpoints: Path | None = None
        """Directory of the checkpoints from which `adopt_kept` reads; set by the daemon."""
        self._copies: dict[int, _Copy] = {}
        """Copies by step, of which the oldest is the base."""

    def shape(self, ranks: int) -> SlotsShape:
        """The shape of the shared memory that the ranks need."""
        written = -(-self._exchange.written_bytes // 4) * 4
        step_bytes = max(written, self.mean_bytes)
        return step_shape(ranks, step_bytes=step_bytes, state_bytes=self.state_bytes(0))

    def version(self, fragment: int) -> tuple[int, str]:
        """(step, digest) of the base: the committed state that is kept for joiners."""
        del fragment
        if not self._copies:
            return 0, ""
        step = min(self._copies)
        return step, self._copies[step].digest

    def capture(self) -> Moment:
        """The base, which is never written to; there is no residue in a stepwise run."""
        step = min(self._copies)
        base = self._copies[step]
        state = np.frombuffer(base.state, np.float32)
        moment = FragmentMoment(
            version=step,
            lineage=base.lineage,
            state_digest=base.digest,
            outer_P=state[: self._elements],
            momentum_P=state[self._elements :],
            residue_P=None,
        )
        return Moment((moment,))

    # StepWork -------------------------------------------------------------------------------

    def make_payload(self, written: Bytes) -> Bytes:
        return self._exchange.make_payload(written[: self._exchange.written_bytes])

    def write_mean(self, step: int, payloads: Sequence[Bytes], out: memoryview) -> Sequence[int]:
        mean_P = np.frombuffer(out, np.float32)[: self._elements]
        return self._exchange.write_mean(step, payloads, mean_P)

    def state_digest(self, state: Bytes, before_cell: Callable[[], None] = no_matter) -> str:
        made = xxhash.xxh3_128()
        for cell in cells([state]):
            before_cell()
            made.update(cell)
        return made.hexdigest()

    def keep_copy(self, step: int, state: Bytes, digest: str, *, lineage: int) -> None:
        self._copies[step] = _Copy(state, digest, lineage)

    def base(self, step: int) -> Bytes:
        return self._copies[step].state

    def release(self, step: int) -> None:
        self._copies = {at: state for at, state in self._copies.items() if at >= step}

    # States ---------------------------------------------------------------------------------

    def lend_state(self, fragment: int, round_: int) -> tuple[Bytes, ...]:
        kept = self._copies.get(round_)
        return () if kept is None else (kept.state,)  # Never written to.

    def check_state(
        self,
        fragment: int,
        round_: int,
        state: Sequence[Bytes],
        before_cell: Callable[[], None] = no_matter,
    ) -> str:
        (buffer,) = state
        fits = memoryview(buffer).nbytes == self.state_bytes(fragment)
        return self.state_digest(buffer, before_cell) if fits else ""

    def adopt_state(
        self,
        fragment: int,
        round_: int,
        buffer: bytearray | memoryview,
        *,
        lineage: int,
        kept: bool = False,
    ) -> None:
        buffer = self._copy(buffer) if kept else buffer
        self._copies = {round_: _Copy(buffer, self.state_digest(buffer), lineage)}

    def adopt_kept(self, fragment: int, round_: int, *, lineage: int) -> str:
        try:
            path, _ = newest_checkpoint(self.checkpoints) if self.checkpoints else (None, ())
            if path is None:
                return ""
            cut, _, (arrays, *others) = read_checkpoint(path, self.arrays)
        except CheckpointError:
            return ""
        state = self._copy(*(array.data.cast("B") for array in arrays if array.size))
        fits = not others and len(state) == self.state_bytes(fragment)
        if cut.round != round_ or cut.arrays != self.method.state_arrays or not fits:
            return ""
        self.adopt_state(fragment, round_, state, lineage=lineage)
        return self.version(fragment)[1]

    def state_bytes(self, fragment: int) -> int:
        return 4 * self._elements * len(self.method.state_arrays) if fragment == 0 else 0

    def _copy(self, *buffers: Bytes) -> memoryview:
        """A copy of these buffers, one after the other."""
        made = self.arrays.buffer(sum(map(len, buffers)))
        at = 0
        for buffer in buffers:
            made[at : at + len(buffer)] = buffer
            at += len(buffer)
        return made


def _exchange(method: StepMethod, layout: Sequence[TensorSpec], *, seed: int) -> StepExchange:
    return method.make_exchange([Parameter(each.name, each.shape) for each in layout], seed=seed)
