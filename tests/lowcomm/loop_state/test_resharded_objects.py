"""Objects that a loop keeps, in a node that starts again with another number of ranks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from lowcomm.loop_state.kept_objects import KeptObjects, RandomState, Stateful
from lowcomm.loop_state.rank_checkpoint import RankFile, write_tensors
from lowcomm.tensors.gpu_copies import HostCopies
from tests.lowcomm.loop_state.test_kept_objects import Own
from tests.lowcomm.node_ranks import save_rank_state


def write(directory: Path, things: Sequence[Mapping[str, Stateful]]) -> RankFile:
    """As many ranks as there are items have written these; returns the file of the first of three
    ranks that come after them."""
    module = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    for rank, own in enumerate(things):
        kept = KeptObjects()
        for name, thing in own.items():
            kept.include(name, thing)
        file = RankFile(directory, rank, len(things))
        save_rank_state(file, dict(module.named_parameters()), optimizer, kept)
    return RankFile(directory, 0, 3)


def read(file: RankFile, **things: Stateful) -> None:
    """One of them is kept after the method is made."""
    kept, (last, *others) = KeptObjects(), reversed(things)
    for name in others:
        kept.include(name, things[name])
    kept.restore(file)
    kept.include(last, things[last])


def test_what_all_ranks_had_alike_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def scheduler() -> Any:
        return lr_scheduler.StepLR(torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1), 2)

    state: dict[str, Any] = {
        "tensor": torch.tensor([0.5, float("nan")]),
        "array": np.arange(3),
        "number": np.float32(2),
        "bytes": b"\0",
        "plain": [1, (2.5, None), {"a": True, 7: "b"}, float("nan")],
        "empty": torch.empty(0),
    }
    before = scheduler()
    before.optimizer.step()
    before.step()
    file = write(tmp_path, [{"own": Own(state), "scheduler": before}] * 2)
    own, after = Own(None), scheduler()
    read(file, own=own, scheduler=after)
    assert repr(own.state) == repr(state)
    assert after.state_dict() == before.state_dict()
    assert caplog.messages == []


DIFFERENT: dict[str, tuple[Any, Any]] = {
    "a number": ({"at": 1}, {"at": 2}),
    "a type": ({"at": 1}, {"at": True}),
    "a kind": ([1], (1,)),
    "a tensor": ({"at": torch.zeros(2)}, {"at": torch.ones(2)}),
    "a shape": ({"at": torch.zeros(2)}, {"at": torch.zeros(1, 2)}),
    "a length": ({"at": [1]}, {"at": [1, 1]}),
    "a key": ({"at": 1}, {"there": 1}),
    "a place": ({"at": torch.zeros(2)}, {"there": torch.zeros(2)}),
    "some bytes": (b"1", b"2"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_state_of_single_ranks_begins_anew_and_is_named(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alike: dict[str, Stateful] = {"scheduler": Own({"step": 3})}
    file = write(tmp_path, [{"loader": Own(x), **alike} for x in DIFFERENT[name]])
    loader, scheduler = Own("as it is"), Own(None)
    read(file, loader=loader, scheduler=scheduler)
    assert (loader.state, scheduler.state) == ("as it is", {"step": 3})
    (line,) = caplog.messages
    assert line.startswith("peer.keep('loader'): its state belongs to single ranks (")
    assert line.endswith("), and this node has 3 instead of 2: it begins anew")
    caplog.clear()
    read(RankFile(tmp_path, 1, 3), loader=loader, scheduler=scheduler)
    assert caplog.messages == [], "rank 0 has said it"


def test_random_generators_and_loaders_begin_anew_though_one_rank_has_one_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Loader(DataLoader[int]):
        """As torchdata's."""

        at = 0

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state_dict: dict[str, int]) -> None:
            self.at = state_dict["at"]

    data: Any = [1, 2]
    before = Loader(data)
    before.at = 5
    file = write(tmp_path, [{"random": RandomState(), "loader": before}])
    drawn = torch.get_rng_state()
    torch.rand(1)
    now, loader = torch.get_rng_state(), Loader(data)
    read(file, random=RandomState(), loader=loader)
    assert torch.equal(torch.get_rng_state(), now)
    assert not torch.equal(now, drawn)
    assert loader.at == 0
    assert len(caplog.messages) == 2


def test_buffers_of_a_module_are_those_of_rank_0(tmp_path: Path) -> None:
    averages = [nn.BatchNorm1d(2) for _ in range(2)]
    for number, average in enumerate(averages):
        average.running_mean = torch.full((2,), 1.0 + number)
    file = write(tmp_path, [{"average": average} for average in averages])
    found = nn.BatchNorm1d(2)
    read(file, average=found)
    assert found.running_mean is not None
    assert found.running_mean.tolist() == [1.0, 1.0]


def test_an_object_of_a_part_of_the_ranks_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path, [{"one": Own(1), "all": Own(2)}, {"all": Own(2)}])
    one, every = Own(None), Own(None)
    read(file, one=one, all=every)
    assert (one.state, every.state) == (None, 2)
    assert "a part of the ranks did not keep it" in caplog.text


def test_with_a_damaged_file_nothing_is_given(tmp_path: Path) -> None:
    file = write(tmp_path, [{"own": Own(1)}] * 2)
    path = RankFile(tmp_path, 1, 2).kept_path
    path.write_bytes(path.read_bytes()[:-1])
    own = Own(None)
    read(file, own=own)
    assert own.state is None


def test_a_second_optimizer_goes_on(tmp_path: Path) -> None:
    """A sharded one too: test_resharded_state.py."""
    before, after = (
        torch.optim.AdamW([nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))])
        for _ in range(2)
    )
    for each in before.param_groups[0]["params"]:
        each.grad = torch.ones_like(each)
    before.step()
    kept = KeptObjects()
    kept.include("other", before)
    alone = RankFile(tmp_path, 0, 1)
    tensors, metadata = kept.content(alone)
    write_tensors(alone.kept_path, HostCopies().of(tensors), metadata)
    again = KeptObjects()
    again.include("other", after)
    again.restore(alone)
    for one, other in zip(before.state.values(), after.state.values(), strict=True):
        assert all(torch.equal(one[key], other[key]) for key in ("step", "exp_avg", "exp_avg_sq"))
