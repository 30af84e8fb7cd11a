"""A daemon's memory in a run, in bytes a parameter: `python -m benchmarks memory --methods`.

Real daemons and ranks without a model, a few rounds of each method. The memory of a daemon with a
tiny model is subtracted; ranks are not counted, they stand for the training. Shared memory counts
once, whichever process has touched it. Must NOT change how daemons take memory.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lowcomm.reports import EVENTS
from protocols.types import LowcommError
from sims.cluster import LOG, LocalCluster, LocalNode
from sims.leader_loss import write_config
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
METHODS = {
    "streaming": (
        "streaming_diloco",
        ("run.method.fragments=8", "run.method.overlap_steps=1"),
    ),
    "diloco": ("diloco", ()),
}
"""By name of a measurement, the method and its settings."""
OVERRIDES = (
    "run.method.outer_momentum=0.9",
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


def measure(mib: int, advance: Advance) -> list[Footprint]:
    """Measure each method, with so many MiB of fp32 parameters."""
    found: list[Footprint] = []
    for name in METHODS:
        bare = asyncio.run(_play(name, 1 << 16, ROUNDS, step_s=0.05))
        advance(f"{name}, with a tiny model")
        seen = asyncio.run(_play(name, mib << 18, ROUNDS, step_s=STEP_S))
        found.append(footprint(name, seen, bare, mib))
        advance(f"{name}, {mib} MiB")
    return found


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


async def _play(name: str, elements: int, rounds: int, *, step_s: float) -> list[list[Taken]]:
    """Run a method, and return the samples of each daemon."""
    method, settings = METHODS[name]
    argv = [sys.executable, "-m", "sims.paced.rank", "--elements", str(elements), "--tensors", "8"]
    argv += ["--step-s", str(step_s)]
    with tempfile.TemporaryDirectory(prefix="lowcomm-") as directory:
        lines = f'name = "{method}"\ninner_steps = {INNER_STEPS}'
        config = write_config(Path(directory), peers=PEERS, rounds=rounds, method=lines)
        async with LocalCluster(Path(directory) / "run") as cluster:

            def start(name: str, token: str) -> LocalNode:
                sets = (*OVERRIDES, *settings)
                return cluster.start_peer(name, config, join=token, overrides=sets, command=argv)

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
