"""Methods of rounds, whole: nodes in lockstep against the papers' algorithms, in plain loops."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lowcomm.config.schema import RunConfig
from lowcomm.methods import (
    AnyMethod,
    DiLoCoMethod,
    EagerDiLoCoMethod,
    LocalSGDMethod,
    StreamingDiLoCoMethod,
)
from lowcomm.numerics.operations import F32
from lowcomm.training.interfaces import Kind
from peers.ipc.messages import TensorPlace
from sims.lockstep.nodes import LockstepNodes

F64 = npt.NDArray[np.float64]

SIZE = 24
"""Of each block, and of what is in none."""
NODES = 3
INNER_LR = 0.05
OUTER: dict[str, Any] = {"outer_lr": 0.4, "outer_momentum": 0.9}
TOLERANCE = 1e-6


def start(fragments: int) -> F64:
    """[fragments, SIZE]: exact in fp32."""
    values = np.random.default_rng(1).standard_normal((fragments, SIZE))
    return values.astype(np.float32).astype(np.float64)


def target(node: int, step: int, fragments: int) -> F64:
    """Where the node's loss has its minimum in this inner step."""
    made = np.random.default_rng([node, step]).standard_normal((fragments, SIZE))
    return made.astype(np.float32).astype(np.float64)


class Node:
    """Plain SGD on that loss. Implements lowcomm.training.interfaces.RoundState; block p is
    fragment p.
    """

    def __init__(self, number: int, fragments: int) -> None:
        self.theta_FP: F32 = start(fragments).astype(np.float32)
        self.steps = 0
        self.path: list[F32] = []
        """The parameters before each inner step."""
        self._number = number

    def step(self) -> None:
        self.path.append(self.theta_FP.copy())
        self.steps += 1
        away_FP = target(self._number, self.steps, len(self.theta_FP)).astype(np.float32)
        self.theta_FP -= np.float32(INNER_LR) * (self.theta_FP - away_FP)

    def write(self, fragment: int, place: memoryview) -> None:
        self.copy(fragment, place)

    def copy(self, fragment: int, place: memoryview) -> None:
        np.frombuffer(place, np.float32)[:] = self.theta_FP[fragment]

    def take_result(self, fragment: int, values: memoryview, kind: Kind, *, mixing: float) -> None:
        new_P = np.frombuffer(values, np.float32)
        assert kind == "full", "all are counted, always"
        ours_P = self.theta_FP[fragment]
        ours_P[:] = new_P if not mixing else mixing * ours_P + (1 - mixing) * new_P

    def snapshot(self, directory: str) -> None:
        raise AssertionError(f"nobody asked for {directory}")


def trained(method: AnyMethod, fragments: int, rounds: int) -> tuple[list[Node], list[F32]]:
    """The nodes at the end, and the outer parameters of each fragment."""
    run = RunConfig(outer_steps=rounds, method=method, peers_min=NODES)
    layout = [TensorPlace(p, f"blocks.{p}.w", (SIZE,), 0) for p in range(fragments)]
    together = LockstepNodes(run, layout, nodes=NODES)
    nodes = [Node(number, fragments) for number in range(NODES)]

    def step(number: int) -> int:
        nodes[number].step()
        return 100

    together.train(nodes, step)
    arrays = [together.arrays(p)[0] for p in range(fragments)]
    together.close()
    return nodes, arrays


def streaming(
    fragments: int, inner_steps: int, overlap: int, mixing: float, rounds: int, clip: float
) -> tuple[F64, list[int]]:
    """Algorithm 2 of arXiv:2501.18512 in fp64, with CO2's clip of the outer momentum; also how
    often each fragment was exchanged."""
    theta_M = [start(fragments) for _ in range(NODES)]
    outer, buf = start(fragments), np.zeros((fragments, SIZE))
    offsets = [p * inner_steps // fragments for p in range(fragments)]
    sent: dict[int, F64] = {}
    exchanged = [0] * fragments
    for t in range(1, rounds * inner_steps + overlap + 1):
        for node in range(NODES):
            theta_M[node] -= INNER_LR * (theta_M[node] - target(node, t, fragments))
        for p in range(fragments):
            if (t - offsets[p]) % inner_steps == 0 and exchanged[p] < rounds:
                sent[p] = outer[p] - np.mean([theta[p] for theta in theta_M], axis=0)
                exchanged[p] += 1
            if (t - offsets[p] - overlap) % inner_steps == 0 and p in sent:
                mean = sent.pop(p)
                buf[p] = np.clip(OUTER["outer_momentum"] * buf[p] + mean, -clip, clip)
                outer[p] -= OUTER["outer_lr"] * (mean + OUTER["outer_momentum"] * buf[p])
                for theta in theta_M:
                    theta[p] = mixing * theta[p] + (1 - mixing) * outer[p]
    return outer, exchanged


@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize(
    ("fragments", "inner_steps", "overlap", "mixing"),
    [
        *((2, 8, 0, 0.0), (2, 8, 2, 0.5), (4, 16, 1, 0.5), (3, 7, 2, 0.25), (1, 5, 4, 0.75)),
        # Several in flight at once.
        *((4, 8, 6, 0.5), (8, 8, 3, 0.0), (24, 24, 2, 0.0), (3, 8, 7, 0.25), (5, 5, 4, 0.0)),
    ],
)
def test_streaming_diloco_is_the_papers_algorithm(
    fragments: int, inner_steps: int, overlap: int, mixing: float, clip: float
) -> None:
    rounds = 12
    method = StreamingDiLoCoMethod(
        inner_steps=inner_steps,
        fragments=fragments,
        overlap_steps=overlap,
        mixing=mixing,
        momentum_clip=clip,
        **OUTER,
    )
    nodes, arrays = trained(method, fragments, rounds)
    most = clip or np.inf
    outer, exchanged = streaming(fragments, inner_steps, overlap, mixing, rounds, most)
    assert exchanged == [rounds] * fragments
    for p, array_P in enumerate(arrays):
        np.testing.assert_allclose(array_P, outer[p], rtol=0, atol=TOLERANCE)
    for node in nodes:
        assert node.steps == rounds * inner_steps
        assert node.theta_FP.tobytes() == np.stack(arrays).tobytes(), "all end with the run's"


def diloco(lr: float, momentum: float, *, lengths: Sequence[int]) -> F64:
    theta, buf, t = start(1), np.zeros((1, SIZE)), 0
    for inner_steps in lengths:
        ends: list[F64] = []
        for node in range(NODES):
            local = theta.copy()
            for step in range(t + 1, t + inner_steps + 1):
                local -= INNER_LR * (local - target(node, step, 1))
            ends.append(local)
        t += inner_steps
        mean = theta - np.mean(ends, axis=0)
        buf = momentum * buf + mean
        theta = theta - lr * (mean + momentum * buf)
    return theta


PLAIN: dict[str, tuple[Callable[..., AnyMethod], dict[str, Any], float, float]] = {
    "diloco": (DiLoCoMethod, OUTER, OUTER["outer_lr"], OUTER["outer_momentum"]),
    "local_sgd": (LocalSGDMethod, {}, 1.0, 0.0),
}


@pytest.mark.parametrize("name", PLAIN)
def test_methods_that_wait_are_plain_loops(name: str) -> None:
    make, said, lr, momentum = PLAIN[name]
    nodes, arrays = trained(make(inner_steps=5, **said), 1, 10)
    expected = diloco(lr, momentum, lengths=[5] * 10)
    np.testing.assert_allclose(arrays[0], expected[0], rtol=0, atol=TOLERANCE)
    assert {node.theta_FP.tobytes() for node in nodes} == {arrays[0].tobytes()}


def test_rounds_that_grow_longer_are_the_same_loop() -> None:
    """The learning rate is 0.003 at step 30, and then falls; 100 steps in all. (0.006 / rate)^2 is
    4 at step 30, 7.2 at step 55, 10.7 at step 62 and 23.7 at step 72; 5 are left at step 95."""
    nodes, arrays = trained(DiLoCoMethod(inner_steps=5, qsr_alpha=6e-3, **OUTER), 1, 20)
    lengths = [5] * 11 + [7, 10, 23, 5]
    assert [node.steps for node in nodes] == [sum(lengths)] * NODES == [100] * NODES
    expected = diloco(OUTER["outer_lr"], OUTER["outer_momentum"], lengths=lengths)
    np.testing.assert_allclose(arrays[0], expected[0], rtol=0, atol=TOLERANCE)


def eager(lr: float, momentum: float, *, rounds: int, inner_steps: int) -> tuple[F64, F64]:
    """Algorithm 3 of arXiv:2502.12996: the parameters of each node when a round begins, [rounds,
    NODES, SIZE]; and what all means, with nothing else, lead to."""
    theta_M = [start(1)[0] for _ in range(NODES)]
    buf_M = [np.zeros(SIZE) for _ in range(NODES)]
    shared, buf = start(1)[0], np.zeros(SIZE)
    last, last_M = np.zeros(SIZE), [np.zeros(SIZE) for _ in range(NODES)]
    path: list[list[F64]] = []
    for t in range(rounds):
        path.append([theta.copy() for theta in theta_M])
        given_M: list[F64] = []
        for node, theta in enumerate(theta_M):
            local = theta.copy()
            for step in range(t * inner_steps + 1, (t + 1) * inner_steps + 1):
                local -= INNER_LR * (local - target(node, step, 1)[0])
            given_M.append(theta - local)
        for node, given in enumerate(given_M):
            applied = given / NODES + (last - last_M[node] / NODES)
            buf_M[node] = momentum * buf_M[node] + applied
            theta_M[node] = theta_M[node] - lr * (applied + momentum * buf_M[node])
        last, last_M = np.mean(given_M, axis=0), given_M
        buf = momentum * buf + last
        shared = shared - lr * (last + momentum * buf)
    return np.array(path), shared


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_eager_diloco_is_the_papers_algorithm(momentum: float) -> None:
    rounds, inner_steps = 15, 4
    method = EagerDiLoCoMethod(inner_steps=inner_steps, outer_lr=0.4, outer_momentum=momentum)
    nodes, arrays = trained(method, 1, rounds)
    path, shared = eager(0.4, momentum, rounds=rounds, inner_steps=inner_steps)
    for number, node in enumerate(nodes):
        assert node.steps == rounds * inner_steps
        begins = [values[0] for values in node.path[::inner_steps]]
        np.testing.assert_allclose(begins, path[:, number], rtol=0, atol=1e-5)
        assert node.theta_FP.tobytes() == arrays[0].tobytes(), "all end with the run's"
    np.testing.assert_allclose(arrays[0], shared, rtol=0, atol=1e-5)


def clipped_eager(lr: float, momentum: float, clip: float, *, rounds: int, inner_steps: int) -> F64:
    """What all have in common, and each node's offset from it: each with a momentum of its own,
    each clipped. Returns the parameters of each node when a round begins, [rounds, NODES, SIZE]."""
    at = np.array([start(1)[0]] + [np.zeros(SIZE)] * NODES)
    buf = np.zeros_like(at)
    last, last_M = np.zeros(SIZE), [np.zeros(SIZE) for _ in range(NODES)]
    path: list[F64] = []
    for t in range(rounds):
        path.append(at[0] + at[1:])
        given_M: list[F64] = []
        for node, theta in enumerate(path[-1]):
            local = theta.copy()
            for step in range(t * inner_steps + 1, (t + 1) * inner_steps + 1):
                local -= INNER_LR * (local - target(node, step, 1)[0])
            given_M.append(theta - local)
        own_M = [(new - old) / NODES for new, old in zip(given_M, last_M, strict=True)]
        drive = np.array([last, *own_M])
        buf = np.clip(momentum * buf + drive, -clip, clip)
        at = at - lr * (drive + momentum * buf)
        last, last_M = np.mean(given_M, axis=0), given_M
    return np.array(path)


def test_a_clip_of_eager_updates_is_of_each_momentum_by_itself() -> None:
    rounds, inner_steps, clip = 15, 4, 0.02
    outer: dict[str, Any] = {"outer_lr": 0.4, "outer_momentum": 0.9}
    method = EagerDiLoCoMethod(inner_steps=inner_steps, momentum_clip=clip, **outer)
    nodes, _ = trained(method, 1, rounds)
    path = clipped_eager(0.4, 0.9, clip, rounds=rounds, inner_steps=inner_steps)
    for number, node in enumerate(nodes):
        begins = [values[0] for values in node.path[::inner_steps]]
        np.testing.assert_allclose(begins, path[:, number], rtol=0, atol=1e-5)


def test_a_node_that_waits_for_others_makes_no_step() -> None:
    run = RunConfig(outer_steps=3, method=StreamingDiLoCoMethod(inner_steps=8, fragments=2))
    layout = [TensorPlace(p, f"blocks.{p}.w", (SIZE,), 0) for p in range(2)]
    together = LockstepNodes(run, layout, nodes=2)
    fast, slow = together.nodes
    for number, node in enumerate(together.nodes):
        node.begin(Node(number, 2))
    assert fast.go_on()
    assert slow.go_on()
    for _ in range(4 + 1):
        assert fast.go_on()
        fast.step(tokens=1)
    assert not fast.go_on(), "contributed after 4 steps, taken after one more"
    for _ in range(4):
        slow.step(tokens=1)
        slow.go_on()
    assert fast.go_on()
    assert together.inner_step == 0
    together.close()
