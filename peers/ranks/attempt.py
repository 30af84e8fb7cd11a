"""The book of one attempt: the messages of its ranks so far, and whether they keep the rules.

Synchronous: messages and ticks go in, answers come out, a broken rule raises RankFault, which ends
the attempt. Must NOT touch a socket, a process, the shared memory or a clock
(`peers/ranks/rank_group.py`).
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from peers.ipc.messages import (
    Answer,
    Boundary,
    Contributed,
    RankHello,
    Result,
    SampleDemand,
    TensorPlace,
)
from peers.ipc.step_orders import Order, following
from protocols.types import FrozenTensor, LowcommError
from protocols.wire import WireError, unpack_frozen, unpack_layout

TICK_S = 1.0
"""Seconds between checks for hangs; shorter if hangs must be found within less than 4 s."""
DIMENSIONS_MAX = 16
OPEN_BOUNDARIES_MAX = 64  # Usually one, since ranks step together.


class RankFault(LowcommError):  # noqa: N818
    """A rank broke a rule, or hangs. The text says which rank and what."""


class WrongWorld(RankFault):
    """The program runs another number of ranks than the node: it would in each attempt."""


class NeverAttached(RankFault):
    """The program has not said hello in time."""


class Stage(Enum):
    """The stage of one rank; the text names what it waits for, or has not done."""

    STARTING = "did not say hello"
    GREETED = "waits to be configured"
    BUILDING = "did not report its layout"
    REPORTED = "waits to be attached"
    MAPPING = "did not map the shared memory"
    IDLE = "waits for a result"
    TRAINING = "counts no step"
    WORKING = "neither finishes what the result asked for nor counts a step"
    DONE = "trains no more"


BEFORE_READY = frozenset(
    {Stage.STARTING, Stage.GREETED, Stage.BUILDING, Stage.REPORTED, Stage.MAPPING}
)
STEPPING = (Stage.TRAINING, Stage.WORKING)
PATIENCE_S: Mapping[Stage, float] = {
    Stage.BUILDING: 600.0,  # Large models are initialised on the CPU.
    Stage.MAPPING: 600.0,  # Frozen tensors are written meanwhile.
    Stage.WORKING: 600.0,  # Evaluating, writing a snapshot, ending.
}
"""Seconds that a rank may take in a stage in which it has to act, or the hang timeout if that is
longer; those of STARTING and TRAINING are in HangLimits; other stages have no limit."""


@dataclass(slots=True)
class _Rank:
    stage: Stage = Stage.STARTING
    ticks: int = 0
    """Since the stage began or the step counter moved."""
    step: int = 0
    layout: tuple[TensorPlace, ...] = ()
    elements: int = 0
    frozen: tuple[FrozenTensor, ...] = ()
    generations: list[int] = field(default_factory=list[int])
    """By fragment, the generation of its next contribution."""
    waits: set[int] = field(default_factory=set[int])
    """The fragments of which it awaits a result."""
    demand: SampleDemand | None = None
    """The lease that it awaits."""


@dataclass(frozen=True, slots=True)
class HangLimits:
    """The longest times of a rank without progress, in seconds; the hang timeout holds if it is
    longer."""

    hang_timeout_s: float = 60.0
    attach_timeout_s: float = 300.0
    """Until its hello."""
    first_step_timeout_s: float = 1800.0
    """For its first step, which may be compiled."""

    @property
    def tick_s(self) -> float:
        """Seconds between two checks."""
        return min(TICK_S, self.hang_timeout_s / 4)

    def patience_s(self, stage: Stage, *, first: bool) -> float:
        """Seconds that a rank may take in this stage. `first`: it has to make its first step."""
        own_s = 0.0 if stage is Stage.TRAINING else PATIENCE_S.get(stage, math.inf)
        if stage is Stage.STARTING:
            own_s = self.attach_timeout_s
        elif first and stage in STEPPING:
            own_s = max(own_s, self.first_step_timeout_s)
        return max(self.hang_timeout_s, own_s)

    def fault(self, rank: int, stage: Stage, step: int, *, first: bool) -> RankFault:
        """The fault of a rank that took longer, with the key that allows more."""
        limit_s = f"{self.patience_s(stage, first=first):g} s"
        if stage is Stage.STARTING:
            return NeverAttached(
                f"rank {rank} has not called lowcomm.attach() within {limit_s} "
                "(node.attach_timeout_s)"
            )
        key, what = "node.hang_timeout_s", stage.value
        if first and stage in STEPPING:
            key, what = "node.first_step_timeout_s", "has not made its first step"
        return RankFault(f"rank {rank} hangs: it {what} for {limit_s} (at step {step}; {key})")


@dataclass(frozen=True, slots=True)
class FirstStep:
    """The first step of ranks that have not made it."""

    lasts_s: float
    """Seconds since the rank that is at it for the longest time began it."""
    limit_s: float
    """Seconds that it may last."""


class OpenBoundaries:
    """The boundaries that not all ranks have reached, and the decision on each."""

    def __init__(self, decide: Callable[[Boundary], Answer]) -> None:
        self._decide = decide
        self._open: dict[Boundary, tuple[Answer, set[int]]] = {}
        """By question, the answer and the ranks that have it."""

    def answer(self, rank: int, question: Boundary, *, ranks: int) -> Answer:
        """The decision, made for the first of all `ranks` that asks. Raises RankFault."""
        if question not in self._open:
            if len(self._open) == OPEN_BOUNDARIES_MAX:
                raise RankFault(
                    f"rank {rank} asks for steps that others do not reach: {question.steps}"
                )
            self._open[question] = (self._decide(question), set())
        answer, asked = self._open[question]
        asked.add(rank)
        if len(asked) == ranks:
            del self._open[question]
        return answer


class OrderProgress:
    """The last order to the ranks, and which of them have obeyed it."""

    def __init__(self) -> None:
        self._order: Order | None = None
        self._ranks = 0
        self._disobeying = set[int]()
        """Ranks that have not obeyed it yet."""
        self._ahead = set[int]()
        """Ranks that have also obeyed the order that follows it."""

    def begin(self, order: Order, *, ranks: int) -> None:
        """This order was sent to all ranks."""
        self._order, self._ranks = order, ranks
        self._disobeying, self._ahead = set(range(ranks)), set()

    def obey(self, rank: int, number: int) -> Stage:
        """The rank has obeyed the order of this number; returns its next stage. Raises
        RankFault."""
        order, late = self._order, rank in self._disobeying
        if order is not None and number == order.number and late:
            self._disobeying.discard(rank)
            return Stage.TRAINING if order.go_on else Stage.IDLE
        if order is not None and order.go_on and number == order.number + 1 and not late:
            if rank in self._ahead:
                raise RankFault(f"rank {rank} obeys order {number} twice")
            self._ahead.add(rank)
            return Stage.IDLE  # It waits for ranks that have not done the step before.
        raise RankFault(f"rank {rank} obeys order {number}, which it has not got")

    def complete(self) -> Order | None:
        """The order, if all ranks have obeyed it: the order that follows it is the last one from
        now on. Called after each `obey`."""
        order = self._order
        if order is None or self._disobeying:
            return None
        if order.go_on:
            self._order = following(order)
            self._disobeying, self._ahead = set(range(self._ranks)) - self._ahead, set()
        return order


class RankAttempt:
    """Ranks are numbered 0 to ranks - 1; `tick` is to be called every `hang_limits.tick_s` seconds.

    Time is counted in ticks, not read from a clock: a node that was stopped as a whole and
    continues has lost no rank.
    """

    def __init__(
        self,
        number: int,
        *,
        ranks: int,
        hang_limits: HangLimits,
        decide_boundary: Callable[[Boundary], Answer],
    ) -> None:
        self.number = number
        self.hang_limits = hang_limits
        self.finishing = False
        """Each fragment had its last result: from now on ranks end with 0."""
        self._over: set[int] = set()
        """Fragments that had it."""
        self.contributed_once = self.counted_once = False
        self._ranks = [_Rank() for _ in range(ranks)]
        self._boundaries = OpenBoundaries(decide_boundary)
        self._contributions: dict[tuple[int, int], dict[int, Contributed]] = {}
        """By (fragment, generation), the ranks that have contributed."""
        self._snapshots: dict[str, set[int]] = {}
        """By directory, the ranks that have written their state."""
        self._orders = OrderProgress()
        self._ended: set[int] = set()

    def in_stage(self, stage: Stage) -> list[int]:
        """The ranks in this stage."""
        return [number for number, rank in enumerate(self._ranks) if rank.stage is stage]

    @property
    def first_step(self) -> FirstStep | None:
        """Of ranks that have to make it now; None if none has to."""
        stepping = [rank for rank in self._ranks if rank.stage in STEPPING and not rank.step]
        if not stepping or self.finishing:
            return None
        slowest, limits = max(stepping, key=lambda rank: rank.ticks), self.hang_limits
        limit_s = limits.patience_s(slowest.stage, first=True)
        return FirstStep(slowest.ticks * limits.tick_s, limit_s)

    @property
    def is_ready(self) -> bool:
        """All ranks are attached: results reach them."""
        return all(rank.stage not in BEFORE_READY for rank in self._ranks)

    def hello(self, message: RankHello) -> int:
        """A rank says hello; returns its number."""
        ranks = len(self._ranks)
        if message.world_size != ranks:
            raise WrongWorld(
                f"rank {message.rank} runs in a world of {message.world_size}, not {ranks}: start "
                "as many processes as node.ranks, or set it, as in "
                f"--set node.ranks={message.world_size}"
            )
        self._move(message.rank, Stage.STARTING, Stage.GREETED, "says hello")
        return message.rank

    def configured(self, rank: int) -> None:
        """We have answered its hello."""
        self._move(rank, Stage.GREETED, Stage.BUILDING, "was configured")

    def layout(
        self,
        rank: int,
        tensors: tuple[TensorPlace, ...],
        elements: int,
        frozen: tuple[FrozenTensor, ...] = (),
    ) -> tuple[TensorPlace, ...] | None:
        """The layout, once all ranks have reported it: the same, and covered exactly."""
        self._move(rank, Stage.BUILDING, Stage.REPORTED, "reports its layout")
        self._ranks[rank].layout = tensors
        self._ranks[rank].elements = elements
        self._ranks[rank].frozen = frozen
        if any(other.stage is not Stage.REPORTED for other in self._ranks):
            return None
        first = self._ranks[0].layout
        for number, other in enumerate(self._ranks):
            if other.layout != first:
                raise RankFault(_first_difference(number, first, other.layout))
        total = sum(fragment_elements(first))
        written = sum(other.elements for other in self._ranks)
        if written != total:
            raise RankFault(f"ranks write {written} elements, their layout has {total}")
        return first

    @property
    def frozen(self) -> tuple[FrozenTensor, ...]:
        """The frozen tensors that all ranks have reported, with digests of their whole contents.
        Raises RankFault if ranks report different ones."""
        first, *others = (rank.frozen for rank in self._ranks)
        named = [each[:3] for each in first]
        for number, other in enumerate(others, start=1):
            if [each[:3] for each in other] != named:
                raise RankFault(f"rank {number} has other frozen tensors than rank 0")
        columns = zip(*(rank.frozen for rank in self._ranks), strict=True)
        return tuple(
            parts[0]._replace(digest=sum(part.digest for part in parts) % (1 << 32))
            for parts in columns
        )

    def attached(self, rank: int, next_generations: Sequence[int]) -> None:
        """We have sent it the shared memory."""
        self._move(rank, Stage.REPORTED, Stage.MAPPING, "was attached")
        self._ranks[rank].generations = list(next_generations)
        self._ranks[rank].waits = set(range(len(next_generations)))

    def ready(self, rank: int) -> bool:
        """It has mapped the shared memory; True for the last rank."""
        self._move(rank, Stage.MAPPING, Stage.IDLE, "is ready")
        return self.is_ready

    def boundary(self, rank: int, question: Boundary) -> Answer:
        """The decision, made for the first rank that asks, the same for all."""
        if not self.is_ready:
            raise RankFault(f"rank {rank} asks for a boundary before all ranks are attached")
        fragments = len(self._ranks[rank].generations)
        if not question.left or any(not 0 <= each < fragments for each in question.left):
            raise RankFault(f"rank {rank} asks for fragments {list(question.left)[:8]}")
        return self._boundaries.answer(rank, question, ranks=len(self._ranks))

    def check_attached(self, rank: int, what: str) -> None:
        """This one is enough: others may still be on their way, and initial parameters are
        contributed at once."""
        if self._ranks[rank].stage in BEFORE_READY:
            raise RankFault(f"rank {rank} sends {what} before it is attached")

    def demanded(self, rank: int, message: SampleDemand) -> bool:
        """True when all ranks wait for a lease, each for the same one."""
        self.check_attached(rank, "SampleDemand")
        self._ranks[rank].demand = message
        self._enter(rank, Stage.IDLE)
        demands = {other.demand for other in self._ranks}
        if None in demands:
            return False
        if len(demands) > 1:
            raise RankFault(f"ranks disagree on the samples of a step: {demands}")
        return True

    def granted(self) -> None:
        """All ranks have the lease that they asked for: they train on."""
        for number, rank in enumerate(self._ranks):
            rank.demand = None
            if not rank.waits:
                self._enter(number, Stage.TRAINING)

    def contributed(self, rank: int, message: Contributed) -> bool:
        """True when all ranks have contributed this generation, with the same counts."""
        self.check_attached(rank, "Contributed")
        fragment, generation = message.fragment, message.generation
        generations = self._ranks[rank].generations
        if fragment >= len(generations):
            raise RankFault(f"rank {rank} contributes to fragment {fragment}, which is not there")
        if generation != generations[fragment]:
            raise RankFault(
                f"rank {rank} contributes generation {generation} of fragment {fragment}, "
                f"{generations[fragment]} is next"
            )
        slowest = min(other.generations[fragment] for other in self._ranks)
        if generation > slowest + 1:
            raise RankFault(f"rank {rank} overwrites generation {slowest}, which is not complete")
        generations[fragment] += 1
        self._ranks[rank].waits.add(fragment)
        self._enter(rank, Stage.IDLE)
        so_far = self._contributions.setdefault((fragment, generation), {})
        so_far[rank] = message
        if len(so_far) < len(self._ranks):
            return False
        del self._contributions[(fragment, generation)]
        counts = {(other.steps, other.tokens) for other in so_far.values()}
        if len(counts) > 1:
            raise RankFault(
                f"ranks disagree on (steps, tokens) of a contribution: {sorted(counts)}; each of "
                "them, in a pipeline too, must count the tokens of the whole node"
            )
        if len({other.samples for other in so_far.values()}) > 1:
            raise RankFault("ranks disagree on the samples of a contribution")
        self.contributed_once = True
        return True

    def result_sent(self, result: Result) -> None:
        """All ranks have a result: they go on training, or first do what it asks for, unless they
        await another result."""
        if result.finish:
            self._over.add(result.fragment)
        self.finishing = len(self._over) == len(self._ranks[0].generations)
        if result.snapshot:
            self._snapshots.setdefault(result.snapshot, set())
        self.counted_once = self.counted_once or result.counted
        extra = result.finish or result.evaluate or bool(result.snapshot)
        for number, rank in enumerate(self._ranks):
            rank.waits.discard(result.fragment)
            if not rank.waits:
                self._enter(number, Stage.WORKING if extra else Stage.TRAINING)

    def ordered(self, order: Order) -> None:
        """All ranks have an order to obey."""
        self.finishing = self.finishing or order.kind == "finish"
        self._orders.begin(order, ranks=len(self._ranks))
        # A step is watched by the step counter; the time of a large state is not known.
        steps = order.kind in ("make", "apply") and not order.snapshot
        for rank in range(len(self._ranks)):
            self._enter(rank, Stage.TRAINING if steps else Stage.WORKING)

    def obeyed(self, rank: int, number: int) -> bool:
        """True when all ranks have obeyed this one: the last order, or what follows it."""
        self._enter(rank, self._orders.obey(rank, number))
        order = self._orders.complete()
        if order is None:
            return False
        self.contributed_once = self.contributed_once or order.kind == "make"
        return True

    def snapshotted(self, rank: int, directory: str) -> bool:
        """True when all ranks have written their state."""
        if directory not in self._snapshots:
            raise RankFault(f"rank {rank} wrote a snapshot without an order: {directory}")
        self._snapshots[directory].add(rank)
        if len(self._snapshots[directory]) < len(self._ranks):
            return False
        del self._snapshots[directory]
        return True

    def ended(self, rank: int | None, returncode: int) -> bool:
        """True when all ranks have ended as they were told to; `rank` None means all."""
        if returncode != 0 or not self.finishing:
            return False
        self._ended.update(range(len(self._ranks)) if rank is None else (rank,))
        return len(self._ended) == len(self._ranks)

    def trains_no_more(self, rank: int) -> bool:
        """This rank makes no further step; True for the last one. No effect if the run is over, or
        before it was attached: then it has trained nothing."""
        if not self.finishing and self._ranks[rank].stage not in BEFORE_READY:
            self._enter(rank, Stage.DONE)
        return self.is_done

    @property
    def is_done(self) -> bool:
        """No rank makes a further step, before the end of the run."""
        return all(rank.stage is Stage.DONE for rank in self._ranks)

    def tick(self, steps: Sequence[int]) -> None:
        """Raises RankFault for a rank that takes too long; `steps` are the step counters."""
        limits = self.hang_limits
        for number, (rank, step) in enumerate(zip(self._ranks, steps, strict=True)):
            rank.ticks += 1
            if step != rank.step:
                rank.step = step
                rank.ticks = 0
                if rank.stage is Stage.WORKING and not self.finishing:
                    rank.stage = Stage.TRAINING
            first = not (step or self.finishing)
            patience_s = limits.patience_s(rank.stage, first=first)
            if rank.ticks * limits.tick_s >= patience_s and number not in self._ended:
                raise limits.fault(number, rank.stage, step, first=first)

    def _move(self, rank: int, before: Stage, after: Stage, what: str) -> None:
        if rank >= len(self._ranks):
            raise RankFault(f"rank {rank} of {len(self._ranks)} {what}")
        if self._ranks[rank].stage is not before:
            raise RankFault(f"rank {rank} {what} out of turn: it {self._ranks[rank].stage.value}")
        self._enter(rank, after)

    def _enter(self, rank: int, stage: Stage) -> None:
        if self._ranks[rank].stage is Stage.DONE:
            return  # Results and orders still come for the others.
        self._ranks[rank].stage = stage
        self._ranks[rank].ticks = 0


@functools.lru_cache(maxsize=1)  # Ranks, and attempts, report the same: 100,000 take 0.3 s each.
def layout_in(packed: bytes) -> tuple[TensorPlace, ...]:
    """Decode the layout that a rank reports. Raises RankFault."""
    try:
        return unpack_layout(packed)
    except WireError as error:
        raise RankFault(str(error)) from error


def frozen_in(packed: bytes) -> tuple[FrozenTensor, ...]:
    """Decode the frozen tensors that a rank reports. Raises RankFault."""
    try:
        return unpack_frozen(packed)
    except WireError as error:
        raise RankFault(str(error)) from error


def fragment_elements(tensors: Sequence[TensorPlace]) -> tuple[int, ...]:
    """Elements of each fragment. Raises RankFault unless fragments are numbered from 0 and densely
    packed in the order of their tensors."""
    ends: dict[int, int] = {}
    for tensor in tensors:
        if len(tensor.shape) > DIMENSIONS_MAX or 0 in tensor.shape:
            raise RankFault(f"{tensor.name} has the shape {tensor.shape[:DIMENSIONS_MAX]}")
        end = ends.get(tensor.fragment, 0)
        if tensor.offset != end:
            raise RankFault(
                f"{tensor.name} lies at element {tensor.offset} of fragment {tensor.fragment}, "
                f"the tensor before it ends at {end}"
            )
        ends[tensor.fragment] = end + math.prod(tensor.shape)
    if sorted(ends) != list(range(len(ends))) or not ends:
        raise RankFault(f"fragments must be numbered from 0, got {sorted(ends)[:8]}")
    return tuple(ends[fragment] for fragment in range(len(ends)))


def _first_difference(
    rank: int, first: tuple[TensorPlace, ...], other: tuple[TensorPlace, ...]
) -> str:
    for ours, theirs in zip(first, other, strict=False):
        if ours != theirs:
            return f"rank 0 has {ours}, rank {rank} has {theirs}"
    return f"rank 0 has {len(first)} tensors, rank {rank} has {len(other)}"
