"""The torch half of a method in somebody's own program; learning rates; what is refused."""

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, get_args

import numpy as np
import pytest
import torch
from torch import nn

import lowcomm
from lowcomm.config.schema import DataConfig, NodeConfig, RunConfig
from lowcomm.data.batches import permutation_keys, permuted
from lowcomm.methods import (
    PER_STEP_METHODS,
    AllReduceMethod,
    AnyMethod,
    DiLoCoMethod,
    StreamingDiLoCoMethod,
)
from lowcomm.tensors.fsdp import EXIT_PAUSE_S
from lowcomm.training.round_methods import ROUND_METHODS, _stepped
from peers.ipc.messages import TensorPlace
from peers.processes.supervisor import CommandSpawner
from peers.ranks.events import RanksFinished
from protocols.types.errors import ConfigError
from protocols.types.sample_ranges import SampleRange
from tests.cluster import layouts_train
from tests.lowcomm import pipeline_ranks, rank_driver
from tests.lowcomm.forking import run_ranks
from tests.marks import LONG, NIGHTLY

HERE = Path(__file__).parents[1]
H = 3
RUN = RunConfig(seed=9, method=DiLoCoMethod(inner_steps=H), data=DataConfig(batch=4, window=16))
FIRST = (SampleRange(5, 10), SampleRange(38, 60))
SECOND = (SampleRange(100, 120),)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.mark.long
@pytest.mark.deadline(100)
def test_a_users_own_loop_under_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent.parent))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # torchrun leaves a directory of logs there.
    slot = 5
    start = np.array([0.5, 0.0], np.float32)
    last = np.array([2.0, 0.25], np.float32)

    def driver() -> Any:
        spawner = CommandSpawner([*TORCHRUN, str(HERE / "user_loop.py"), str(tmp_path)])
        node = NodeConfig(name="alpha", ranks=2)
        return rank_driver.Driver(spawner, run=RUN, node=node, corpus=tmp_path)

    async def play(driver: Any) -> None:
        layout = await driver.attach(initial=False, slot=slot)
        assert layout.tensors == (
            TensorPlace(0, "weight", (1, 1), 0),
            TensorPlace(0, "bias", (1,), 1),
        )
        driver.post(start, "full", inner_step=0, samples=FIRST)
        event, values = await driver.contribution()
        assert (event.steps, event.tokens) == (H, 7 * H)
        assert event.samples == (SampleRange(5, 10), SampleRange(38, 45))
        assert values[0] > start[0]
        # A snapshot that the disk does not take is not worth the run, and is not reported.
        (tmp_path / "file").touch()
        snapshot = str(tmp_path / "file" / "state")
        driver.post(start, "full", inner_step=H, snapshot=snapshot, samples=SECOND)
        event, _ = await driver.contribution()
        assert (event.steps, event.tokens) == (H, 7 * H)
        driver.post(last, "full", inner_step=2 * H, finish=True)
        await driver.expect(RanksFinished)

    rank_driver.drive(driver, play)
    seen = [json.loads((tmp_path / f"seen-{rank}.json").read_text()) for rank in range(2)]
    # A sample is its number and nothing else; ranks share the rows of each step.
    keys = [permutation_keys(RUN.seed, data_pass) for data_pass in range(3)]
    order = [permuted(np.arange(40), 40, keys=each) for each in keys]
    samples = [*range(5, 10), *range(38, 45), *range(100, 112)]
    expected = [int(order[sample // 40][sample % 40]) for sample in samples]
    for step in range(2 * H):
        rows = expected[4 * step : 4 * step + 4]
        assert [seen[0]["items"][step], seen[1]["items"][step]] == [rows[:2], rows[2:]]
    for rank in seen:
        assert rank["ended_after_s"] >= EXIT_PAUSE_S
        assert len(rank["items"]) == 2 * H
        assert rank["last"] == last.tolist()
        assert rank["lr"] == 1e-4
        assert "make the method before the batches" in rank["too_early"]
        assert "the run is finished" in rank["too_late"]
        assert "(tokens=0): the weight of a contribution is its tokens" in rank["without_tokens"]
        for step in (0, H):  # Both times it has just been given `start`.
            loss = np.mean([(0.5 - 2) ** 2 * item**2 for item in rank["items"][step]])
            assert rank["losses"][step] == pytest.approx(loss, rel=1e-5)


def test_every_method_of_rounds_has_its_half_in_the_ranks() -> None:
    names = {each.__dataclass_fields__["name"].default for each in get_args(AnyMethod)}
    assert set(ROUND_METHODS) == names - PER_STEP_METHODS
    assert {getattr(lowcomm, each.__name__) for each in ROUND_METHODS.values()} == {
        *ROUND_METHODS.values()
    }


def test_a_subclass_of_a_method_goes_by_its_name() -> None:
    class Mine(lowcomm.DiLoCo):
        """Somebody's own."""

    assert Mine.name == lowcomm.DiLoCo.name == "diloco"
    assert ROUND_METHODS["diloco"] is lowcomm.DiLoCo


def test_an_optimizer_made_before_sharding_is_refused() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 3)
    with pytest.raises(ConfigError, match=r"steps a tensor \(3, 2\) that is not in the model"):
        _stepped(model, torch.optim.SGD(other.parameters(), lr=1.0))
    stepped = _stepped(model, torch.optim.SGD([model.bias], lr=1.0))
    assert list(stepped) == ["bias"]
    assert stepped["bias"] is model.bias


def test_several_optimizers_step_different_parameters() -> None:
    model = nn.Linear(2, 2)
    both = [torch.optim.SGD([each], lr=1.0) for each in (model.weight, model.bias)]
    assert list(_stepped(model, both)) == ["weight", "bias"]
    with pytest.raises(ConfigError, match="two optimizers step parameter bias: give it to one"):
        _stepped(model, [*both, torch.optim.SGD([model.bias], lr=1.0)])


@pytest.mark.parametrize(
    "shape", [pytest.param("stages", marks=NIGHTLY), pytest.param("interleaved", marks=LONG)]
)
def test_a_pipeline_of_torch_is_a_node(shape: str, tmp_path: Path) -> None:
    """Its ranks start again with the optimizers' states; the last stage reports the loss."""
    whole = layouts_train.Stage(range(3), last=True)
    names = [name for name, _ in whole.named_parameters() if name != "layers.0.up.bias"]
    state, begins = "", [0, 2 * pipeline_ranks.INNER]
    for attempt, began in enumerate(begins):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        run_ranks("pipeline_ranks.py", shape, directory, state)
        state = str(directory / "state")
        for rank in range(pipeline_ranks.RANKS):
            saw, left = (
                json.loads((directory / f"{name}-{rank}.json").read_text())
                for name in ("saw", "node")
            )
            assert saw["names"] == names
            assert left["began"] == began
            assert left["step"] == pipeline_ranks.INNER * pipeline_ranks.ROUNDS
            assert len(saw["losses"]) == (left["step"] if rank == 1 else 0)
            assert np.isfinite(saw["losses"]).all()


class Alone:
    """A rank of a node that has no daemon: it can be refused, and not join."""

    def __init__(self, run: RunConfig, *, world_size: int) -> None:
        self.run = run
        self.rank = 0
        self.world_size = world_size

    def method(self, name: str, *, program: str) -> AnyMethod:
        assert name == self.run.method.name, program
        return self.run.method

    def fitting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def join(self, tensors: object, **_: object) -> NoReturn:
        raise Joined


class Joined(Exception):  # noqa: N818
    """The rank was not refused."""


@pytest.mark.parametrize("make", [lowcomm.DiLoCo, lowcomm.StreamingDiLoCo, lowcomm.AllReduce])
def test_a_plain_model_is_refused_by_several_ranks(make: Any) -> None:
    method = {
        each.name: each
        for each in (DiLoCoMethod(), StreamingDiLoCoMethod(fragments=1), AllReduceMethod())
    }
    run = replace(RUN, method=method[make.name])
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(Joined):
        make(model, optimizer, Alone(run, world_size=1))
    expected = "weight is not sharded, so of the 2 ranks only .* rank 0 .* with fully_shard .* one"
    with pytest.raises(ConfigError, match=expected):
        make(model, optimizer, Alone(run, world_size=2))
