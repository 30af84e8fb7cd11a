"""The ranks of one node as real gloo processes: test_nodes.py starts this script.

node_ranks.py CASE WORLD DIRECTORY    forks WORLD ranks; each leaves what it saw in DIRECTORY
"""

import json
import mmap
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, cast

import safetensors.torch
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from lowcomm.loop_state.kept_objects import KeptObjects
from lowcomm.loop_state.rank_checkpoint import (
    Optimizers,
    Parameters,
    RankFile,
    RankSaver,
    load_rank_state,
)
from lowcomm.loop_state.resharded_state import load_resharded
from lowcomm.program.muon import Muon
from lowcomm.program.process_group import join_node, leave_node, rank_device
from lowcomm.tensors.frozen import frozen_parts, write_frozen
from lowcomm.tensors.fsdp import (
    check_sharded,
    node_shards,
    read_shards,
    reshard,
    shard_model,
    write_shards,
)
from lowcomm.tensors.model_buffers import node_buffers
from lowcomm.tensors.placement import box_of
from lowcomm.tensors.run_names import RunNames
from protocols.types.errors import ConfigError

DEADLINE_S = 60  # Of each rank, whatever happens to the others.
CPU = rank_device("cpu", local_rank=0)


def save_rank_state(
    file: RankFile, parameters: Parameters, optimizer: Optimizers, kept: KeptObjects | None = None
) -> None:
    """Save a state and wait for it. Raises the saver's errors."""
    errors: list[Exception | None] = []
    saver = RankSaver(parameters, optimizer, kept or KeptObjects())
    saver.save(file, errors.append)
    saver.wait()
    (error,) = errors
    if error is not None:
        raise error


class Odd(nn.Module):
    """Sizes that no number of ranks divides, some smaller than the number of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(7, 7), nn.Linear(7, 7, bias=False)])
        self.inner = nn.Linear(7, 5)
        self.head = nn.Linear(5, 1)
        self.tied = nn.Linear(7, 5, bias=False)
        self.tied.weight = self.inner.weight
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x_B7: Tensor) -> Tensor:
        for block in self.blocks:
            x_B7 = torch.tanh(block(x_B7))
        return self.head(self.inner(x_B7) + self.tied(x_B7)) * self.scale


class Mixed(nn.Module):
    """Columns sharded, rows sharded, and tensors that are no DTensor at all."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Linear(3, 7)
        self.columns = nn.Linear(6, 4, bias=False)
        self.plain = nn.Parameter(torch.ones(3, 5).t())
        self.scalar = nn.Parameter(torch.tensor(1.0))

    def forward(self, x_B7: Tensor) -> Tensor:
        return self.columns(self.rows(x_B7[:, :3])[:, :6]) @ self.plain[:4] * self.scalar


class Grid(nn.Module):
    """For a 2 x 2 mesh: each parameter with placements of its own."""

    PLACEMENTS: tuple[tuple[Placement, Placement], ...] = (
        (Replicate(), Shard(0)),
        (Shard(0), Replicate()),
        (Shard(0), Shard(1)),
        (Shard(1), Shard(0)),
        (Shard(0), Shard(0)),
        (Replicate(), Replicate()),
        (_StridedShard(0, split_factor=2), Shard(0)),
        (_StridedShard(0, split_factor=2), Shard(0)),
        (_StridedShard(1, split_factor=2), Shard(1)),
        (_StridedShard(2, split_factor=3), Replicate()),
    )
    SHAPES = (
        *((7, 5), (3, 7), (5, 3), (2, 3, 5), (5, 2), (1, 1)),
        *((9, 3), (3, 2), (2, 8, 3), (2, 1, 2)),
    )

    def __init__(self) -> None:
        super().__init__()
        tensors = (nn.Parameter(torch.ones(shape)) for shape in self.SHAPES)
        self.all = nn.ParameterList(tensors)


class Block(nn.Module):
    """Two layers for tensor parallelism."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(7, 9)
        self.down = nn.Linear(9, 7)


class Deep(nn.Module):
    """Blocks, and tensors between which a pipeline may be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(3, 7, bias=False)
        self.layers = nn.ModuleDict({str(number): Block() for number in range(4)})
        self.norm = nn.BatchNorm1d(7)
        self.head = nn.Linear(7, 3)

    PLAN: ClassVar[dict[str, ParallelStyle]] = {
        "layers.*.up": ColwiseParallel(),
        "layers.*.down": RowwiseParallel(),
    }


MESHES = {
    "hsdp": ("replicate", "shard"),
    "tensors": ("shard", "tensors"),
    "hsdp-tensors": ("replicate", "shard", "tensors"),
}
"""The names of the mesh dimensions, each of size 2 but for `shard` in a mesh of three."""
MODELS = {
    "fsdp": Odd,
    "mixed": Mixed,
    "grid": Grid,
    "hsdp": Odd,
    "tensors": Deep,
    "hsdp-tensors": Deep,
    "stages": Deep,
    "state": Odd,
    "muon": Odd,
    "frozen": Odd,
    "resharded": Odd,
    "dcp": Odd,
    "names": Odd,
}
NAMES: RunNames = {
    "turned": [("inner.weight", slice(3, 5)), ("inner.weight", slice(0, 3))],
    "head.weight": "head.weight",
    "odd": [("blocks.0.weight", slice(1, 7, 2)), ("blocks.1.weight", slice(0, 7))],
    "even": [("blocks.0.weight", slice(0, 7, 2))],
    "bias": [("blocks.0.bias", slice(6, 7)), ("blocks.0.bias", slice(0, 6))],
    **{name: name for name in ("scale", "inner.bias", "head.bias")},
}
"""Of the case "names"."""


def build(case: str) -> nn.Module:
    """The whole model, every element another one."""
    model = MODELS[case]()
    fill(model, start=1.0)
    return model


def fill(model: nn.Module, *, start: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            count = parameter.numel()
            parameter.copy_(torch.arange(start, start + count).reshape(parameter.shape) / 77)
            start += count


def flat(model: nn.Module) -> Tensor:
    """What the fragment should hold, by torch's own gathering."""
    whole = [
        parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        for parameter in model.parameters()
    ]
    return torch.cat([tensor.detach().flatten() for tensor in whole])


def spread(case: str, model: nn.Module, world: int) -> None:
    """Shard the model over the ranks as its case says."""
    mesh = join_node(CPU, world_size=world)
    assert (mesh is None) == (world == 1)
    if case in MESHES:
        spread_over(MESHES[case], model)
    elif isinstance(model, Odd):
        shard_model(model, model.blocks, mesh=mesh)
    elif isinstance(model, Mixed) and mesh is not None:
        fully_shard(model.rows, mesh=mesh)
        fully_shard(model.columns, mesh=mesh, shard_placement_fn=lambda _: Shard(1))
    elif isinstance(model, Grid):
        grid = init_device_mesh("cpu", (2, 2))
        for index, placements in enumerate(Grid.PLACEMENTS):
            values = model.all[index].detach()
            tensor = distribute_tensor(values, grid, placements, src_data_rank=None)
            model.all[index] = nn.Parameter(tensor)


def spread_over(names: tuple[str, ...], model: nn.Module) -> None:
    """Shard the model over a mesh of 4 ranks with these dimensions."""
    sizes = (2, 1, 2) if len(names) > 2 else (2, 2)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    if "tensors" in names:
        parallelize_module(model, mesh["tensors"], Deep.PLAN)
    data = mesh["replicate", "shard"] if "replicate" in names else mesh["shard"]
    layers = model.layers.values() if isinstance(model, Deep) else ()
    for layer in layers:
        fully_shard(layer, mesh=data)
    fully_shard(model, mesh=data)


def main(rank: int, case: str, directory: Path, shared: list[mmap.mmap]) -> None:
    signal.alarm(DEADLINE_S)
    torch.set_num_threads(1)
    world = int(os.environ["WORLD_SIZE"])
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    model = build(case)
    if case == "frozen":
        freeze(model)
    spread(case, model, world)
    written, full, delta = (memoryview(buffer) for buffer in shared)
    seen: object
    if case == "state":
        seen = keep_state(model, directory, rank)
    elif case == "dcp":
        state = model.state_dict()
        # The tied parameter is there by its first name.
        planner = DefaultLoadPlanner(allow_partial_load=True)
        cast(Any, checkpoint).load(state, checkpoint_id=directory / "out", planner=planner)
        seen = cast("list[float]", flat(model).tolist())
    elif case == "resharded":
        seen = keep_resharded(model, RankFile(directory, rank, world))
    elif case == "frozen":
        seen = keep_frozen(model, directory, rank)
    elif case == "stages":
        seen = keep_stages(model, rank, (written, full))
    elif case == "muon":
        seen = cast("list[float]", flat(step_by_muon(model)).tolist())
    else:
        names = NAMES if case == "names" else None
        seen = exchange(model, rank, written, {"full": full, "delta": delta}, names=names)
        if case == "grid":
            seen["refused"] = refused(model)
    (directory / f"rank-{rank}.json").write_text(json.dumps(seen))
    leave_node()


def exchange(
    model: nn.Module,
    rank: int,
    written: memoryview,
    results: dict[str, memoryview],
    *,
    names: RunNames | None = None,
) -> dict[str, object]:
    """Hand over a contribution, and take the results, by their names."""
    world, seen = int(os.environ["WORLD_SIZE"]), dict[str, object]()  # One rank has no group.
    parts = node_shards(model, rank=rank, world_size=world, names=names)
    shards = parts.shards
    seen["elements"] = sum(shard.elements for shard in shards)
    seen["not_sharded"] = ""
    try:
        check_sharded(parts)
    except ConfigError as error:
        seen["not_sharded"] = str(error)
    write_shards(shards, written)
    if world > 1:
        dist.barrier()
    seen["gathered"] = flat(model).numpy().tobytes().hex()

    inputs_B7 = torch.arange(21.0).reshape(3, 7) / 21
    runs = isinstance(model, Odd | Mixed)
    if runs:
        with torch.no_grad():
            model(inputs_B7)  # Leaves the root's parameters gathered.
    for name, buffer in results.items():
        reshard(model)
        read_shards(shards, buffer.toreadonly(), "full" if name == "full" else "delta")
        if runs:
            with torch.no_grad():
                seen[f"{name}_output"] = model(inputs_B7).tolist()
        reshard(model)
        seen[name] = flat(model).numpy().tobytes().hex()
    return seen


def keep_state(model: nn.Module, directory: Path, rank: int) -> dict[str, object]:
    """Save a trained optimizer's state, load it into a new one; do both go on equally?"""
    world = dist.get_world_size()
    parameters = dict(model.named_parameters())

    def optimizer() -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)

    def backward(step: int) -> None:
        model.zero_grad()
        model(torch.full((2, 7), 0.1 * (rank + step))).square().mean().backward()

    trained, fresh = optimizer(), optimizer()
    for step in range(2):
        backward(step)
        trained.step()
    file = RankFile(directory, rank, world)
    save_rank_state(file, parameters, trained)
    found = load_rank_state(file, parameters, fresh)
    other_world = load_rank_state(RankFile(directory, rank, world + 1), parameters, fresh)
    tensors = safetensors.torch.load_file(file.path)
    entry = "exp_avg:blocks.0.weight"
    with cast(Any, safetensors.safe_open(file.path, framework="pt")) as opened:
        metadata = opened.metadata()
    safetensors.torch.save_file(tensors | {entry: torch.zeros(6, 7)}, file.path, metadata)
    other_shard = load_rank_state(file, parameters, optimizer())
    backward(3)
    before = flat(model)
    locals_before = [shard.local.clone() for shard in node_shards(model, rank=rank).shards]
    after: list[Tensor] = []
    for one in (trained, fresh):
        for shard, value in zip(node_shards(model, rank=rank).shards, locals_before, strict=True):
            shard.local.copy_(value)
        one.step()
        after.append(flat(model))
    return {
        "found": found,
        "other_world": other_world,
        "other_shard": other_shard,
        "equal": torch.equal(*after),
        "moved": (after[0] - before).abs().max().item(),
    }


class Average:
    """Of parameters, laid out as they are."""

    def __init__(self, parameters: Parameters) -> None:
        self.values = {name: each.detach().clone() for name, each in parameters.items()}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.values)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.values = dict(state_dict)


class Position:
    """What each rank has for itself."""

    def __init__(self) -> None:
        self.value = -1

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.value = state_dict["value"]


def keep_resharded(model: nn.Module, file: RankFile) -> dict[str, object]:
    """Load the states that another number of ranks saved; the first ranks train, and save
    theirs."""
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    other = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    average, position, kept = Average(parameters), Position(), KeptObjects()
    kept.include("average", average)
    kept.include("other", other)
    found = load_resharded(file, parameters, optimizer)
    if found:
        kept.restore(file)
    kept.include("position", position, per_rank=True)
    anew, position.value = position.value, file.rank
    if not found:
        for step in range(2):
            model.zero_grad()
            model(torch.full((2, 7), 0.1 * (1 + step))).square().mean().backward()
            optimizer.step()
            other.step()
        for name, each in parameters.items():
            average.values[name].mul_(0.5).add_(each.detach() * 0.5)
        save_rank_state(file, parameters, optimizer, kept)
    states = {"": optimizer, "other ": other}
    entries = {
        f"{which}{key}:{name}": value
        for which, each in states.items()
        for name, parameter in parameters.items()
        for key, value in each.state[parameter].items()
    } | average.values
    whole = {
        entry: value.full_tensor() if isinstance(value, DTensor) else value
        for entry, value in entries.items()
    }
    state: dict[str, object] = {entry: value.tolist() for entry, value in whole.items()}
    return {"found": found, "anew": anew, "state": state}


def freeze(model: nn.Module) -> None:
    """Freeze the blocks; one of them has another type."""
    assert isinstance(model, Odd)
    model.blocks.requires_grad_(requires_grad=False)
    model.blocks[0].bfloat16()


def keep_frozen(model: nn.Module, directory: Path, rank: int) -> dict[str, object]:
    """Write the frozen tensors; their fingerprints, and what is exchanged."""
    parts = frozen_parts(model, rank=rank)
    write_frozen(str(directory / "frozen.safetensors"), parts)
    exchanged = [shard.place.name for shard in node_shards(model, rank=rank).shards]
    return {"specs": [part.spec for part in parts], "exchanged": exchanged}


STAGES = (
    (("embedding", "layers.0"), ("layers.3", "norm", "head")),
    (("layers.1", "layers.2"),),
)
"""By rank, the modules of each of its parts, as a schedule in the form of a V has them."""


def part_of(model: Deep, names: Sequence[str]) -> nn.Module:
    """These modules of the model, with their names."""
    part = nn.Module()
    for name in names:
        path, _, own = name.rpartition(".")
        if path and not hasattr(part, path):
            part.add_module(path, nn.ModuleDict())
        part.get_submodule(path).add_module(own, model.get_submodule(name))
    return part


def keep_stages(
    model: nn.Module, rank: int, buffers: tuple[memoryview, memoryview]
) -> dict[str, object]:
    """Write this rank's stages to the first buffer, read them from the second one."""
    assert isinstance(model, Deep)
    model.get_parameter("layers.2.up.bias").requires_grad = False
    written, full = buffers
    parts = [part_of(model, names) for names in STAGES[rank]]
    node = node_shards(parts, rank=rank, world_size=2)
    check_sharded(node)
    write_shards(node.shards, written)
    dist.barrier()
    with torch.no_grad():
        for shard in node.shards:
            full_P = torch.frombuffer(full, dtype=torch.float32)
            full_P[shard.place.offset :][: shard.place.elements].fill_(shard.place.offset)
    read_shards(node.shards, full.toreadonly(), "full")
    places, views = node_buffers(parts, rank=rank, fragment=1, world_size=2)
    return {
        "layout": [asdict(place) for place in node.layout],
        "read": all((x.local == x.place.offset).all().item() for x in node.shards),
        "elements": sum(x.elements for x in (*node.shards, *views)),
        "own": [shard.place.name for shard in node.shards],
        "buffers": [asdict(place) for place in places],
        "frozen": [part.spec for part in frozen_parts(parts, rank=rank, world_size=2)],
        "twice": twice(model, rank),
    }


def twice(model: Deep, rank: int) -> str:
    """The error of stages that have parameters of the same names."""
    stage = nn.Sequential(model.layers[str(rank)])
    try:
        check_sharded(node_shards([stage], rank=rank, world_size=2))
    except ConfigError as error:
        return str(error)
    return ""


def step_by_muon(model: nn.Module) -> nn.Module:
    """Three steps with gradients that everybody can make again."""
    parameters = list(model.parameters())
    optimizer = Muon(
        [p for p in parameters if p.ndim == 2], [p for p in parameters if p.ndim < 2], lr=0.02
    )
    generator = torch.Generator().manual_seed(5)
    for _ in range(3):
        for parameter in parameters:
            grad = torch.randn(parameter.shape, generator=generator)
            if isinstance(parameter, DTensor):
                mesh, placements = parameter.device_mesh, parameter.placements
                grad = distribute_tensor(grad, mesh, placements, src_data_rank=None)
            parameter.grad = grad
        optimizer.step()
    return model


def refused(model: nn.Module) -> list[str]:
    """The errors of placements that have no one place."""
    assert isinstance(model, Grid)
    grid = init_device_mesh("cpu", (2, 2))
    whole = torch.ones(8, 2)
    found: list[str] = []
    for local, placements in (
        (whole, (Partial(), Shard(1))),
        (whole[:4], (_StridedShard(0, split_factor=2), Replicate())),
        (whole[:3], (Shard(0), Replicate())),
    ):
        tensor = DTensor.from_local(
            local, grid, placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )
        try:
            box_of("x", tensor)
        except ConfigError as error:
            found.append(str(error))
    return found


if __name__ == "__main__":
    case, world, directory = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    size = 4 * sum(parameter.numel() for parameter in build(case).parameters())
    shared = [mmap.mmap(-1, size) for _ in range(3)]
    shared[0].write(b"\xff" * size)  # NaN wherever nobody writes.
    for buffer, name in zip(shared[1:], ("full", "delta"), strict=True):
        if case not in ("state", "muon", "frozen", "stages", "resharded", "dcp"):
            buffer.write((directory / f"{name}.bin").read_bytes())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(world))
    mp.start_processes(  # pyright: ignore[reportPrivateImportUsage] - it is documented.
        main, (case, directory, shared), nprocs=world, start_method="fork"
    )
    (directory / "written.bin").write_bytes(shared[0][:])
