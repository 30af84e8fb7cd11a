"""The contributions of this node: the parameters that its ranks wrote, from then until they count.

In: the ranks' shared memory, and the manifests of committed rounds. Out: encoded pieces. Two
threads call it, as they call Replica; contributions are encoded from arrays that do not change.
Must NOT change the outer parameters or the momentum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lowcomm.checkpoints.residue_file import find_residue
from lowcomm.codecs import direct
from lowcomm.methods.base import RoundMethod
from lowcomm.numerics import operations
from lowcomm.numerics.arrays import IN_MEMORY, LargeArrays
from lowcomm.numerics.operations import F32
from lowcomm.outer_state.error_feedback import ErrorFeedback
from lowcomm.outer_state.results import PieceScratch
from lowcomm.outer_state.versions import OuterState
from peers.ipc import Slots
from protocols.types import Contributor

_NOTHING: F32 = np.empty(0, np.float32)


@dataclass(slots=True)
class Contribution:
    """Arrays of a contribution, fp32 [P] each. They do not change while `encode` reads them, except
    where `encode` writes its own output to them."""

    base_P: F32
    local_P: F32
    manifest: str


class LocalContributions:
    """What the ranks of one node contributed last, by fragment, and the error feedback on it."""

    def __init__(
        self,
        methods: Sequence[RoundMethod],
        states: Sequence[OuterState],
        arrays: LargeArrays = IN_MEMORY,
    ) -> None:
        """`methods` and `states` (the outer state) are by fragment; `arrays` makes residues."""
        self.slots: Slots | None = None
        """The shared memory of the ranks; None until there is one."""
        self._methods = methods
        self._states = states
        self.scratch = PieceScratch()
        """The event loop's thread's."""
        self._local: dict[int, F32] = {}
        """By fragment, the ranks' parameters: the slot of their last contribution."""
        self._given: dict[int, Contribution] = {}
        """By fragment, the contribution that `encode` reads."""
        self._feedback = [
            ErrorFeedback(method.codec, state.outer_P.size, decay=method.feedback, arrays=arrays)
            for method, state in zip(methods, states, strict=True)
            if method.feedback
        ]
        """By fragment; empty if the method has no error feedback."""
        self._finite: dict[int, bool] = {}
        """By fragment, whether the ranks' last contribution was finite, if its memory has been
        freed."""

    def take_local(self, fragment: int, local: memoryview) -> None:
        """The ranks have written their parameters to `local`. Only `encode` writes there until the
        next `place_result`, or, if those ranks are lost, as long as `needs` returns True."""
        self._local[fragment] = np.frombuffer(local, np.float32)
        self._finite.pop(fragment, None)
        self._states[fragment].contributed()

    def is_finite(self, fragment: int) -> bool:
        """Whether the ranks' last contribution is finite, even if it was encoded in place; True if
        there is none."""
        if fragment in self._finite:
            return self._finite[fragment]
        return operations.all_finite(self._local.get(fragment, _NOTHING))

    def drop_contribution(self, fragment: int) -> None:
        """The ranks get a result, which they continue with."""
        self._local.pop(fragment, None)

    def needs(self, fragment: int, local: memoryview, *, encoding: bool) -> bool:
        """Whether a contribution is made from the parameters in `local`. `encoding`: the
        contribution begun last is for an open round; if not, one that waits may still begin."""
        given = self._given.get(fragment)
        needed_P = given.local_P if encoding and given is not None else self._local.get(fragment)
        return needed_P is not None and np.may_share_memory(needed_P, np.asarray(local))

    def begin_contribution(self, fragment: int, manifest: str) -> memoryview | None:
        """As RoundWork.begin_contribution."""
        local_P, state = self._local.get(fragment), self._states[fragment]
        assert local_P is not None, "nothing was contributed"
        self._given[fragment] = Contribution(state.base_P, local_P, manifest)
        method = self._methods[fragment]
        if method.carries and not state.compared and state.base_P is not state.outer_P:
            state.carry(local_P)
        if self._feedback:
            self._feedback[fragment].begin_contribution(manifest)
            return None
        return direct.in_place(method.codec, local_P)

    def encode(self, fragment: int, start: int, stop: int, out: memoryview) -> None:
        """As RoundWork.encode."""
        given, method = self._given.get(fragment), self._methods[fragment]
        codec = method.codec
        assert given is not None, "nothing was contributed"
        if not method.replicas_equal and not self._feedback:
            direct.encode(codec, given.local_P[start:stop], out)
            return
        delta = direct.to_encode(codec, out, self.scratch.piece(0, stop - start))
        if method.replicas_equal:
            operations.pseudo_gradient(given.base_P[start:stop], given.local_P[start:stop], delta)
        else:
            delta[:] = given.local_P[start:stop]
        if self._feedback:
            scratch = self.scratch.piece(1, stop - start)
            self._feedback[fragment].encode(start, delta, out, scratch)
        else:
            direct.encode(codec, delta, out)

    def counted(self, fragment: int, contributors: Sequence[Contributor]) -> None:
        """A round is committed that counts these contributions: what was left out of this node's is
        the residue now."""
        if self._feedback:
            self._feedback[fragment].counted(each.manifest for each in contributors)

    def free(self, fragment: int, contributors: Sequence[Contributor]) -> None:
        """If this node's contribution was counted, free its memory: no peer asks for it any more,
        and the ranks write the next one only after they are told of the result, which comes
        later."""
        given, slots = self._given.get(fragment), self.slots
        if slots is None or slots.shape.is_lasting or given is None:
            return
        if given.manifest not in [each.manifest for each in contributors]:
            return
        place = slots.places[fragment]
        if np.may_share_memory(given.local_P, np.asarray(slots.contribution(fragment))):
            if self._methods[fragment].trims:
                self._finite[fragment] = operations.all_finite(given.local_P)
            slots.forget_contribution(fragment, place)

    def residue(self, fragment: int) -> F32 | None:
        """The residue of the error feedback; None if the method has none."""
        return self._feedback[fragment].residue_P if self._feedback else None

    def continue_from(
        self, fragment: int, version: int, digest: str, checkpoints: Path | None
    ) -> None:
        """The outer state is one that no round led to. The residue goes on from the one that this
        node saved with this state, in any incarnation; without one it is zero."""
        if not self._feedback:
            return
        kept_P: F32 | None = None
        if checkpoints is not None:
            elements = self._states[fragment].outer_P.size
            kept_P = find_residue(checkpoints, fragment, version, digest, elements=elements)
        self._feedback[fragment].replace_residue(kept_P)
