"""Copies of a GPU: pinned shared memory and ordinary one, in the loop and beside it."""

import gc
import mmap
import os
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from lowcomm.tensors.fsdp import (
    apply,
    node_shards,
    read_shards,
    whole,
    window,
    write_shards,
)
from lowcomm.tensors.gpu_copies import HostCopies, SideCopies, pin, wait_for_copies
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
        shards = node_shards(model, rank=0).shards
        daemon.contribution(0)[:] = bytes(4 * ELEMENTS)
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


@pytest.mark.gpu
def test_pinned_memory_stays_mapped_and_its_address_is_not_given_to_others() -> None:
    memory = mmap.mmap(-1, 1 << 16)
    there = weakref.ref(memory)
    assert pin([memoryview(memory)], torch.device("cuda", 0))
    del memory
    gc.collect()
    assert there() is not None


SIDE_ELEMENTS = 1 << 22
SIDE_TENSORS = 3
SPIN_CYCLES = 200_000_000
"""About 0.1 s: far longer than a copy."""


def host_memory(*, is_pinned: bool) -> list[torch.Tensor]:
    return [torch.zeros(SIDE_ELEMENTS, pin_memory=is_pinned) for _ in range(SIDE_TENSORS)]


@pytest.mark.gpu
@pytest.mark.parametrize("is_pinned", [True, False])
def test_what_is_written_beside_the_loop_is_of_the_moment_when_it_began(*, is_pinned: bool) -> None:
    gpu = torch.device("cuda", 0)
    copies, heard = SideCopies(gpu), list[float]()
    sources = [torch.zeros(SIDE_ELEMENTS, device=gpu) for _ in range(SIDE_TENSORS)]
    for turn in range(1, 6):
        targets = host_memory(is_pinned=is_pinned)
        torch.cuda._sleep(SPIN_CYCLES)  # The loop is ahead of the GPU.
        for number, source in enumerate(sources):
            source.fill_(turn + number / 8)
        copies.write(sources, targets)
        copies.then(lambda targets=targets: heard.extend(each.sum().item() for each in targets))
        for source in sources:
            source.fill_(-1.0)
        assert len(heard) == SIDE_TENSORS * (turn - 1), "it waits for the steps before"
        copies.finish()
        means = [each / SIDE_ELEMENTS for each in heard[-SIDE_TENSORS:]]
        assert means == [turn + number / 8 for number in range(SIDE_TENSORS)]
        for number, target in enumerate(targets):
            assert (target == turn + number / 8).all()


def use_and_forget(gpu: torch.device) -> None:
    """Queue work on memory that torch may give to others at once."""
    stale = [torch.full((SIDE_ELEMENTS,), 9.0, device=gpu) for _ in range(SIDE_TENSORS)]
    torch.cuda._sleep(SPIN_CYCLES)
    for each in stale:
        each.add_(1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("is_pinned", [True, False])
def test_what_is_read_beside_the_loop_is_whole_when_it_is_used(*, is_pinned: bool) -> None:
    gpu = torch.device("cuda", 0)
    copies = SideCopies(gpu)
    for turn in range(5):
        sources = host_memory(is_pinned=is_pinned)
        for number, source in enumerate(sources):
            source.fill_(turn + number / 8)
        use_and_forget(gpu)
        copies.fetch(0, sources)
        copies.fetch(1, sources)
        copies.fetch(0, [torch.zeros(1)])  # It has begun.
        for key in (0, 1):
            made = copies.fetched(key, sources)
            assert all((each == turn + number / 8).all() for number, each in enumerate(made))


@pytest.mark.gpu
def test_a_fragment_beside_the_loop_has_the_bytes_of_one_in_the_loop(
    sides: tuple[Slots, Slots],
) -> None:
    daemon, rank = sides
    gpu = torch.device("cuda", 0)
    models: list[nn.Module] = [Odd(), Odd().to(gpu)]
    for model in models:
        fill(model, start=1.0)
    shards = node_shards(models[1], rank=0).shards
    elements_P = whole(rank.contribution(0))
    copies = SideCopies(gpu)
    copies.write([each.local for each in shards], [window(elements_P, each) for each in shards])
    copies.finish()
    assert daemon.contribution(0) == flat(models[0]).numpy().tobytes()
    values = np.random.default_rng(0).standard_normal(ELEMENTS, dtype=np.float32)
    daemon.begin_result(0, 0)
    daemon.result(0, 0)[:] = values.tobytes()
    result_P = whole(rank.result(0, 0))
    for kind, mixing in (("full", 0.0), ("delta", 0.0), ("full", 0.3)):
        assert kind in ("full", "delta")
        read_shards(node_shards(models[0], rank=0).shards, rank.result(0, 0), kind, mixing=mixing)
        made = copies.fetched(0, [window(result_P, each) for each in shards])
        for shard, there in zip(shards, made, strict=True):
            apply(shard, there, kind, mixing=mixing)
    assert torch.equal(flat(models[0]), flat(models[1]).cpu())


@pytest.mark.gpu
def test_a_copy_that_fails_is_told_of_and_nothing_follows_it() -> None:
    gpu = torch.device("cuda", 0)
    copies, heard = SideCopies(gpu), list[str]()
    copies.write([torch.ones(3, device=gpu)], [torch.ones(4)])
    copies.then(lambda: heard.append("written"))
    with pytest.raises(RuntimeError, match="size"):
        copies.finish()
    with pytest.raises(RuntimeError, match="size"):
        copies.check()
    assert not heard


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_copies_of_a_state_hold_while_it_changes(device: str) -> None:
    copies = HostCopies()
    state = {
        "a": torch.arange(7, dtype=torch.float32).to(device),
        "b": torch.ones(5, 3, dtype=torch.bfloat16).to(device),
        "c": torch.tensor(4.0),
        "d": torch.zeros(0, 2).to(device),
        "e": torch.arange(1 << 20).to(device),
    }
    expected = {name: each.cpu().clone() for name, each in state.items()}
    for _ in range(2):
        copied = copies.of(state)
        for each in state.values():
            each.add_(1)
        assert copied.keys() == expected.keys()
        for name, each in copied.items():
            assert torch.equal(each, expected[name]), name
            expected[name] = expected[name] + 1
