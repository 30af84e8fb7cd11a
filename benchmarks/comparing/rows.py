"""The comparison's methods, the points tried of each, the sizes of runs, and the bars.

A new method is one Row, and a Bar if it has to meet one. Must NOT train or judge.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.comparing.settings import OPTIMIZER, Setting, World
from lowcomm.config import AdamWConfig, MuonConfig
from lowcomm.methods import (
    AllReduceMethod,
    AnyMethod,
    DecoupledDiLoCoMethod,
    DiLoCoMethod,
    EagerDiLoCoMethod,
    FlexDeMoMethod,
    LocalSGDMethod,
    NoLoCoMethod,
    SparseLoCoMethod,
    StreamingDiLoCoMethod,
)
from protocols.types import ConfigError

INNER_STEPS = 30
BASELINE = "allreduce"
MUON = MuonConfig(lr=OPTIMIZER.lr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a method's grid."""

    method: AnyMethod
    lr: float = OPTIMIZER.lr
    """Peak learning rate of the inner optimizer."""
    optimizer: AdamWConfig | MuonConfig = OPTIMIZER
    """The inner optimizer; its learning rate is replaced by `lr`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table: a method, with the best of its points."""

    name: str
    points: Sequence[Point] = ()
    like: str = ""
    """If not "", the row has no points, and takes the one that was chosen for this row."""
    world: World = "equal"
    scratch: bool = True
    """Whether it is also tried without a warm start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A requirement on a row: met if the mean is within the bound and one standard error."""

    row: str
    against: str
    within: float
    """The held-out loss may exceed that of `against` by at most this share."""
    waits_most: float = 1.0
    """No node waits for more than this share of its time."""
    fewer_bytes: float = 0.0
    """In each round it sends at most 1 / this of the bytes of `against`, both by the best
    exchange."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Length and seeds of runs."""

    steps: int
    warm_steps: int
    seeds: Sequence[int]


GRID = Size(steps=240, warm_steps=90, seeds=(0,))
"""2.0 M tokens, of which 37.5 % are the warm start's; 5 rounds."""
FULL = Size(steps=720, warm_steps=300, seeds=(1, 2, 3))
"""5.9 M tokens, of which 42 % are the warm start's; 14 rounds."""
SCRATCH = Size(steps=720, warm_steps=0, seeds=(1,))
"""24 rounds."""
QUICK = Size(steps=150, warm_steps=60, seeds=(1,))
"""1.2 M tokens; 3 rounds."""
OUTER = ((0.7, 0.5), (1.0, 0.0))
"""Learning rate and momentum of the outer step: the best two in a dozen rounds."""
MEAN_LRS = (6e-3, 9e-3, 1.2e-2, 1.6e-2)
"""Learning rates of the inner optimizer if the method only averages."""
ROUND_LRS = (6e-3, 1.2e-2)
"""Learning rates that are each tried with two outer steps; half of 6e-3 was worse
(docs/log.md)."""
SIGN_LRS = (4e-3, 2e-3, 8e-3, 1.6e-2)
"""Learning rates of FlexDeMo if each step moves every element by the rate (docs/log.md)."""
RANDOM_LRS = (2e-2, 4e-2, 8e-2, 1.6e-1)
"""Learning rates if each step moves one element in 16."""
STRIDING_LRS = (1e-2, 2e-2, 5e-3, 4e-2)
"""Lower learning rates: each step moves the same columns of all rows."""


def _flexdemo(method: FlexDeMoMethod, lrs: Sequence[float]) -> Row:
    name = f"flexdemo {method.replicator}"
    return Row(name=name, points=[Point(method=method, lr=lr) for lr in lrs])


def _outer_grid(
    method: DecoupledDiLoCoMethod | DiLoCoMethod | NoLoCoMethod | StreamingDiLoCoMethod,
) -> list[Point]:
    """Points with two learning rates of the inner optimizer, each with the two best outer steps."""
    return [
        Point(method=replace(method, outer_lr=outer_lr, outer_momentum=momentum), lr=lr)
        for lr in ROUND_LRS
        for outer_lr, momentum in OUTER
    ]


ROWS = (
    Row(
        name=BASELINE,
        points=[Point(method=AllReduceMethod(), lr=lr) for lr in MEAN_LRS],
    ),
    Row(
        name="diloco",
        points=_outer_grid(DiLoCoMethod(inner_steps=INNER_STEPS)),
    ),
    Row(
        name="local_sgd",
        points=[Point(method=LocalSGDMethod(inner_steps=INNER_STEPS), lr=lr) for lr in MEAN_LRS],
    ),
    Row(
        name="streaming_diloco fp4",
        points=_outer_grid(
            StreamingDiLoCoMethod(
                inner_steps=INNER_STEPS, contribution_codec="fp4", result_codec="bf16"
            )
        ),
    ),
    Row(
        name="eager_diloco",
        points=[
            Point(
                method=EagerDiLoCoMethod(
                    inner_steps=INNER_STEPS, outer_lr=outer_lr, outer_momentum=momentum
                ),
            )
            for outer_lr, momentum in (*OUTER, (0.4, 0.5), (0.7, 0.0))
        ],
    ),
    Row(
        name="decoupled_diloco",
        points=_outer_grid(DecoupledDiLoCoMethod(inner_steps=INNER_STEPS, fragments=8)),
    ),
    Row(
        name="sparseloco",
        points=[
            Point(method=SparseLoCoMethod(inner_steps=INNER_STEPS, outer_lr=outer_lr), lr=lr)
            for lr in ROUND_LRS
            for outer_lr in (1.0, 2.0)
        ],
    ),
    Row(
        name="noloco",
        points=_outer_grid(NoLoCoMethod(inner_steps=INNER_STEPS)),
    ),
    Row(
        name="diloco muon",
        points=[
            replace(point, optimizer=MUON)
            for point in _outer_grid(DiLoCoMethod(inner_steps=INNER_STEPS))
        ],
    ),
    _flexdemo(FlexDeMoMethod(replicator="full"), SIGN_LRS),
    _flexdemo(FlexDeMoMethod(replicator="demo"), SIGN_LRS),
    _flexdemo(FlexDeMoMethod(replicator="random"), RANDOM_LRS),
    _flexdemo(FlexDeMoMethod(replicator="striding"), STRIDING_LRS),
    Row(name="diloco speeds 1:1:2:4", like="diloco", world="speeds", scratch=False),
    Row(name="diloco churn", like="diloco", world="churn", scratch=False),
)
"""All rows; `--quick` takes the first point of each."""
BARS = (
    Bar(row="diloco", against=BASELINE, within=0.05),
    Bar(row="streaming_diloco fp4", against="diloco", within=0.01),
    Bar(row="sparseloco", against="diloco", within=0.05, fewer_bytes=100),
    Bar(row="diloco muon", against=BASELINE, within=0.03),
    Bar(row="flexdemo demo", against="flexdemo full", within=0.01),
    Bar(row="flexdemo random", against="flexdemo full", within=0.01),
    Bar(row="diloco speeds 1:1:2:4", against="diloco", within=0.02, waits_most=0.05),
    Bar(row="diloco churn", against="diloco", within=0.02),
)


def setting(point: Point, size: Size, *, seed: int, world: World = "equal") -> Setting:
    """A run of this point."""
    return Setting(
        method=point.method,
        seed=seed,
        steps=size.steps,
        warm_steps=size.warm_steps,
        world=world,
        optimizer=replace(point.optimizer, lr=point.lr),
    )


def choose(only: str) -> list[Row]:
    """The rows with a name that begins with one of these comma-separated words, in the table's
    order, and the rows that they need. Raises ConfigError."""
    words = [word for word in only.split(",") if word]
    for word in words:
        if not any(row.name.startswith(word) for row in ROWS):
            raise ConfigError(f"--only {word}: there are {'; '.join(row.name for row in ROWS)}")
    named = {row.name for row in ROWS if not words or row.name.startswith(tuple(words))}
    named |= {bar.against for bar in BARS if bar.row in named}
    named |= {BASELINE} | {row.like for row in ROWS if row.name in named}
    return [row for row in ROWS if row.name in named]


def base_of(row: Row) -> Row:
    """The row that has this row's points."""
    (base,) = [each for each in ROWS if each.name == (row.like or row.name)]
    return base
