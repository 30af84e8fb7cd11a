"""A daemon's memory in a run, in bytes a parameter: `python -m benchmarks memory --methods`.

Real daemons and ranks without a model, a few rounds of each method, beside the bytes that daemons
reckon with when they start. The memory of a daemon with a tiny model is subtracted; ranks are not
counted, they stand for the training. Shared memory counts once, whichever process has touched it;
pages of files on a disk do not count. Must NOT change how daemons take memory.
"""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lowcomm.config import load_config
from lowcomm.reports import EVENTS
from lowcomm.startup import memory_needed
from protocols.types import ConfigError, LowcommError
from sims.cluster import LOG, LocalCluster, LocalNode
from sims.leader_loss import write_config
from sims.paced import RankSpeed, paced_command
from sims.terminal import Advance

TIMEOUT_S = 1800.0
"""Timeout of one run."""
LOOK_S = 0.01
INNER_STEPS = 8
STEP_S = 1.5
"""Seconds of an inner step. A DiLoCo round trains for 12 s, longer than daemons keep free buffers
of its size; rounds of real runs take minutes."""
PEERS = 2
ROUNDS = 3
"""Rounds of each fragment."""
TENSORS = 8
_ROUNDS = (f"run.method.inner_steps={INNER_STEPS}", f"run.outer_steps={ROUNDS}")
_MOMENTUM = (*_ROUNDS, "run.method.outer_momentum=0.9")
_EIGHTHS = (*_MOMENTUM, "run.method.fragments=8", "run.method.overlap_steps=1")
_STEPS = (
    f"run.outer_steps={ROUNDS * INNER_STEPS}",
    "run.method.commit_every_steps=1",
    "run.method.snapshot_every_steps=8",
)
METHODS = {
    "streaming": ("streaming_diloco", _EIGHTHS),
    "diloco": ("diloco", _MOMENTUM),
    "local_sgd": ("local_sgd", _ROUNDS),
    "eager": ("eager_diloco", _MOMENTUM),
    "decoupled": ("decoupled_diloco", _EIGHTHS),
    "sparseloco": ("sparseloco", _ROUNDS),
    "noloco": ("noloco", _MOMENTUM),
    "allreduce": ("allreduce", _STEPS),
    "flexdemo": ("flexdemo", _STEPS),
}
"""By name of a measurement, the method and its settings."""
OVERRIDES = (
    "node.insecure=true",
    "node.hang_timeout_s=86400.0",
    "node.checkpoint_every_rounds=1000000",
)
SLOTS = "/memfd:lowcomm-slots"


@dataclass(frozen=True, slots=True)
class Taken:
    """Memory of one daemon, in bytes."""

    own: int
    """Its private memory ..."""
    shared: int
    """... and the memory that it shares with its ranks."""

    @property
    def all(self) -> int:
        return self.own + self.shared


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory of the daemon that took most, with one method."""

    method: str
    parameters: int
    peak_bytes_per_parameter: float
    """The maximum from the start to the end of the run."""
    bytes_per_parameter: float
    """The median over the second half of the run, during which rounds were made."""
    own_bytes_per_parameter: float
    """The maximum of the private memory."""
    needed_bytes_per_parameter: float = 0.0
    """The memory that a joiner's daemon must have to start."""


def chosen(only: str) -> list[str]:
    """The measurements with these names, comma-separated; all without a name. Raises
    ConfigError."""
    wanted = [word for word in only.split(",") if word]
    for word in wanted:
        if word not in METHODS:
            raise ConfigError(f"--only {word}: there are {', '.join(METHODS)}")
    return wanted or list(METHODS)


def measure(
    mib: int, advance: Advance, names: Sequence[str], *, in_files: bool = False
) -> list[Footprint]:
    """Measure these methods, with so many MiB of fp32 parameters. `in_files`: with
    node.outer_state = "file"."""
    found: list[Footprint] = []
    for name in names:
        bare = asyncio.run(_play(name, 1 << 16, step_s=0.05, in_files=in_files))
        advance(f"{name}, with a tiny model")
        seen = asyncio.run(_play(name, mib << 18, step_s=STEP_S, in_files=in_files))
        needed = needed_bytes_per_parameter(name, mib << 18, in_files=in_files)
        made = footprint(name, seen, bare, mib)
        found.append(replace(made, needed_bytes_per_parameter=needed))
        advance(f"{name}, {mib} MiB")
    return found


def needed_bytes_per_parameter(name: str, elements: int, *, in_files: bool) -> float:
    """Bytes that a joiner's daemon must have to start with this method, for each parameter."""
    with tempfile.TemporaryDirectory(prefix="lowcomm-") as directory:
        config, settings = _config(name, Path(directory), in_files=in_files)
        run = load_config(config, settings).run
    assert run is not None
    layout = RankSpeed(elements=elements, tensors=TENSORS).layout(run.method)
    return memory_needed(run, layout, peers=PEERS, joins=True, in_file=in_files) / elements


def footprint(
    name: str, seen: Sequence[Sequence[Taken]], bare: Sequence[Sequence[Taken]], mib: int
) -> Footprint:
    """Compute the footprint from samples of each daemon, with a model of `mib` and with a tiny
    one."""
    parameters = mib << 18
    without = max(one.all for each in bare for one in each)
    without_own = max(one.own for each in bare for one in each)

    def middle(samples: Sequence[Taken]) -> int:
        late = sorted(one.all for one in samples[len(samples) // 2 :])
        return late[len(late) // 2]

    return Footprint(
        name,
        parameters,
        (max(one.all for each in seen for one in each) - without) / parameters,
        (max(map(middle, seen)) - without) / parameters,
        (max(one.own for each in seen for one in each) - without_own) / parameters,
    )


def _config(name: str, directory: Path, *, in_files: bool) -> tuple[Path, tuple[str, ...]]:
    """(configuration file, overrides)."""
    method, settings = METHODS[name]
    config = write_config(directory, peers=PEERS, rounds=1, method=f'name = "{method}"')
    place = "file" if in_files else "memory"
    return config, (*OVERRIDES, *settings, f"node.outer_state={place}")


async def _play(name: str, elements: int, *, step_s: float, in_files: bool) -> list[list[Taken]]:
    """Run a method, and return the samples of each daemon."""
    argv = paced_command(RankSpeed(step_s=step_s, elements=elements, tensors=TENSORS))
    with tempfile.TemporaryDirectory(prefix="lowcomm-") as directory:
        config, settings = _config(name, Path(directory), in_files=in_files)
        async with LocalCluster(Path(directory) / "run") as cluster:

            def start(name: str, token: str) -> LocalNode:
                return cluster.start_peer(
                    name, config, join=token, overrides=settings, command=argv
                )

            nodes = await cluster.start_all([f"p{number}" for number in range(PEERS)], start)
            async with asyncio.timeout(TIMEOUT_S):
                return await _looks(nodes)


async def _looks(nodes: Sequence[LocalNode]) -> list[list[Taken]]:
    """Sample all daemons until they have ended. Raises LowcommError if one failed."""
    seen: list[list[Taken]] = [[] for _ in nodes]
    ends = [asyncio.ensure_future(node.child.wait()) for node in nodes]
    while not all(end.done() for end in ends):
        for node, end, samples in zip(nodes, ends, seen, strict=True):
            taken = None if end.done() else _taken(node.child.pid)
            if taken is not None:
                samples.append(taken)
        await asyncio.sleep(LOOK_S)
    for node, end in zip(nodes, ends, strict=True):
        if end.result():
            log = (node.directory / LOG).read_text(encoding="utf-8", errors="replace")
            raise LowcommError(f"{node.directory / EVENTS}: a daemon failed: {log.strip()}")
    return seen


def _taken(pid: int) -> Taken | None:
    """A sample of one daemon; None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        own = next(int(x.split()[1]) for x in status.splitlines() if x.startswith("RssAnon:"))
        shared: dict[int, int] = {}
        for name in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            if os.readlink(path).startswith(SLOTS):
                file = os.stat(path)
                shared[file.st_ino] = file.st_blocks * 512
    except (OSError, StopIteration):
        return None
    return Taken(1024 * own, sum(shared.values()))
