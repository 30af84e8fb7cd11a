"""Joiners: waiting time, and cost for the members: `python -m benchmarks joining --mib 64`.

Real daemons on this machine, encrypted or not. Members alternately rest (in place of training) and
exchange; joiners come and go one after the other, at evenly spread moments of a round. Must NOT
compare rounds of two runs: the machine may be busy.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.exchanging import proc
from benchmarks.exchanging.lowcomm_system import settings
from benchmarks.joins.join_times import JoinMedians, JoinTimes, Round, figures, rounds_of
from benchmarks.machine import machine
from lowcomm.reports import EVENTS
from peers.processes import available_memory_bytes
from protocols.types import ConfigError, LowcommError
from sims.cluster import LOG, LocalCluster, LocalNode
from sims.leader_loss import write_config
from sims.terminal import Advance, Tell, bar, run

ROUNDS_MAX = 1_000_000
"""The benchmark ends before the run does."""
LOOK_S = 0.02
RANK_LATER_S = 1.0
"""Seconds from the start of a joiner's daemon, which has the state by then, to that of its rank.
The rank's start costs half as much CPU as the transfer; on separate machines the members do not
share it."""
START_S = 120.0
"""Timeout of the members' start, on a busy machine."""
PEERS_MAX = 16
EXIT_TERMINATED = 143
COPIES = 22
"""Peak memory of one peer, as a multiple of the model."""
BASE_BYTES = 200 << 20
Q = typer.Option


def main(
    mib: Annotated[int, Q(help="MiB of fp32 of the model; its state is twice that.", min=1)] = 64,
    peers: Annotated[int, Q(help="Members before the first join.", min=2, max=PEERS_MAX)] = 3,
    joins: Annotated[int, Q(help="Number of joins, one after the other.", min=1)] = 9,
    train: Annotated[float, Q(help="Seconds that ranks rest between two rounds.", min=0.0)] = 0.5,
    rounds: Annotated[int, Q(help="Rounds without a joiner before each join.", min=1)] = 4,
    encrypted: Annotated[bool, Q("--encrypted", help="Over encrypted links.")] = False,
    deadline: Annotated[float, Q(help="Timeout of a join in seconds; it ends the run.")] = 60.0,
    as_json: Annotated[bool, Q("--json", help="Print one JSON object.")] = False,
) -> None:
    """The time of a joiner from its first connection to a verified state, and the slowdown of the
    members' exchanges meanwhile, alone and with the training between two of them.

    \b
    Examples:
      python -m benchmarks joining
      python -m benchmarks joining --mib 64 --peers 3 --json
      python -m benchmarks joining --train 0 --encrypted
    """
    needed = (peers + 1) * ((COPIES * mib << 20) + BASE_BYTES)
    if needed > available_memory_bytes():
        raise ConfigError(
            f"{peers} members and a joiner of {mib} MiB need about {needed / 2**30:.1f} GiB and "
            f"{available_memory_bytes() / 2**30:.1f} GiB are free: give less of --mib or --peers"
        )
    bench = Bench(mib=mib, peers=peers, train_s=train, encrypted=encrypted, deadline_s=deadline)
    with (
        bar("joins", joins) as (advance, tell),
        tempfile.TemporaryDirectory(prefix="lowcomm-") as directory,
    ):
        try:
            found = asyncio.run(
                _play(bench, Path(directory), joins, rounds, advance=advance, tell=tell)
            )
        except asyncio.CancelledError:
            sys.exit(EXIT_TERMINATED)
    asked = {"mib": mib, "peers": peers, "train_s": train, "encrypted": encrypted}
    told = {**asked, "machine": machine(), **asdict(found)}
    if as_json:
        print(json.dumps(told))
    else:
        _show(found)


class Bench:
    """One run: its members and its joiners."""

    def __init__(
        self, *, mib: int, peers: int, train_s: float, encrypted: bool, deadline_s: float
    ) -> None:
        self.peers = peers
        self.deadline_s = deadline_s
        self.train_s = train_s
        self.ready = False
        """All members exchange; a node that starts from now on is a joiner."""
        self._elements = mib << 18
        self._settings = [
            x
            for x in settings("fp32", encrypted=encrypted)
            if not x.startswith("run.method.outer_momentum")  # The state has a momentum.
        ]
        self._config = Path()
        self._token = ""
        self._members: list[LocalNode] = []

    async def begin(self, cluster: LocalCluster, directory: Path) -> None:
        """Start all members, and wait until they exchange. Raises LowcommError."""
        self._config = write_config(directory, peers=self.peers, rounds=ROUNDS_MAX)
        for number in range(self.peers):
            node = self._start(cluster, f"m{number}")
            self._members.append(node)
            self._token = self._token or await cluster.token_of(node)
        await self.goes_on(1, within_s=START_S)
        self.ready = True

    def _start(self, cluster: LocalCluster, name: str) -> LocalNode:
        told = cluster.run_dir / f"{name}.rounds"
        told.parent.mkdir(parents=True, exist_ok=True)
        told.touch()
        arguments = [str(self._elements), str(self.train_s), str(told)]
        later = ["sh", "-c", f'sleep {RANK_LATER_S}; exec "$@"', "sh"] if self.ready else []
        return cluster.start_peer(
            name,
            self._config,
            join=self._token,
            overrides=self._settings,
            command=[*later, sys.executable, "-m", "benchmarks.joins.rank", *arguments],
        )

    def rounds(self) -> list[Round]:
        """The rounds so far."""
        return rounds_of(
            _lines(node.directory.parent / f"{node.name}.rounds") for node in self._members
        )

    async def goes_on(self, count: int, *, within_s: float) -> None:
        """Wait for so many further rounds of all members. Raises LowcommError."""
        wanted = len(self.rounds()) + count
        try:
            async with asyncio.timeout(within_s):
                while len(self.rounds()) < wanted:
                    self._check(self._members)
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise LowcommError(f"no {count} rounds of all members in {within_s:g} s") from None

    async def join(self, cluster: LocalCluster, name: str) -> JoinTimes:
        """Start a joiner, wait until it has its state and is a member, and stop it. Raises
        LowcommError."""
        node = self._start(cluster, name)
        events, everybody = node.directory / EVENTS, [*self._members, node]
        spent: list[tuple[float, float]] = []
        try:
            async with asyncio.timeout(self.deadline_s):
                while not (states := _kind(events, "snapshot_received")):
                    self._check(everybody)
                    spent.append(_spent(everybody))
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise LowcommError(f"{name} has no state after {self.deadline_s:g} s") from None
        spent.append(_spent(everybody))
        await self.goes_on(1, within_s=self.deadline_s)
        os.kill(node.child.pid, signal.SIGTERM)
        async with asyncio.timeout(self.deadline_s):
            await node.child.wait()
        began, state = _kind(events, "start")[0], states[0]
        ended = max(x["t"] for x in _lines(events))
        connected, verified = state["t"] - state["connected_s"], state["t"]
        return JoinTimes(
            began=began["exec_t"],
            connected=connected,
            verified=verified,
            ended=ended,
            granted_s=state["seconds"],
            donor_bytes=tuple(state["donor_bytes"]),
            cpu_s=_at(spent, verified) - _at(spent, connected),
        )

    def _check(self, nodes: Sequence[LocalNode]) -> None:
        for node in nodes:
            if not node.running:
                log = (node.directory / LOG).read_text(encoding="utf-8", errors="replace")
                raise LowcommError(f"{node.name} ended: {log.strip()[-500:]}")


def _spent(nodes: Sequence[LocalNode]) -> tuple[float, float]:
    """(now, the CPU seconds of these daemons)."""
    return time.time(), proc.cpu_s(node.child.pid for node in nodes)


def _at(spent: Sequence[tuple[float, float]], when: float) -> float:
    """CPU seconds at a time between two samples, interpolated linearly."""
    for (a, x), (b, y) in pairwise(spent):
        if a <= when <= b:
            return x + (y - x) * (when - a) / (b - a)
    return spent[0][1] if when < spent[0][0] else spent[-1][1]


def _lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of the file."""
    if not path.exists():
        return []
    data = path.read_bytes()
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def _kind(path: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in _lines(path) if event["kind"] == kind]


async def _play(
    bench: Bench, directory: Path, joins: int, rounds: int, *, advance: Advance, tell: Tell
) -> JoinMedians:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    found: list[JoinTimes] = []
    async with LocalCluster(directory / "run") as cluster:
        tell(f"starting {bench.peers} members")
        await bench.begin(cluster, directory)
        for number in range(joins):
            await bench.goes_on(rounds, within_s=bench.deadline_s)
            await asyncio.sleep(bench.train_s * number / joins)
            join = await bench.join(cluster, f"j{number}")
            found.append(join)
            gave = ", ".join(f"{size / 2**20:.0f}" for size in join.donor_bytes)
            tell(f"{join.seconds:.3f} s from connection to verified state; MiB by donor: {gave}")
            advance(f"{join.seconds:.2f} s")
        await bench.goes_on(rounds, within_s=bench.deadline_s)
        return figures(bench.rounds(), found)


def _show(found: JoinMedians) -> None:
    console = Console()
    for name, value in asdict(found).items():
        console.print(f"{name:30} {value}", markup=False, highlight=False)
    console.print(", ".join(f"{name} {value}" for name, value in machine().items()))


if __name__ == "__main__":
    try:
        run(main)
    except LowcommError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
