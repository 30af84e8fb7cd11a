"""The exchange between several nodes, in one process and in order: for research, and for tests of
methods.

Each node has the arithmetic of a real daemon (lowcomm/outer_state/replica.py) and none of the rest:
no link, no log, no clock, no thread. So a run is deterministic, and its bits are those that real
daemons compute from the same contributions. Must NOT know how a node trains, nor import torch.

Shapes: P elements of a fragment, fp32.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from lowcomm.methods import RoundMethod
from lowcomm.numerics import F32
from lowcomm.outer_state import Replica
from peers.exchange import Encoding, Pool, spans
from peers.ipc import Slots
from protocols.state import pairs_of
from protocols.types import Contributor, PeerId, Stamp, TensorSpec

NODES_MAX = 1000
"""With fewer nodes than this, the names sort as the numbers do."""


@dataclass(frozen=True, slots=True)
class LocalContribution:
    """The contribution of a node to a round."""

    local_P: F32
    """The node's parameters at its boundary, fp32 [P]."""
    tokens: int
    """Tokens trained on since the node was last counted: the weight of its contribution."""
    steps: int = 1


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The result of a round for one node. `values_P` does not change until the fragment's next
    round."""

    values_P: F32
    """fp32 [P]. If the node was counted: the outer parameters. Otherwise: their change, which the
    node adds to its own parameters."""
    counted: bool


class Lockstep:
    """Call `begin`, then `exchange_round` for each round; `close` once no result is read any
    more."""

    def __init__(
        self,
        method: RoundMethod,
        layout: Sequence[TensorSpec],
        *,
        nodes: int,
        names: Sequence[PeerId] = (),
    ) -> None:
        """All state is zero. `names`: of the nodes, ascending; in a gossip run, other names give
        other pairs. Raises LayoutError, and OSError if memory is short."""
        assert 1 <= nodes < NODES_MAX, f"{nodes} nodes"
        made = [PeerId(f"node{number:03d}.00000000") for number in range(nodes)]
        self._names = list(names or made)
        assert len(self._names) == nodes, f"{len(self._names)} names"
        assert self._names == sorted(self._names), (
            "names must be ascending: sums run in their order"
        )
        self._gossip = not method.replicas_equal
        self._replicas = [Replica(method, layout) for _ in range(nodes)]
        self._slots: list[Slots] = []
        self._pool = Pool()
        for replica in self._replicas:
            self._slots.append(Slots.create(replica.shape(ranks=1)))
            replica.share(self._slots[-1])
        self.rounds = [0] * len(self._replicas[0].sizes)
        """By fragment: the last round that was exchanged."""
        self.payload_bytes = 0
        """Bytes of all contributions so far, encoded, each counted once."""

    def begin(self, fragment: int, first_P: F32) -> str:
        """Set the initial parameters of every node, fp32 [P]. Returns the state digest."""
        for replica in self._replicas:
            replica.initialise(fragment, _bytes(first_P))
            replica.place_result(fragment, full=True)
        return self._digest(fragment)

    def exchange_round(
        self, fragment: int, given: Mapping[int, LocalContribution]
    ) -> tuple[list[RoundResult], str]:
        """Make one round of the nodes with these numbers; the other nodes are still training.
        Returns the result for each of all nodes, and the state digest, which is the same on all. In
        a gossip run the round consists of pairs, and the states of the other nodes do not change.

        Raises lowcomm errors for contributions of which no mean can be made.
        """
        assert given, "a round without contributions"
        self.rounds[fragment] += 1
        stamp = Stamp(0, 0, 1, fragment, self.rounds[fragment], 0)
        terms, slices = dict[int, Contributor](), dict[int, Encoding]()
        for node, own in sorted(given.items()):
            name = f"{self._names[node]} {fragment} {stamp.round}"
            terms[node] = Contributor(self._names[node], own.tokens, own.steps, name)
            slices[node] = self._encode(node, fragment, own.local_P, name)
        borders = (0, self._replicas[0].sizes[fragment])
        for together, takers in self._meet(stamp, sorted(given)):
            of = [terms[node] for node in together]
            result = self._reduce(fragment, of, [slices[node] for node in together])
            for node in takers:
                self._replicas[node].apply(stamp, borders, [result], of)
        for node in self._nodes if self._gossip else ():
            if node not in given:
                self._replicas[node].skip(stamp)
        for each in slices.values():
            each.release()
        taken = [self._take(node, fragment, counted=node in given) for node in self._nodes]
        return taken, self._digest(fragment)

    def arrays(self, fragment: int, node: int = 0) -> tuple[F32, F32]:
        """Copies of a node's (outer parameters, momentum), fp32 [P] each; except in a gossip run,
        they are the same on all nodes."""
        outer_P, momentum_P = self._replicas[node].lend(fragment)
        return outer_P.copy(), momentum_P.copy()

    def close(self) -> None:
        """Free the memory. Idempotent."""
        for slots in self._slots:
            slots.close()

    def _meet(
        self, stamp: Stamp, given: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Yield (nodes that contribute to a result, nodes that take it)."""
        if not self._gossip:
            yield given, self._nodes
            return
        roster = tuple(self._names[node] for node in given)
        for pair in pairs_of(roster, roster, fragment=stamp.fragment, round_=stamp.round):
            together = [self._names.index(name) for name in pair]
            yield together, together

    @property
    def _nodes(self) -> range:
        return range(len(self._replicas))

    def _encode(self, node: int, fragment: int, local_P: F32, name: str) -> Encoding:
        """Encode a contribution, written to where the node's ranks would have written it."""
        replica, place = self._replicas[node], self._slots[node].contribution(fragment)
        place[:] = _bytes(local_P)
        replica.contributions.take_local(fragment, place)
        size = replica.sizes[fragment]
        encoding = Encoding(replica, fragment, size, self._pool, manifest=name)
        self.payload_bytes += encoding.cut(0, size).nbytes
        return encoding

    def _reduce(
        self, fragment: int, terms: Sequence[Contributor], slices: Sequence[Encoding]
    ) -> memoryview:
        """Sum the fragment as one part; the bits do not depend on the part boundaries."""
        owner = self._replicas[0]
        size, layers = owner.sizes[fragment], owner.layers(fragment, len(terms))
        size_of = partial(owner.result_bytes, fragment)
        result = memoryview(bytearray(layers * size_of(size)))
        for start, stop in spans(size):
            out = result[layers * size_of(start) : layers * size_of(stop)]
            cuts = [each.cut(start, stop) for each in slices]
            owner.reduce(fragment, stop - start, cuts, terms, out)
        return result

    def _take(self, node: int, fragment: int, *, counted: bool) -> RoundResult:
        place = self._replicas[node].place_result(fragment, full=counted).place
        return RoundResult(
            np.frombuffer(self._slots[node].result(fragment, place), np.float32), counted
        )

    def _digest(self, fragment: int) -> str:
        (version,) = {replica.version(fragment) for replica in self._replicas}
        return version[1]


def _bytes(values_P: F32) -> memoryview:
    return np.ascontiguousarray(values_P, np.float32).view(np.uint8).data
