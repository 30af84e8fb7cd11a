"""Pinned shared memory: a GPU copies to and from it, and what cannot be pinned does no harm."""

import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from lowcomm.training.fsdp import read_shards, shard_views, write_shards
from lowcomm.training.pinned_memory import pin, wait_for_copies
from peers.ipc.shared_memory import Slots, SlotsShape
from tests.lowcomm.node_ranks import Odd, fill, flat

ELEMENTS = 153
CPU = torch.device("cpu")


@pytest.fixture
def sides() -> Iterator[tuple[Slots, Slots]]:
    """The memory of a daemon and of its rank."""
    shape = SlotsShape(ranks=1, fragment_bytes=(4 * ELEMENTS,))
    daemon = Slots.create(shape)
    rank = Slots.attach(os.dup(daemon.fd), shape)
    yield daemon, rank
    rank.close()
    daemon.close()


def pinned(buffer: memoryview) -> bool:
    return torch.from_numpy(np.frombuffer(buffer, np.uint8)).is_pinned()


def test_on_a_cpu_nothing_is_pinned(sides: tuple[Slots, Slots]) -> None:
    _, rank = sides
    assert not pin([rank.contribution(0)], CPU)
    wait_for_copies(CPU)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("is_pinned", [True, False])
def test_a_gpu_writes_and_reads_the_bytes_of_a_cpu(
    sides: tuple[Slots, Slots], *, is_pinned: bool
) -> None:
    daemon, rank = sides
    gpu = torch.device("cuda", 0)
    if is_pinned:
        pin([rank.contribution(0), rank.result(0, 0)], gpu)
        assert pinned(rank.contribution(0))
    models: list[nn.Module] = [Odd(), Odd().to(gpu)]
    results: list[torch.Tensor] = []
    for model in models:
        fill(model, start=1.0)
        shards = shard_views(model, rank=0)
        write_shards(shards, rank.contribution(0))
        assert daemon.contribution(0) == flat(models[0]).numpy().tobytes()
        values = np.random.default_rng(0).standard_normal(ELEMENTS, dtype=np.float32)
        daemon.begin_result(0, 0)
        daemon.result(0, 0)[:] = values.tobytes()
        for kind, mixing in (("full", 0.0), ("delta", 0.0), ("full", 0.3)):
            assert kind in ("full", "delta")
            read_shards(shards, rank.result(0, 0), kind, mixing=mixing)
        results.append(flat(model).cpu())
        fill(models[0], start=1.0)  # As it was written.
    assert torch.equal(*results)


@pytest.mark.gpu
def test_memory_that_cannot_be_pinned_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    gpu = torch.device("cuda", 0)
    buffer = memoryview(bytearray(1 << 22))
    assert pin([buffer], gpu)
    assert not pin([buffer], gpu), "it is pinned already"
    assert "cannot pin 4 MiB" in caplog.text
    assert torch.ones(3, device=gpu).sum().item() == 3
