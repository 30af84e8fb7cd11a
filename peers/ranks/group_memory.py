"""The memory that a group's ranks share with their daemon, with its generations; contributions
that lie there.

Generations of contributions and results go on across attempts: no message of a dead attempt is
taken for one of a later attempt. Must NOT send a result, nor decide when ranks contribute.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from peers.ipc.messages import Attached, Result, TensorPlace
from peers.ipc.shared_memory import Slots
from peers.ranks.attempt import RankFault, fragment_elements
from peers.ranks.attempt_runner import AttemptRunner
from peers.ranks.events import RankContribution

HAND_OVER_S = 0.001
"""Seconds from the hand-over of a contribution to its round. If no core is free the kernel wakes
the daemon on the rank's core, in the middle of the rank's call: so the rank goes on first, and is
not held up by the daemon's work (2 to 4 ms)."""


class HandedOver:
    """Complete contributions that are not reported yet, in the order in which they came."""

    def __init__(self, on_event: Callable[[RankContribution], None]) -> None:
        self._on_event = on_event
        self._waiting: deque[RankContribution] = deque()

    def enqueue(self, contribution: RankContribution) -> None:
        """Report it soon, or earlier if another one is due."""
        self._waiting.append(contribution)
        asyncio.get_running_loop().call_later(HAND_OVER_S, self.tell_all)

    def tell_all(self) -> None:
        """Report all of them now."""
        while self._waiting:
            self._on_event(self._waiting.popleft())

    def clear(self) -> None:
        """Report none of them."""
        self._waiting.clear()


class GroupMemory:
    """The shared memory of one group, once it is provided."""

    def __init__(self) -> None:
        self.slots: Slots | None = None
        """From `provide` until `close`."""
        self._attached: Attached | None = None
        """The Attached message, without the present generations."""
        self._layout_bytes: tuple[int, ...] = ()
        """Bytes of the fragments of the model, once ranks have reported it."""
        self._contributions: list[int] = []
        """Last complete generation of each fragment."""
        self._results: list[int] = []

    def provide(
        self, slots: Slots, *, initial: bool, slot: int, rank_state: str, frozen: str = ""
    ) -> None:
        """`slots` are ours from the first call on; later calls change the other values only."""
        shape = slots.shape
        if self.slots is None:
            self.slots = slots
            self._contributions = [0] * len(shape.fragment_bytes)
            self._results = [0] * len(shape.fragment_bytes)
        assert self.slots is slots, "one memory for a group's life"
        self._attached = Attached(
            shape=shape, initial=initial, slot=slot, rank_state=rank_state, frozen=frozen
        )

    def take_layout(self, running: AttemptRunner, tensors: tuple[TensorPlace, ...]) -> None:
        """The ranks have reported their model. Raises RankFault if it is another one than in the
        attempts before."""
        running.fragment_bytes = tuple(4 * count for count in fragment_elements(tensors))
        self._layout_bytes = self._layout_bytes or running.fragment_bytes
        if self._layout_bytes != running.fragment_bytes:
            raise RankFault("the model has another layout than in the attempts before")

    def attach(self, running: AttemptRunner) -> None:
        """Attach the ranks that wait for it, if the memory is here and they have a layout."""
        if self.slots is None or self._attached is None or not running.fragment_bytes:
            return
        attached = replace(
            self._attached,
            initial=self._attached.initial and not any(self._results),
            contribution_generations=tuple(each + 1 for each in self._contributions),
            contribution_places=tuple(self.slots.places),
        )
        running.attach(attached, self.slots.fd)

    def contributed(self, fragment: int, generation: int) -> None:
        """All ranks have contributed. Raises RankFault if the contribution is not whole."""
        assert self.slots is not None, "ranks contribute only when they are attached"
        if not self.slots.all_done(fragment, generation):
            raise RankFault(f"generation {generation} of fragment {fragment} is not whole")
        self._contributions[fragment] = generation

    def publish(self, result: Result) -> Result:
        """The next result of its fragment lies in its place; returns it with its generation."""
        assert self.slots is not None, "provide first"
        fragment = result.fragment
        self._results[fragment] += 1
        result = replace(result, generation=self._results[fragment])
        self.slots.publish_result(fragment, result.place, result.generation)
        return result

    def steps(self, ranks: int) -> list[int]:
        """The step counters of so many ranks."""
        return [0 if self.slots is None else self.slots.step_of_rank(rank) for rank in range(ranks)]

    def void(self) -> None:
        """An attempt is over: none of its flags counts any more."""
        if self.slots is not None:
            self.slots.void()

    def close(self) -> None:
        if self.slots is not None:
            self.slots.close()
            self.slots = None
