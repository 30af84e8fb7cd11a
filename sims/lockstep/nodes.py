"""Whole nodes in one process: ranks as under a daemon, and between them
`sims/lockstep/exchange.py`.

Each node has one rank, which contributes and takes results by lowcomm/training/round_rank.py. So
any method of rounds runs unchanged, and ends with the bits of real daemons that did the same work.
The caller decides which node steps when: a node that waits for a result does nothing else. Must NOT
know what an inner step is, nor import torch.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lowcomm.config import RunConfig, early_steps, planned_rounds, round_steps
from lowcomm.data import NodeLease
from lowcomm.methods import RoundMethod
from lowcomm.numerics import F32
from lowcomm.outer_state import fragment_elements
from lowcomm.training import ANCHOR, RoundRank, RoundState
from peers.ipc import Attached, Result, SlotsShape, TensorPlace
from protocols.rounds import next_fragment
from protocols.types import SAMPLES_MAX, PeerId, SampleRange, Samples, TensorSpec
from sims.lockstep.exchange import LocalContribution, Lockstep, RoundResult

Decide = Callable[[int, bool, Sequence[int]], int | None]
"""(inner step, whether a contribution is due, fragments left) -> the fragment to contribute, as a
daemon would decide; None: no fragment."""


@dataclass(slots=True)
class _Round:
    """The open round of a fragment, as one node sees it."""

    next_round: int = 1


class LockstepClient:
    """The rank's side of one node's shared memory and messages: what RankClient is under a daemon.

    Implements lowcomm.training.round_rank.RoundClient.
    """

    def __init__(self, number: int, nodes: "LockstepNodes") -> None:
        self.decide: Decide = self._take_turns
        self._number = number
        self._nodes = nodes
        self._written = [np.empty(size, np.float32) for size in nodes.sizes]
        """By fragment: the slot of the contribution, fp32 [P]."""
        self._rounds = [_Round() for _ in nodes.sizes]
        self._results: list[deque[tuple[Result, F32]]] = [deque() for _ in nodes.sizes]
        """By fragment: the results that the rank has not taken yet."""
        self._taken: dict[int, F32] = {}
        """By fragment: the values of the result that the rank took last."""

    def post(self, result: Result, values_P: F32) -> None:
        """Deliver a result to the rank; called by `LockstepNodes`."""
        self._results[result.fragment].append((result, values_P))

    def has_result(self, fragment: int) -> bool:
        """True if the next result of the fragment is there."""
        return bool(self._results[fragment])

    def _take_turns(self, step: int, due: bool, left: Sequence[int]) -> int | None:
        return next_fragment(self._rounds, left) if due else None

    # RoundClient ----------------------------------------------------------------------------

    def contribution(self, fragment: int) -> memoryview:
        return self._written[fragment].view(np.uint8).data

    def contribute(self, fragment: int, *, steps: int, tokens: int, samples: Samples) -> None:
        given = LocalContribution(self._written[fragment], tokens, steps)
        if not steps:
            self._nodes.begin(fragment, given)
            return
        self._rounds[fragment].next_round += 1
        self._nodes.offer(self._number, fragment, given)

    def wait_result(self, fragment: int) -> Result:
        result, self._taken[fragment] = self._results[fragment].popleft()
        return result

    def result(self, result: Result) -> memoryview:
        return self._taken[result.fragment].view(np.uint8).data.toreadonly()

    def check_untorn(self, result: Result) -> None:
        """The result cannot be torn: no other process writes it."""

    def count_step(self, step: int) -> None:
        """No daemon watches the steps."""

    def ask_boundary(self, steps: int, *, due: bool, left: Sequence[int]) -> int | None:
        return self.decide(steps, due, left)


class LockstepNode:
    """One node, with one rank. Implements lowcomm.training.round_rank.RoundPeer."""

    def __init__(self, number: int, nodes: "LockstepNodes") -> None:
        self.run = nodes.run
        self.lease = NodeLease()
        self.finished = False
        self.rank: RoundRank
        self.client = LockstepClient(number, nodes)
        self._number = number
        self._sizes = nodes.sizes
        self._following: Iterator[int] = iter(())
        self._awaits: int | None = None
        """The fragment of the result that the rank needs before it goes on; None: it trains."""

    # Interface ------------------------------------------------------------------------------

    def begin(self, state: RoundState) -> None:
        """Start the node with these parameters. The run takes those of the first node."""
        shape = SlotsShape(1, tuple(4 * size for size in self._sizes))
        initial = self._number == 0
        attached = Attached(shape=shape, initial=initial, slot=self._number, rank_state="")
        self.rank = RoundRank(self, state, attached)
        self._follow()

    def go_on(self) -> bool:
        """Do all that is due. Returns False if the node waits for a result that is not there yet,
        or has finished."""
        while self._awaits is not None:
            if not self.client.has_result(self._awaits):
                return False
            self.rank.take_result(self.client.wait_result(self._awaits))
            self._awaits = next(self._following, None)
        return not self.finished

    def step(self, *, tokens: int) -> None:
        """Count an inner step. The last `go_on` must have returned True."""
        assert self._awaits is None, "a step before a result that is due"
        self.rank.count(tokens=tokens)
        self._follow()

    def _follow(self) -> None:
        self._following = self.rank.following()
        self._awaits = next(self._following, None)

    # RoundPeer ------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """No caller asks for an evaluation."""

    def finish(self, *, evaluate: bool) -> None:
        self.finished = True


class LockstepNodes:
    """All nodes of a run. A round is exchanged once all nodes have contributed to it."""

    def __init__(
        self,
        run: RunConfig,
        layout: Sequence[TensorPlace],
        *,
        nodes: int,
        names: Sequence[PeerId] = (),
    ) -> None:
        """`names`: as for Lockstep. Raises LayoutError, and OSError if memory is short."""
        method = run.method
        assert isinstance(method, RoundMethod)
        self.run = run
        specs = [TensorSpec(t.fragment, t.name, t.shape, t.offset, t.kind) for t in layout]
        self.sizes = fragment_elements(specs)
        self.inner_step = 0
        """Inner steps of the run, as committed by the anchor."""
        self.digests: dict[tuple[int, int], str] = {}
        """By (fragment, round): the state digest after that round."""
        self.joins = False
        """In their first round, nodes ask whether to contribute early, as a node does that joins a
        run under way."""
        self._rounds = planned_rounds(run)
        self._lockstep = Lockstep(method, specs, nodes=nodes, names=names)
        self._given: list[dict[int, LocalContribution]] = [{} for _ in self.sizes]
        self.nodes = [LockstepNode(number, self) for number in range(nodes)]

    def train(self, states: Sequence[RoundState], step: Callable[[int], int]) -> None:
        """Train until the run is finished, with all nodes at the same speed. `step`: make an inner
        step of the node with this number; returns its tokens."""
        for node, state in zip(self.nodes, states, strict=True):
            node.begin(state)
        while not all(node.finished for node in self.nodes):
            able = [number for number, node in enumerate(self.nodes) if node.go_on()]
            for number in able:
                self.nodes[number].step(tokens=step(number))

    def arrays(self, fragment: int, node: int = 0) -> tuple[F32, F32]:
        """Copies of a node's outer (parameters, momentum), fp32 [P] each."""
        return self._lockstep.arrays(fragment, node)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all contributions so far, encoded, each counted once."""
        return self._lockstep.payload_bytes

    def close(self) -> None:
        """Free the memory. Idempotent."""
        self._lockstep.close()

    def begin(self, fragment: int, first: LocalContribution) -> None:
        """Set the parameters of version 0; called by the first node."""
        self.digests[fragment, 0] = self._lockstep.begin(fragment, first.local_P)
        outer_P, _ = self.arrays(fragment)
        for node in self.nodes:
            self._post(node, fragment, RoundResult(outer_P, counted=False))

    def offer(self, number: int, fragment: int, given: LocalContribution) -> None:
        """Take the contribution of a node. The last one of a round makes the exchange."""
        waiting = self._given[fragment]
        waiting[number] = given
        if len(waiting) < len(self.nodes):
            return
        taken, digest = self._lockstep.exchange_round(fragment, waiting)
        if fragment == ANCHOR:
            self.inner_step += max(each.steps for each in waiting.values())
        waiting.clear()
        self.digests[fragment, self._lockstep.rounds[fragment]] = digest
        for node, each in zip(self.nodes, taken, strict=True):
            self._post(node, fragment, each)

    def _post(self, node: LockstepNode, fragment: int, taken: RoundResult) -> None:
        version, steps = self._lockstep.rounds[fragment], round_steps(self.run, self.inner_step)
        result = Result(
            fragment=fragment,
            place=0,
            kind="full",  # All are counted.
            counted=taken.counted,
            contributors=len(self.nodes),
            version=version,
            inner_step=self.inner_step,
            boundary_steps=early_steps(self.run, steps, joins=self.joins and not version),
            finish=version == self._rounds,
            samples=(SampleRange(0, SAMPLES_MAX),),  # No step draws any.
        )
        node.client.post(result, taken.values_P)
