"""A daemon's part towards its ranks, spoken by a test: a real RankGroup with real ranks.

Must NOT judge what they say: the tests do.
"""

import asyncio
import json
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from lowcomm.config.schema import NodeConfig, RunConfig, run_to_json
from lowcomm.numerics.operations import F32
from peers.ipc.messages import NONE, Answer, Boundary, Result
from peers.ipc.shared_memory import MOVE, Slots, SlotsShape
from peers.processes.supervisor import Spawner
from peers.ranks.attempt import fragment_elements
from peers.ranks.config import RanksConfig
from peers.ranks.events import (
    GroupLost,
    GroupReady,
    RankContribution,
    RankEvent,
    RankMetrics,
    RanksLayout,
    RanksSnapshotted,
)
from peers.ranks.rank_group import RankGroup
from protocols.types.sample_ranges import SampleRange, Samples

TIMEOUT_S = 80.0
LEASE: Samples = (SampleRange(0, 10_000),)

E = TypeVar("E")


class Driver:
    """Posts results and waits for events; use `drive`."""

    def __init__(
        self,
        spawner: Spawner,
        *,
        run: RunConfig,
        node: NodeConfig,
        corpus: Path,
        decide_boundary: Callable[[Boundary], Answer] = lambda _: Answer(fragment=NONE),
    ) -> None:
        self.metrics: list[RankMetrics] = []
        self.events: asyncio.Queue[RankEvent] = asyncio.Queue()
        self._snapshots, self._others = deque[RankEvent](), deque[RankEvent]()
        self.sizes: tuple[int, ...] = ()
        """Elements of each fragment."""
        self.ranks = node.ranks
        self.group = RankGroup(
            RanksConfig(ranks=node.ranks),
            spawner=spawner,
            on_event=self.events.put_nowait,
            decide_boundary=decide_boundary,
            answer=lambda _: "{}",
        )
        self.group.configure(
            run=run_to_json(run), node=json.dumps(asdict(node)), corpus=str(corpus)
        )

    async def expect(self, kind: type[E]) -> E:
        """The next event but for metrics; fails when it is of another kind. Snapshots are counted
        apart: a thread writes them beside the training, so the next contribution may come first."""
        apart = kind.__name__ == RanksSnapshotted.__name__
        waiting = self._snapshots if apart else self._others
        while not waiting:
            match await self.events.get():
                case RankMetrics() as event:
                    self.metrics.append(event)
                case RanksSnapshotted() as event:
                    self._snapshots.append(event)
                case event:
                    self._others.append(event)
        found = waiting.popleft()
        assert isinstance(found, kind), found
        return found

    async def attach(self, *, initial: bool, slot: int) -> RanksLayout:
        """The first attempt, until its ranks are attached."""
        layout = await self.expect(RanksLayout)
        self.sizes = fragment_elements(layout.tensors)
        self.provide(initial=initial, slot=slot, rank_state="")
        await self.expect(GroupReady)
        return layout

    async def reattach(self, *, slot: int, rank_state: str) -> GroupLost:
        """SIGKILL rank 0; until the ranks of the next attempt are attached."""
        assert self.group._running is not None
        os.kill(self.group._running.links[0].pid, signal.SIGKILL)
        lost = await self.expect(GroupLost)
        self.provide(initial=False, slot=slot, rank_state=rank_state)
        await self.expect(RanksLayout)
        await self.expect(GroupReady)
        return lost

    def provide(self, *, initial: bool, slot: int, rank_state: str) -> None:
        self.group.provide(
            self.group.slots
            or Slots.create(SlotsShape(self.ranks, tuple(4 * size for size in self.sizes))),
            initial=initial,
            slot=slot,
            rank_state=rank_state,
        )

    async def contribution(self) -> tuple[RankContribution, F32]:
        """The next contribution, and what is in it."""
        event = await self.expect(RankContribution)
        assert self.group.slots is not None
        view = self.group.slots.contribution(event.fragment)
        return event, np.frombuffer(bytes(view), np.float32)

    def post(
        self,
        values_P: F32,
        kind: Literal["full", "delta"],
        *,
        inner_step: int,
        fragment: int = 0,
        counted: bool = False,
        boundary_steps: int = 1000,
        finish: bool = False,
        evaluate: bool = False,
        snapshot: str = "",
        samples: Samples = LEASE,
    ) -> None:
        assert self.group.slots is not None
        place = MOVE if kind == "delta" else 0
        self.group.slots.begin_result(fragment, place)
        self.group.slots.result(fragment, place)[:] = values_P.tobytes()
        self.group.post_result(
            Result(
                fragment=fragment,
                place=place,
                kind=kind,
                counted=counted,
                version=0,
                inner_step=inner_step,
                boundary_steps=boundary_steps,
                finish=finish,
                evaluate=evaluate,
                snapshot=snapshot,
                samples=samples,
            )
        )


def drive(driver: Callable[[], Driver], play: Callable[[Driver], Awaitable[None]]) -> None:
    """Run `play` beside the ranks, until both have ended."""

    async def both() -> None:
        made = driver()
        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(made.group.run())
            await play(made)

    asyncio.run(both())
