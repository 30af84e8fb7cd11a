"""The outer state of one node, and all arithmetic of its daemon on it.

Implements peers.exchange.interfaces.Work with numpy, piece by piece. The ranks own the local
parameters; Replica owns the outer parameters, their momentum, and the version that the ranks
started from. Must NOT import torch or know of connections.

Two threads call it, and each has its own scratch: the event loop's thread encodes, reduces and
works ahead, the worker thread does all else. Contributions are encoded from arrays that do not
change. Only the next version of the outer parameters is written by both threads, under a lock for
which the event loop's thread never waits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lowcomm.checkpoints.checkpoint import CheckpointError, newest_checkpoint, read_checkpoint
from lowcomm.methods.base import RoundMethod
from lowcomm.methods.buffers import in_flight, methods_of
from lowcomm.numerics import state_digests
from lowcomm.numerics.arrays import IN_MEMORY, LargeArrays
from lowcomm.numerics.direction_means import Directions
from lowcomm.numerics.operations import F32
from lowcomm.outer_state.fragment_layout import fragment_elements
from lowcomm.outer_state.local_contributions import LocalContributions
from lowcomm.outer_state.outer_step import OuterStep
from lowcomm.outer_state.results import PieceScratch, Results
from lowcomm.outer_state.state_moment import FIRST_LINEAGE, FragmentMoment, Moment
from lowcomm.outer_state.versions import Committed, OuterState, SharedPlaces
from peers.exchange import Bytes, no_matter
from peers.ipc import Slots, SlotsShape
from protocols.state import gossip_pairs
from protocols.types import Contributor, Stamp, TensorSpec


@dataclass(frozen=True, slots=True)
class Placed:
    """The parameters that the ranks continue with."""

    place: int
    """Index of their place in the fragment's slots."""
    version: int
    """The last round in them; it may be later than the round that the ranks wait for."""


class Replica:
    """The outer state of one node. It exists as long as the node's daemon."""

    def __init__(
        self, method: RoundMethod, layout: Sequence[TensorSpec], arrays: LargeArrays = IN_MEMORY
    ) -> None:
        """The state is zero until `initialise`, `restore` or `adopt_state`. `arrays` makes it.
        Raises LayoutError."""
        self.method = method
        self.layout = tuple(layout)
        self.arrays = arrays
        self.checkpoints: Path | None = None
        """Directory of this node's checkpoints, set by the daemon; None: there are none."""
        self.sizes = fragment_elements(layout)
        """Number of elements of each fragment."""
        methods = methods_of(method, layout)
        keeps_momentum = "momentum" in method.state_arrays
        self._states = [
            OuterState(
                size,
                keeps_momentum=keeps_momentum,
                compared=method.replicas_equal,
                arrays=arrays,
            )
            for size in self.sizes
        ]
        self._results = [Results(each) for each in methods]
        self._directions = [
            Directions([each for each in layout if each.fragment == f], method.by_direction)
            if each.needs_norms
            else None
            for f, each in enumerate(methods)
        ]
        """By fragment; None if its method needs no norms of whole tensors."""
        working = PieceScratch()
        """The worker thread's scratch."""
        steps = zip(methods, self._results, strict=True)
        self._steps = [OuterStep(each, results, working) for each, results in steps]
        """The outer step of each fragment."""
        self.contributions = LocalContributions(methods, self._states, arrays)
        self._slots: Slots | None = None
        self.in_flight = in_flight(method, layout)
        """Number of fragments that are exchanged at the same time; the others have no memory for an
        exchange meanwhile."""

    # Methods for the daemon -----------------------------------------------------------------

    def share(self, slots: Slots) -> None:
        """Make the outer parameters in shared memory from now on, where the ranks read them.

        Call this before the ranks have received any parameters.
        """
        self._slots = self.contributions.slots = slots
        for fragment, state in enumerate(self._states):
            with state.lock:
                state.share(SharedPlaces(slots, fragment))

    def initialise(self, fragment: int, local: memoryview) -> str:
        """Make the ranks' first parameters version 0. Returns the state digest."""
        state = self._states[fragment]
        local_P = np.frombuffer(local, np.float32)
        digest = self.restore(fragment, 0, local_P, state.momentum_P, lineage=FIRST_LINEAGE)
        if self._slots is not None:
            state.base_P = state.outer_P  # No rank has read the earlier base.
            state.forget_places()
            self._slots.forget_contribution(fragment, self._slots.places[fragment])
        return digest

    def restore(
        self, fragment: int, version: int, outer_P: F32, momentum_P: F32, *, lineage: int
    ) -> str:
        """Continue from the state of a checkpoint, in this lineage; the ranks' base does not
        change. Returns the state digest."""
        state = self._states[fragment]
        with state.lock:
            state.make_room()
            state.next_outer_P[:] = outer_P
            next_momentum_P = state.room_for_momentum()
            next_momentum_P[:] = momentum_P
            state.momentum_P, state.due = next_momentum_P, None
            digest = state.turn(version, lineage, {})
            self.contributions.continue_from(fragment, version, digest, self.checkpoints)
            return digest

    def place_result(self, fragment: int, *, full: bool) -> Placed:
        """Place the parameters that the ranks continue with: the outer parameters (`full`), or the
        change of these since the ranks' base. They stay in their place until the next result."""
        state = self._states[fragment]
        self.contributions.drop_contribution(fragment)
        with state.lock:
            if full and not state.is_shown:
                self._steps[fragment].settle(state)
            return Placed(state.show() if full else state.show_move(), state.present.round)

    def shape(self, ranks: int) -> SlotsShape:
        """The shape of the shared memory that the ranks need. A file keeps all its blocks: if it
        gave some back, a full disk could refuse them later."""
        is_lasting = self.in_flight == len(self.sizes) or self.arrays.directory is not None
        return SlotsShape(ranks, tuple(4 * size for size in self.sizes), is_lasting=is_lasting)

    def lend(self, fragment: int) -> tuple[F32, F32]:
        """(outer, momentum) of the present version, fp32 [P] each. They do not change as long as
        they, or views of their memory, are held."""
        state = self._states[fragment]
        with state.lock:
            self._steps[fragment].settle(state)
            return state.lend()

    def capture(self) -> Moment:
        """The state of all fragments, lent as `lend` does. Call this in the worker thread."""
        moments: list[FragmentMoment] = []
        for fragment, state in enumerate(self._states):
            outer_P, momentum_P = self.lend(fragment)
            moments.append(
                FragmentMoment(
                    version=state.present.round,
                    lineage=state.present.lineage,
                    state_digest=state.present.digest,
                    outer_P=outer_P,
                    momentum_P=momentum_P,
                    residue_P=self.contributions.residue(fragment),
                )
            )
        return Moment(tuple(moments))

    def version(self, fragment: int) -> tuple[int, str]:
        """(the last round in the outer parameters, the state digest)."""
        present = self._states[fragment].present
        return present.round, present.digest

    # Work -----------------------------------------------------------------------------------

    def begin_contribution(self, fragment: int, manifest: str) -> memoryview | None:
        return self.contributions.begin_contribution(fragment, manifest)

    def encode(self, fragment: int, start: int, stop: int, out: memoryview) -> None:
        self.contributions.encode(fragment, start, stop, out)

    def reduce(
        self,
        fragment: int,
        elements: int,
        slices: Sequence[Bytes],
        contributors: Sequence[Contributor],
        out: memoryview,
    ) -> None:
        scratch = self.contributions.scratch
        self._results[fragment].make(elements, slices, contributors, out, scratch)

    def check_result(
        self, fragment: int, piece: Bytes, elements: int, contributors: Sequence[Contributor]
    ) -> None:
        self._results[fragment].check(piece, elements, self.contributions.scratch)

    def ahead(
        self,
        stamp: Stamp,
        start: int,
        piece: Bytes,
        part: Bytes,
        elements: int,
        contributors: Sequence[Contributor],
    ) -> None:
        fragment = stamp.fragment
        state, results = self._states[fragment], self._results[fragment]
        scratch = self.contributions.scratch
        if self._directions[fragment] is not None:
            results.check(piece, elements, scratch)  # `apply` steps by whole tensors.
            return
        # Decode in any case: an invalid payload must raise here, and not in the outer step.
        mean_C = results.mean(piece, elements, contributors, scratch, at=start)
        if not state.lock.acquire(blocking=False):
            return  # `apply` makes this piece, after the commit.
        try:
            if state.present.round != stamp.round - 1 or state.due is not None:
                return
            made = state.ahead_of(stamp)
            self._steps[fragment].make_piece(state, made, start, mean_C, scratch)
            made.parts[start] = part
        finally:
            state.lock.release()

    def apply(
        self,
        stamp: Stamp,
        borders: Sequence[int],
        parts: Sequence[Bytes],
        contributors: Sequence[Contributor],
    ) -> str:
        state, step = self._states[stamp.fragment], self._steps[stamp.fragment]
        directions = self._directions[stamp.fragment]
        with state.lock:
            step.settle(state)
            made = state.ahead_of(stamp)
            of = Committed(state.outer_P, borders, parts, contributors)
            if directions is not None:
                step.make_by_direction(state, made, of, directions)
            else:
                step.make_rest(state, made, of)
            self.contributions.counted(stamp.fragment, contributors)
            digest = state.turn(stamp.round, stamp.lineage, made.digests)
        self.contributions.free(stamp.fragment, contributors)
        return digest

    def skip(self, stamp: Stamp) -> str:
        state = self._states[stamp.fragment]
        with state.lock:
            return state.pass_by(stamp.round, stamp.lineage)

    def settle(self, fragment: int) -> None:
        state = self._states[fragment]
        with state.lock:
            self._steps[fragment].settle(state)
            state.forget_places()
        slots = self._slots
        if slots is not None and not slots.shape.is_lasting:
            following = (fragment + self.in_flight) % len(self.sizes)
            slots.expect_contribution(following)
            with self._states[following].lock:
                self._states[following].expect_next()

    def lend_state(self, fragment: int, round_: int) -> tuple[Bytes, ...]:
        if self.version(fragment)[0] != round_:
            return ()
        return tuple(array_P.data.cast("B") for array_P in self.lend(fragment) if array_P.size)

    def check_state(
        self,
        fragment: int,
        round_: int,
        state: Sequence[Bytes],
        before_cell: Callable[[], None] = no_matter,
    ) -> str:
        expected = self.state_bytes(fragment)
        if not expected or sum(memoryview(buffer).nbytes for buffer in state) != expected:
            return ""
        if not self.method.replicas_equal:
            return gossip_pairs.state_digest(round_)
        return state_digests.state_digest(*_split(self.sizes[fragment], state), before_cell)

    def adopt_state(
        self,
        fragment: int,
        round_: int,
        buffer: bytearray | memoryview,
        *,
        lineage: int,
        kept: bool = False,
    ) -> None:
        state = self._states[fragment]
        outer_P, momentum_P = _split(self.sizes[fragment], [buffer])
        with state.lock:
            state.take(self.arrays.copy_of(outer_P) if kept else outer_P, momentum_P)
            digest = state.turn(round_, lineage, {})
            self.contributions.continue_from(fragment, round_, digest, self.checkpoints)

    def adopt_kept(self, fragment: int, round_: int, *, lineage: int) -> str:
        try:
            path, _ = newest_checkpoint(self.checkpoints) if self.checkpoints else (None, ())
            if path is None:
                return ""
            cut, _, arrays = read_checkpoint(path, self.arrays)
        except CheckpointError:
            return ""
        if fragment >= len(arrays) or cut.fragments[fragment].version != round_:
            return ""
        pair, state = arrays[fragment], self._states[fragment]
        if (pair.outer.size, pair.momentum.size) != (state.outer_P.size, state.momentum_P.size):
            return ""
        return self.restore(fragment, round_, pair.outer, pair.momentum, lineage=lineage)

    def contribution_bytes(self, fragment: int, elements: int) -> int:
        return self._results[fragment].contribution_bytes(elements)

    def result_bytes(self, fragment: int, elements: int) -> int:
        return self._results[fragment].layer_bytes(elements)

    def layers(self, fragment: int, contributors: int) -> int:
        return self._results[fragment].layers(contributors)

    def state_bytes(self, fragment: int) -> int:
        if fragment >= len(self._states):
            return 0
        state = self._states[fragment]
        return state.outer_P.nbytes + state.momentum_P.nbytes


def _split(size: int, state: Sequence[Bytes]) -> tuple[F32, F32]:
    """(outer, momentum) of a fragment of this size, from one buffer or from the buffers of
    `lend_state`."""
    first, *rest = (np.frombuffer(buffer, np.float32) for buffer in state)
    return first[:size], rest[0] if rest else first[size:]
