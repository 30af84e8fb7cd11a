"""Objects of a loop that go on after a restart of the ranks."""

import random
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel

from lowcomm.loop_state.kept_objects import KeptObjects, RandomState, Stateful
from lowcomm.loop_state.rank_checkpoint import RankFile, RankStateError, write_tensors
from lowcomm.tensors.gpu_copies import HostCopies
from protocols.types import ConfigError

Loop = tuple[torch.optim.Optimizer, Any]
"""An optimizer, and an object of its loop."""


class Own:
    """An object with whatever state it is given."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state_dict: Any) -> None:
        self.state = state_dict


def optimizer_of() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1, momentum=0.9)


def scheduled(make: Callable[[torch.optim.Optimizer], Any]) -> Callable[[], Loop]:
    def loop() -> Loop:
        optimizer = optimizer_of()
        return optimizer, make(optimizer)

    return loop


LOOPS: dict[str, Callable[[], Loop]] = {
    "step": scheduled(lambda o: lr_scheduler.StepLR(o, 2, gamma=0.9)),
    "milestones": scheduled(lambda o: lr_scheduler.MultiStepLR(o, [3, 6])),
    "exponential": scheduled(lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
    "cosine": scheduled(lambda o: lr_scheduler.CosineAnnealingLR(o, 11)),
    "one cycle": scheduled(lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=30)),
    "lambda": scheduled(lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step))),
    "sequence": scheduled(
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.StepLR(o, 2), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[4]
        )
    ),
}


def file_of(directory: Path, rank: int = 0, world_size: int = 1) -> RankFile:
    return RankFile(directory, rank, world_size)


def written(kept: KeptObjects, file: RankFile) -> None:
    tensors, metadata = kept.content(file)
    write_tensors(file.kept_path, HostCopies().of(tensors), metadata)


def restored(directory: Path, name: str, thing: Stateful) -> None:
    kept = KeptObjects()
    kept.include(name, thing)
    kept.restore(file_of(directory))


@pytest.mark.parametrize("name", LOOPS)
def test_a_scheduler_goes_on_with_the_same_rates(name: str, tmp_path: Path) -> None:
    optimizer, scheduler = LOOPS[name]()
    kept = KeptObjects()
    kept.include("scheduler", scheduler)
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    written(kept, file_of(tmp_path))
    again, other = LOOPS[name]()
    restored(tmp_path, "scheduler", other)
    for _ in range(6):
        assert again.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
        for each, scheduler_of in ((optimizer, scheduler), (again, other)):
            each.step()
            scheduler_of.step()


def test_a_scheduler_of_other_groups_is_told(tmp_path: Path) -> None:
    """torch loads its state, which has a rate for each group of the earlier program."""
    optimizer = optimizer_of()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    kept = KeptObjects()
    kept.include("scheduler", lr_scheduler.StepLR(optimizer, 2))
    written(kept, file_of(tmp_path))
    with pytest.raises(ConfigError, match=r"keep\('scheduler'\): .*keep it under another name"):
        restored(tmp_path, "scheduler", lr_scheduler.StepLR(optimizer_of(), 2))


def test_a_rate_that_is_a_tensor_is_restored_in_place(tmp_path: Path) -> None:
    """A compiled step reads the tensor."""
    rate = torch.tensor(0.5)
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(3))], lr=rate)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    kept = KeptObjects()
    kept.include("scheduler", scheduler)
    optimizer.step()
    scheduler.step()
    written(kept, file_of(tmp_path))
    fresh = torch.tensor(0.5)
    again = torch.optim.AdamW([nn.Parameter(torch.ones(3))], lr=fresh)
    restored(tmp_path, "scheduler", lr_scheduler.ExponentialLR(again, 0.5))
    assert again.param_groups[0]["lr"] is fresh
    assert fresh == 0.25


def test_an_averaged_model_and_a_gradient_scaler_go_on(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    average, scaler = AveragedModel(model), torch.amp.GradScaler("cpu", init_scale=64.0)
    for parameter in model.parameters():
        parameter.data += 1
    average.update_parameters(model)
    kept = KeptObjects()
    kept.include("average", average)
    kept.include("scaler", scaler)
    written(kept, file_of(tmp_path))
    other, fresh = AveragedModel(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))), None
    restored(tmp_path, "average", other)
    for name, value in average.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name
    fresh = torch.amp.GradScaler("cpu", init_scale=2.0)
    restored(tmp_path, "scaler", fresh)
    assert fresh.state_dict() == scaler.state_dict()


def test_random_generators_go_on(tmp_path: Path) -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    draw()
    kept = KeptObjects()
    kept.include("random", RandomState())
    written(kept, file_of(tmp_path))
    after = [draw() for _ in range(3)]
    restored(tmp_path, "random", RandomState())
    assert [draw() for _ in range(3)] == after


STATES: dict[str, Any] = {
    "plain": {"a": 1, "b": 2.5, "c": None, "d": True, "e": "text", "huge": 1 << 200},
    "not finite": [float("inf"), float("-inf")],
    "containers": {"t": (1, (2, [3])), 7: "int key", None: {}, (1, "x"): 2.0},
    "ordered": OrderedDict([("z", 1), ("a", 2)]),
    "bytes": {"raw": b"\0\xff"},
    "like a kind": {"tensor": "0", "dict": []},
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_read_back_as_it_was(name: str, tmp_path: Path) -> None:
    kept = KeptObjects()
    kept.include("own", Own(STATES[name]))
    written(kept, file_of(tmp_path))
    other = Own(None)
    restored(tmp_path, "own", other)
    assert other.state == STATES[name]
    assert type(other.state) is type(STATES[name])


def test_tensors_and_arrays_keep_dtype_and_shape(tmp_path: Path) -> None:
    state = {
        "bf16": torch.arange(6, dtype=torch.bfloat16).view(2, 3).T,
        "scalar": torch.tensor(3),
        "same": (shared := torch.ones(2)),
        "again": shared,
        "empty": torch.empty(0, 4),
        "array": np.arange(4, dtype=np.uint32),
        "number": np.float32(0.1),
    }
    kept = KeptObjects()
    kept.include("own", Own(state))
    written(kept, file_of(tmp_path))
    other = Own({})
    restored(tmp_path, "own", other)
    assert other.state.keys() == state.keys()
    for key, value in state.items():
        found = other.state[key]
        assert type(found) is type(value)
        assert found.dtype == value.dtype
        assert found.shape == value.shape
        assert (np.asarray(found.tolist()) == np.asarray(value.tolist())).all()


def test_places_with_the_same_text_are_kept_apart(tmp_path: Path) -> None:
    """Names and keys may contain dots."""
    states: dict[str, Any] = {
        "a": {"b.c": torch.tensor(1), "b": {"c": torch.tensor(2)}},
        "a.b": {"c": np.arange(3)},
    }
    kept, again = KeptObjects(), KeptObjects()
    others = {name: Own(None) for name in states}
    for name, state in states.items():
        kept.include(name, Own(state))
        again.include(name, others[name])
    written(kept, file_of(tmp_path))
    again.restore(file_of(tmp_path))
    first, second = others["a"].state, others["a.b"].state
    assert (first["b.c"].item(), first["b"]["c"].item()) == (1, 2)
    assert second["c"].tolist() == [0, 1, 2]


def test_an_object_may_come_before_or_after_its_state(tmp_path: Path) -> None:
    kept = KeptObjects()
    kept.include("a", Own(1))
    kept.include("b", Own(2))
    written(kept, file_of(tmp_path))
    early, late, new = Own(0), Own(0), Own(0)
    again = KeptObjects()
    again.include("a", early)
    again.restore(file_of(tmp_path))
    again.include("b", late)
    again.include("new", new)
    assert (early.state, late.state, new.state) == (1, 2, 0)


def test_a_damaged_or_foreign_file_changes_nothing(tmp_path: Path) -> None:
    kept = KeptObjects()
    kept.include("own", Own(1))
    written(kept, file_of(tmp_path, 1, 2))
    content = file_of(tmp_path, 1, 2).kept_path.read_bytes()
    own = Own(0)
    restored(tmp_path, "own", own)  # There is none of this rank.
    file_of(tmp_path).kept_path.write_bytes(content)
    restored(tmp_path, "own", own)  # It is of another rank.
    file_of(tmp_path).kept_path.write_bytes(content[:-1] or b"x")
    restored(tmp_path, "own", own)
    assert own.state == 0


class Odd:
    """Of a class that no file can hold."""


@pytest.mark.parametrize(
    ("thing", "why"),
    [
        (object(), "has no state_dict"),
        (Own({"deep": [Odd()]}), r"own\.deep\.0 is a .*Odd: only tensors"),
        (Own({"s": torch.eye(2).to_sparse()}), "sparse"),
        (Own({"o": np.array([object()])}), "array of object"),
    ],
)
def test_what_cannot_be_kept_is_refused_at_once(thing: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        KeptObjects().include("own", thing)


def test_a_name_is_used_once() -> None:
    kept = KeptObjects()
    kept.include("own", Own(1))
    for name, why in (("own", "kept already"), ("", "needs a name")):
        with pytest.raises(ConfigError, match=why):
            kept.include(name, Own(1))


def test_a_state_that_cannot_be_written_later_is_an_error_of_the_writer(tmp_path: Path) -> None:
    kept, own = KeptObjects(), Own(1)
    kept.include("own", own)
    own.state = Odd()
    with pytest.raises(RankStateError, match="Odd"):
        kept.content(file_of(tmp_path))


def test_a_state_that_does_not_fit_names_the_object(tmp_path: Path) -> None:
    kept = KeptObjects()
    kept.include("average", nn.Linear(2, 3))
    written(kept, file_of(tmp_path))
    with pytest.raises(ConfigError, match=r"'average'.*Linear.*another name"):
        restored(tmp_path, "average", nn.Linear(3, 3))
