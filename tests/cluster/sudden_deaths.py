"""A run of two paced nodes, all processes of which are killed at once, again and again.

Each time it says where that hit, which state was complete on a disk, and with which round the run
went on. Must NOT judge anything: the test does.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from lowcomm.checkpoints.checkpoint import CheckpointCut, newest_checkpoint, read_checkpoint
from lowcomm.reports.events import Commit, Event, Ready, Reduced
from sims.cluster.local_cluster import LocalCluster, LocalNode
from tests.cluster.running import alive, marked_processes, of

NAMES = ("alpha", "beta")
EVERY = 3
"""Rounds from one checkpoint to the next."""
ELEMENTS = 1 << 21
"""Of a model whose checkpoint and reduction take some time."""
PROGRAM = (sys.executable, str(Path(__file__).with_name("drawing_ranks.py")), str(ELEMENTS))
WAIT_S = 90.0
LOOK_S = 0.002
ANY_MAX_S = 6.0
"""An instant at any time lies within so many seconds after the start: some before the first
round."""
INSIDE_MAX_S = 0.06
"""An instant inside a write or a reduction lies within so many seconds after its begin."""
TRIES = 3
"""Times as many deaths as are asked for, at most: some come when the write is over already."""

Place = Literal["any", "checkpoint", "reduction"]
E = TypeVar("E", bound=Event)


@dataclass(frozen=True, kw_only=True)
class Death:
    """All processes were killed at this moment."""

    began: float
    """When the nodes were started, in Unix seconds; `t` likewise."""
    t: float
    inside: frozenset[Place]
    """What was going on, by the files and the events."""
    cuts: tuple[CheckpointCut, ...]
    """The newest complete one of each node that has any."""

    @property
    def newest(self) -> CheckpointCut | None:
        """The one with which the run has to go on; None: from its beginning."""
        return max(self.cuts, key=lambda cut: cut.round, default=None)


@dataclass
class SuddenDeaths:
    """Starts the nodes, and kills all of them."""

    run_dir: Path
    config: Path
    drawn: random.Random
    deaths: list[Death] = field(default_factory=list[Death])
    began: float = 0.0

    async def play(self, wanted: Counter[Place]) -> None:
        """Until so many deaths were at each place; then let the run make some checkpoints more, and
        end it."""
        async with LocalCluster(self.run_dir) as cluster:
            nodes = await self._found(cluster)
            await self._until(partial(self._has_checkpoints, 1), "a checkpoint of each node")
            left = list(wanted.elements())
            self.drawn.shuffle(left)
            while left:
                assert len(self.deaths) < TRIES * wanted.total(), self.deaths
                place = left.pop()
                await self._instant(place)
                death = await self._kill(nodes)
                if place not in ("any", *death.inside):
                    left.insert(self.drawn.randrange(len(left) + 1), place)
                nodes = await self._resume(cluster)
            await self._until(partial(self._has_checkpoints, 2), "two checkpoints of each node")
            for node in nodes:
                os.kill(node.child.pid, signal.SIGTERM)
            await asyncio.gather(*(node.child.wait() for node in nodes))

    async def _found(self, cluster: LocalCluster) -> list[LocalNode]:
        def start(name: str, token: str) -> LocalNode:
            keys = [f"node.checkpoint_every_rounds={EVERY}"]
            return cluster.start_peer(
                name, self.config, join=token, overrides=keys, command=PROGRAM
            )

        self.began = time.time()
        return await cluster.start_all(NAMES, start)

    async def _resume(self, cluster: LocalCluster) -> list[LocalNode]:
        """By its own command each, in any order."""
        self.began = time.time()
        names = self.drawn.sample(NAMES, k=len(NAMES))
        return [cluster.start_node(x, ["resume", str(self.run_dir / x)]) for x in names]

    # Instants -------------------------------------------------------------------------------

    async def _instant(self, place: Place) -> None:
        if place == "any":
            await asyncio.sleep(self.drawn.uniform(0.0, ANY_MAX_S))
            return
        inside = self._writes if place == "checkpoint" else self._reduces
        # The first one may be over before the second node is back.
        skipped = self.drawn.randrange(1, 4)
        await self._until(partial(self._has_committed, skipped), f"{skipped} rounds")
        await self._until(inside, f"a {place}")
        await asyncio.sleep(self.drawn.uniform(0.0, INSIDE_MAX_S))

    def _writes(self) -> bool:
        """Is a checkpoint being written, or was it when its node was killed? An earlier one that
        was not finished stays until a later one is complete."""
        unfinished = self.run_dir.glob("*/checkpoints/.writing-*")
        return any(changed(path) > self.began for path in unfinished)

    def _reduces(self) -> bool:
        """Has a node contributed to a round, and not all of its result?"""
        ready, reduced = self._of(Ready), self._of(Reduced)
        over = {(each.name, each.round) for each in reduced}
        return any((each.name, each.round) not in over for each in ready)

    def _has_committed(self, rounds: int) -> bool:
        return len({each.round for each in self._of(Commit)}) >= rounds

    def _has_checkpoints(self, count: int) -> bool:
        """Every node has written so many since the start."""
        written = [
            path
            for path in self.run_dir.glob("*/checkpoints/round-*/cut.json")
            if changed(path) > self.began
        ]
        by_node = Counter(path.parts[-4] for path in written)
        return all(by_node[name] >= count for name in NAMES)

    def _of(self, kind: type[E]) -> list[E]:
        return [each for each in of(kind, self.run_dir) if each.t > self.began]

    async def _until(self, look: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not look():
            assert time.monotonic() < deadline, f"after {WAIT_S} s: not {what}"
            await asyncio.sleep(LOOK_S)

    # Deaths ---------------------------------------------------------------------------------

    async def _kill(self, nodes: Sequence[LocalNode]) -> Death:
        for node in nodes:
            os.kill(node.child.pid, signal.SIGKILL)
        moment = time.time()
        while left := alive(set(marked_processes())):
            for pid in left:
                kill(pid)
            await asyncio.sleep(LOOK_S)
        waits: list[Awaitable[int]] = [node.child.wait() for node in nodes]
        await asyncio.gather(*waits)
        inside: dict[Place, bool] = {"checkpoint": self._writes(), "reduction": self._reduces()}
        death = Death(
            began=self.began,
            t=moment,
            inside=frozenset(place for place, true in inside.items() if true),
            cuts=tuple(cuts(self.run_dir)),
        )
        self.deaths.append(death)
        return death


def cuts(run_dir: Path) -> list[CheckpointCut]:
    """Of each node the newest complete one, each byte of it read."""
    newest = [newest_checkpoint(run_dir / name / "checkpoints")[0] for name in NAMES]
    return [read_checkpoint(path)[0] for path in newest if path is not None]


def changed(path: Path) -> float:
    """When it was, in Unix seconds; 0 if it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
