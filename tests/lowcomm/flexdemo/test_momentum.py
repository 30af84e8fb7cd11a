"""The rank's half of FlexDeMo: against DeMo's equations in fp64, and which payloads count."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lowcomm.flexdemo.momentum import MomentumExchange
from lowcomm.flexdemo.momentum_file import load_momentum, save_momentum
from lowcomm.loop_state.rank_checkpoint import RankFile
from lowcomm.methods import FlexDeMoMethod
from lowcomm.methods.base import Parameter
from lowcomm.tensors import deterministic_ops
from protocols.types.ids import TensorSpec
from sims.lockstep.step_lockstep import StepLockstep

F64 = NDArray[np.float64]
SHAPES = [(40, 33), (70,), (3, 9)]
NODES, STEPS, LR, BETA, DECAY = 3, 25, 1e-2, 0.9, 0.1
CHUNK, TOPK = 16, 5


def gradients(node: int, step: int) -> list[F64]:
    drawn = np.random.default_rng((node, step))
    made = [drawn.standard_normal(shape).astype(np.float32) for shape in SHAPES]
    return [each.astype(np.float64) for each in made]


class Reference:
    """DeMo in fp64, a loop over tiles and coefficients; written from the equations."""

    def __init__(self, *, world_mean: bool, sign: bool) -> None:
        self.parameters = [np.ones(shape) for shape in SHAPES]
        self.momentum = [[np.zeros(shape) for shape in SHAPES] for _ in range(NODES)]
        self.clear = [np.ones(shape, bool) for shape in SHAPES]
        """Where no update was so small that rounding may have decided its sign."""
        self._world_mean = world_mean
        self._sign = sign

    def step(self, number: int) -> None:
        given = [gradients(node, number) for node in range(NODES)]
        for at, shape in enumerate(SHAPES):
            said = [self._say(node, at, given[node][at]) for node in range(NODES)]
            total = np.zeros(self._padded(shape))
            count = np.zeros(self._padded(shape))
            for spectrum in said:
                total += spectrum
                count += spectrum != 0
            mean = total / (NODES if self._world_mean else np.maximum(count, 1))
            update = self._each_tile(mean, forward=False)[tuple(map(slice, shape))]
            self.clear[at] &= np.abs(update) > 1e-7
            # Without a sign the rate is in the momentum already.
            moved = LR * np.sign(update) if self._sign else update
            self.parameters[at] *= 1 - LR * DECAY
            self.parameters[at] -= moved

    def _say(self, node: int, at: int, gradient: F64) -> F64:
        momentum = self.momentum[node]
        momentum[at] = BETA * momentum[at] + LR * gradient
        padded = np.zeros(self._padded(gradient.shape))
        padded[tuple(map(slice, gradient.shape))] = momentum[at]
        spectrum = self._each_tile(padded, forward=True)
        for tile in self._tiles(spectrum):
            border = np.sort(np.abs(tile), axis=None)[-TOPK]
            tile[np.abs(tile) < border] = 0
        said = self._each_tile(spectrum, forward=False)
        momentum[at] -= said[tuple(map(slice, gradient.shape))]
        return spectrum

    @staticmethod
    def _padded(shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(-(-size // CHUNK) * CHUNK for size in shape)

    @staticmethod
    def _tiles(values: F64) -> list[F64]:
        starts = [range(0, size, CHUNK) for size in values.shape]
        if values.ndim == 1:
            return [values[a : a + CHUNK] for a in starts[0]]
        return [values[a : a + CHUNK, b : b + CHUNK] for a in starts[0] for b in starts[1]]

    def _each_tile(self, values: F64, *, forward: bool) -> F64:
        k, n = np.arange(CHUNK)[:, None], np.arange(CHUNK)[None]
        basis = math.sqrt(2 / CHUNK) * np.cos(math.pi * (2 * n + 1) * k / (2 * CHUNK))
        basis[0] /= math.sqrt(2)
        if not forward:
            basis = basis.T
        made = values.copy()
        for tile in self._tiles(made):
            tile[...] = basis @ tile if tile.ndim == 1 else basis @ tile @ basis.T
        return made


class Nodes:
    """Several of one rank each, as lowcomm/flexdemo/method.py steps them."""

    def __init__(self, **options: Any) -> None:
        self.method = FlexDeMoMethod(chunk=CHUNK, topk=TOPK, momentum=BETA, **options)
        named = [Parameter(str(number), shape) for number, shape in enumerate(SHAPES)]
        sizes = [math.prod(shape) for shape in SHAPES]
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        layout = [
            TensorSpec(0, each.name, each.shape, start)
            for each, start in zip(named, starts, strict=True)
        ]
        self.together = StepLockstep(self.method, layout, seed=1)
        exchange = self.method.make_exchange(named, seed=1)
        self.payload_bytes = exchange.payload_bytes
        self.nodes = [
            MomentumExchange(exchange, momentum=BETA, rank=0, world_size=1) for _ in range(NODES)
        ]
        self.parameters = [torch.ones(shape) for shape in SHAPES]

    def written(self, node: int, step: int) -> bytearray:
        payload = bytearray(self.payload_bytes)
        rows = [torch.from_numpy(x).float() for x in gradients(node, step)]
        rows = [each.reshape(len(each), -1) for each in rows]
        self.nodes[node].write(rows, [LR] * len(SHAPES), step, memoryview(payload))
        return payload

    def step(self, number: int) -> None:
        written = [self.written(node, number) for node in range(NODES)]
        mean_P = torch.from_numpy(self.together.make_step(written).copy())
        for node in self.together.counted:
            self.nodes[node].counted(number)
        rates = deterministic_ops.Rates(lr=LR, weight_decay=DECAY)
        parts = torch.split(mean_P, [math.prod(shape) for shape in SHAPES])
        for parameter, update in zip(self.parameters, parts, strict=True):
            moved = update.sign() if self.method.sign == "after" else update
            rate = 1.0 if self.method.update_has_rate else LR
            deterministic_ops.descend(parameter, moved.view_as(parameter), rates, rate=rate)


@pytest.mark.parametrize("mean", ["contributors", "world"])
@pytest.mark.parametrize("sign", ["after", "none"])
def test_plain_tensors_step_by_the_equations(mean: str, sign: str) -> None:
    """Within 1e-6, away from signs that rounding decides."""
    reference = Reference(world_mean=mean == "world", sign=sign == "after")
    ours = Nodes(values="fp32", mean=mean, sign=sign)
    for number in range(1, STEPS + 1):
        reference.step(number)
        ours.step(number)
    moved = 0
    for made, expected, clear in zip(
        ours.parameters, reference.parameters, reference.clear, strict=True
    ):
        where = clear if sign == "after" else np.ones_like(clear)
        assert where.mean() > 0.99
        assert np.abs(made.numpy() - expected)[where].max() <= 1e-6
        moved += int((np.abs(expected - 1) > LR).sum())
    assert moved > 100


def test_momentum_changes_with_the_step_that_counts_the_payload() -> None:
    """What is made again has the bytes of the first time; what counts leaves the momentum."""
    ours = Nodes()
    first = ours.written(0, 1)
    assert ours.written(0, 1) == first, "it was not counted"
    ours.nodes[0].counted(7)
    assert ours.written(0, 1) == first, "another step was counted"
    ours.nodes[0].counted(1)
    second = ours.written(0, 1)
    assert second != first
    ours.nodes[0].counted(1)
    ours.nodes[0].counted(1)
    third = ours.written(0, 1)
    assert third != second


@pytest.mark.parametrize(("first", "goes_on"), [(4, True), (5, False), (3, False)])
def test_momentum_that_was_kept_is_for_the_next_step_alone(
    first: int, goes_on: bool, tmp_path: Path
) -> None:
    """What others heard of it later would be said again."""
    ours, again = Nodes(), Nodes()
    assert ours.nodes[0].kept(0) is None, "before the first payload there is none"
    for step in (1, 2, 3):
        ours.step(step)
    kept = ours.nodes[0].kept(3)
    assert kept is not None
    save_momentum(RankFile(tmp_path, 0, 1), kept)
    assert ours.nodes[0].kept(2) is None, "it is of a later step"
    owned, shapes = again.nodes[0].row_exchange.owned, again.nodes[0].shapes
    loaded = load_momentum(RankFile(tmp_path, 0, 1), owned, shapes)
    assert loaded is not None
    again.nodes[0].recall(loaded)
    fresh = Nodes().written(0, first)
    assert again.written(0, first) == (ours.written(0, first) if goes_on else fresh)
    assert ours.written(0, first) != fresh


def test_a_lone_node_still_compresses_and_keeps_the_rest() -> None:
    alone = Nodes(values="fp32")
    for step in (1, 2):
        alone.written(0, step)
        alone.nodes[0].counted(step)
    kept = alone.nodes[0].kept(2)
    assert kept is not None
    assert [part.shape[0] for part in kept[1]] == [shape[0] for shape in SHAPES]
    assert kept[1][0].count_nonzero() > 0.9 * kept[1][0].numel()


def test_who_had_partners_and_is_alone_goes_on_with_its_momentum() -> None:
    """Bit by bit as if they were still there: it says the same, and keeps the same."""
    left, together = Nodes(), Nodes()
    for step in range(1, 9):
        together.step(step)
        if step <= 4:
            left.step(step)
            continue
        written = left.written(0, step)
        mean_P = left.together.make_step([written])
        assert left.together.counted == (0,)
        assert mean_P.any()
        left.nodes[0].counted(step)
        ours, theirs = left.nodes[0].kept(step), together.nodes[0].kept(step)
        assert ours is not None
        assert theirs is not None
        assert all(map(torch.equal, ours[1], theirs[1]))
        assert all(part.any() for part in ours[1])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("replicator", ["demo", "random", "striding"])
def test_a_payload_that_is_not_finite_leaves_the_momentum_as_it_was(
    replicator: Any, bad: float
) -> None:
    """It counts for nothing, so nobody heard what it says: of the node's momentum nothing is gone
    but this gradient."""
    ours, other = Nodes(replicator=replicator, one_in=3), Nodes(replicator=replicator, one_in=3)
    for step in (1, 2):
        ours.step(step)
    kept = ours.nodes[0].kept(2)
    assert kept is not None
    before = [part.clone() for part in kept[1]]
    assert all(part.any() for part in before)
    payload = memoryview(bytearray(ours.payload_bytes))
    rows = [torch.full((shape[0], math.prod(shape[1:])), bad) for shape in SHAPES]
    ours.nodes[0].write(rows, [LR] * 3, 3, payload)
    good = ours.written(1, 3)
    mean_P = ours.together.make_step([payload, good])
    assert ours.together.counted == (1,)
    other.together.step = 2
    assert mean_P.tobytes() == other.together.make_step([good]).tobytes()
    for node in ours.together.counted:
        ours.nodes[node].counted(3)
    after = ours.nodes[0].kept(3)
    assert after is not None
    assert all(map(torch.equal, before, after[1]))
    ours.together.make_step([ours.written(0, 4)])
    assert ours.together.counted == (0,), "what was not finite did not stay"
