"""An optimizer's state on disk: a restart continues bit by bit, and nothing else is let in."""

import copy
import json
import resource
import threading
from collections.abc import Callable, Iterable
from pathlib import Path, PosixPath
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.optim import Optimizer

from lowcomm.loop_state.kept_objects import KeptObjects
from lowcomm.loop_state.rank_checkpoint import (
    HEADER,
    Optimizers,
    RankFile,
    RankSaver,
    RankStateError,
    load_rank_state,
    optimizers_of,
)
from lowcomm.program.muon import Muon
from tests.lowcomm.forking import run_ranks
from tests.lowcomm.node_ranks import save_rank_state

Make = Callable[[Iterable[nn.Parameter]], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "adamw_fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=0.1, amsgrad=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "sgd_momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.1, centered=True),
    "muon": lambda parameters: Muon(*by_rank(parameters), lr=0.1),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=0.1),
}


def by_rank(parameters: Iterable[nn.Parameter]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    every = list(parameters)
    return [p for p in every if p.ndim == 2], [p for p in every if p.ndim != 2]


class Counting(torch.optim.SGD):
    """Keeps a plain number for each parameter, and a name."""

    def step(self, closure: None = None) -> None:  # pyright: ignore
        del closure
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["count"] = state.get("count", 0) + 1
            state["name"] = "x"
            parameter.data -= 0.01 * state["count"] * parameter.grad


OPTIMIZERS["counting"] = lambda parameters: Counting(parameters, lr=0.1)


def build() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1, bias=False))


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters())


def train(model: nn.Module, optimizer: Optimizers, steps: int) -> bytes:
    device = next(model.parameters()).device
    for step in range(steps):
        for each in optimizers_of(optimizer):
            each.zero_grad()
        model(torch.full((2, 3), 0.3 * step, device=device)).square().sum().backward()
        for each in optimizers_of(optimizer):
            each.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach().cpu().numpy().tobytes()


def saved(directory: Path, make: Make = OPTIMIZERS["adamw"]) -> RankFile:
    """The file of a rank that has trained a little."""
    file = RankFile(directory, 1, 2)
    model = build()
    optimizer = make(model.parameters())
    train(model, optimizer, 2)
    save_rank_state(file, parameters_of(model), optimizer)
    return file


def loads(file: RankFile, model: nn.Module | None = None, make: str = "adamw") -> bool:
    """What a fresh rank gets; asserts that nothing is touched when it gets nothing."""
    model = model or build()
    optimizer = OPTIMIZERS[make](model.parameters())
    found = load_rank_state(file, parameters_of(model), optimizer)
    assert bool(optimizer.state) == found
    return found


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_restart_goes_on_bit_by_bit(name: str, tmp_path: Path) -> None:
    make = OPTIMIZERS[name]
    model = build()
    optimizer = make(model.parameters())
    train(model, optimizer, 3)
    file = RankFile(tmp_path / "made" / "here", 0, 1)
    save_rank_state(file, parameters_of(model), optimizer)

    again = build()
    again.load_state_dict(model.state_dict())
    other = make(again.parameters())
    assert load_rank_state(file, parameters_of(again), other)
    assert train(again, other, 3) == train(model, optimizer, 3)
    assert [path.name for path in file.directory.iterdir()] == ["rank-0-of-1.safetensors"]


@pytest.mark.parametrize("names", [("adamw", "adamw"), ("adamw", "sgd_momentum")])
def test_several_optimizers_go_on_bit_by_bit(names: tuple[str, str], tmp_path: Path) -> None:
    """As of two stages of a pipeline; AdamW beside another one."""

    def make(model: nn.Module, names: tuple[str, ...] = names) -> list[Optimizer]:
        parts = zip(names, model.children(), strict=True)
        return [OPTIMIZERS[name](part.parameters()) for name, part in parts]

    model = build()
    optimizers = make(model)
    train(model, optimizers, 3)
    file = RankFile(tmp_path, 0, 1)
    save_rank_state(file, parameters_of(model), optimizers)

    again = build()
    again.load_state_dict(model.state_dict())
    others = make(again, ("adamw", "rmsprop"))
    assert not load_rank_state(file, parameters_of(again), others)
    assert not any(each.state for each in others)
    others = make(again)
    assert load_rank_state(file, parameters_of(again), others)
    assert train(again, others, 3) == train(model, optimizers, 3)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_training_goes_on_while_the_state_is_written(device: str, tmp_path: Path) -> None:
    model = build().to(device)
    optimizer = OPTIMIZERS["adamw_fused"](model.parameters())
    saver = RankSaver(parameters_of(model), optimizer, KeptObjects())
    files = [RankFile(tmp_path, 0, 1), RankFile(tmp_path / "next", 0, 1)]
    errors: list[Exception | None] = []
    losses: list[bytes] = []
    models: list[nn.Module] = []
    for file in files:
        train(model, optimizer, 2)
        models.append(copy.deepcopy(model))
        saver.save(file, errors.append)
        losses.append(train(model, optimizer, 3))
    saver.wait()
    assert errors == [None, None]
    for file, then, expected in zip(files, models, losses, strict=True):
        other = OPTIMIZERS["adamw_fused"](then.parameters())
        assert load_rank_state(file, parameters_of(then), other)
        assert train(then, other, 3) == expected


def slow_directory(directory: Path, go_on: threading.Event) -> Path:
    """A directory that is made as soon as `go_on` is set."""

    class Slow(PosixPath):
        def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
            assert go_on.wait(10)
            super().mkdir(mode, parents, exist_ok)

    return Slow(directory)


def test_a_state_is_of_the_step_at_which_it_was_saved_and_the_next_one_waits(
    tmp_path: Path,
) -> None:
    model = build()
    parameters, optimizer = parameters_of(model), OPTIMIZERS["sgd_momentum"](model.parameters())
    saver, go_on = RankSaver(parameters, optimizer, KeptObjects()), threading.Event()
    first = RankFile(slow_directory(tmp_path / "first", go_on), 0, 1)
    second = RankFile(tmp_path / "second", 0, 1)
    errors: list[Exception | None] = []

    def momentum() -> dict[str, torch.Tensor]:
        states = {name: optimizer.state[each] for name, each in parameters.items()}
        return {
            f"momentum_buffer:{name}": each["momentum_buffer"].clone()
            for name, each in states.items()
        }

    train(model, optimizer, 2)
    then = momentum()
    saver.save(first, errors.append)
    train(model, optimizer, 2)
    again = threading.Thread(target=lambda: saver.save(second, errors.append))
    again.start()
    again.join(0.2)
    assert again.is_alive(), "the first one is not written yet"
    go_on.set()
    again.join(10)
    saver.wait()
    assert errors == [None, None]
    for file, expected in ((first, then), (second, momentum())):
        found = safetensors.torch.load_file(file.path)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], each) for name, each in expected.items())


@pytest.mark.deadline(100)
@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.long)])
def test_sharded_state_goes_on_bit_by_bit(world: int, tmp_path: Path) -> None:
    run_ranks("node_ranks.py", "state", world, tmp_path)
    for rank in range(world):
        seen = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert (seen["found"], seen["other_world"], seen["other_shard"]) == (True, False, False)
        assert seen["equal"]
        assert seen["moved"] > 0.01


def test_it_is_only_for_the_rank_that_saved_it(tmp_path: Path) -> None:
    file = saved(tmp_path)
    assert loads(file)
    assert not loads(RankFile(tmp_path, 0, 2))
    assert not loads(RankFile(tmp_path, 1, 3))
    file.path.rename(RankFile(tmp_path, 0, 2).path)
    assert not loads(RankFile(tmp_path, 0, 2))


def test_it_is_only_for_the_same_optimizer_and_model(tmp_path: Path) -> None:
    file = saved(tmp_path)
    assert not loads(file, make="rmsprop")
    assert not loads(file, nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1)))
    assert not loads(file, nn.Sequential(nn.Linear(5, 3), nn.Linear(5, 1, bias=False)))
    assert loads(file)


def test_a_damaged_file_is_no_state(tmp_path: Path) -> None:
    file = saved(tmp_path)
    whole = file.path.read_bytes()
    for damaged in (b"", b"x", whole[:-1], whole[: len(whole) // 2], b"\0" * len(whole)):
        file.path.write_bytes(damaged)
        assert not loads(file)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"sharded": ["exp_avg:0.weight"]},
        {"sharded": ["exp_avg:unknown"]},
        {"sharded": None},
        {"values": 3},
        {"parameters": {}},
    ],
)
def test_a_header_that_does_not_fit_is_no_state(change: dict[str, object], tmp_path: Path) -> None:
    file = saved(tmp_path)
    with cast(Any, safetensors.safe_open(file.path, framework="pt")) as opened:
        header = json.loads(opened.metadata()[HEADER])
    tensors = safetensors.torch.load_file(file.path)
    safetensors.torch.save_file(tensors, file.path, {HEADER: json.dumps(header)})
    assert loads(file)
    safetensors.torch.save_file(tensors, file.path, {HEADER: json.dumps(header | change)})
    assert not loads(file)
    safetensors.torch.save_file(tensors, file.path)
    assert not loads(file)


def test_what_has_no_format_is_refused_by_name_and_leaves_the_old_file(tmp_path: Path) -> None:
    file = saved(tmp_path)
    model = build()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    optimizer.state[next(model.parameters())]["history"] = [torch.ones(1)]
    with pytest.raises(RankStateError, match=r"history:0\.weight is a list"):
        save_rank_state(file, parameters_of(model), optimizer)
    assert loads(file)


def test_ranks_go_on_together_or_not_at_all(tmp_path: Path) -> None:
    file = saved(tmp_path)
    assert not file.is_of_all
    (tmp_path / "rank-0-of-2.safetensors").touch()
    assert file.is_of_all


def test_a_full_disk_is_an_error_of_the_disk_and_leaves_the_old_file(tmp_path: Path) -> None:
    file, limits = saved(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match=r"too large|os error"):
            saved(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == [file.path.name]
    assert loads(file)


def test_a_state_whose_tensors_share_memory_is_refused(tmp_path: Path) -> None:
    model = build()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    shared = torch.zeros(4)
    for parameter in model.parameters():
        optimizer.state[parameter]["shared"] = shared
    with pytest.raises(RankStateError, match="share memory"):
        save_rank_state(RankFile(tmp_path, 1, 2), parameters_of(model), optimizer)


def test_a_disk_that_does_not_take_it_leaves_no_pieces(tmp_path: Path) -> None:
    (tmp_path / "rank-1-of-2.safetensors").mkdir()  # Renaming onto it fails.
    with pytest.raises(OSError, match="directory"):
        saved(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-1-of-2.safetensors"]
