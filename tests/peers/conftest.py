"""A daemon in short, for the tests of ranks with real processes (`rank_programs.py`).

Must NOT hold fixtures that act without being asked for: other tests live here too.
"""

import asyncio
import errno
import json
import os
import signal
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from peers.ipc.messages import NONE, Answer, Boundary, Result
from peers.ipc.shared_memory import COPIES, Slots, SlotsShape
from peers.processes.supervisor import Spawner, ZygoteSpawner
from peers.ranks.attempt import HangLimits
from peers.ranks.config import RanksConfig
from peers.ranks.events import GroupLost, GroupReady, RankEvent, RankMetrics, RanksLayout
from peers.ranks.rank_group import RankGroup
from peers.ranks.rendezvous import Elsewhere

pytest.register_assert_rewrite("tests.peers.xor_node")  # Before anybody imports it.

HERE = Path(__file__).parent
FRAGMENT_BYTES = (4 << 10,)
STEPS = 3
"""Ranks contribute after so many; as in rank_programs.py."""

E = TypeVar("E")


class Owner:
    """What a daemon does with its ranks, in short: answers everything, remembers all events."""

    def __init__(
        self,
        config: RanksConfig,
        *,
        spawner: Spawner | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.events: asyncio.Queue[RankEvent] = asyncio.Queue()
        self.metrics: dict[int, RankMetrics] = {}
        """The first ones of each rank: `step` is its pid, `tokens` its MASTER_PORT."""
        self.version = 0
        self.attaches = True
        self.ranks = config.ranks
        self.group = RankGroup(
            config,
            spawner=spawner
            or ZygoteSpawner(["peers.ipc.rank_client"], target="rank_programs:rank"),
            on_event=self.on_event,
            decide_boundary=decide_boundary,
            answer=lambda _: json.dumps({"state": "training"}),
            elsewhere=elsewhere,
        )
        self.task: asyncio.Task[None] | None = None

    def on_event(self, event: RankEvent) -> None:
        if isinstance(event, RanksLayout) and self.attaches:
            self.attach()
        if isinstance(event, RankMetrics):
            self.metrics.setdefault(event.rank, event)
        if isinstance(event, GroupLost):
            self.metrics = {}
        self.events.put_nowait(event)

    def configure(self) -> None:
        self.group.configure(run="{}", node="{}", corpus="")

    def attach(self) -> Slots:
        slots = self.group.slots or Slots.create(SlotsShape(self.ranks, FRAGMENT_BYTES))
        self.group.provide(slots, initial=True, slot=0, rank_state="")
        return slots

    def post(
        self,
        *,
        counted: bool = False,
        finish: bool = False,
        evaluate: bool = False,
        snapshot: str = "",
    ) -> None:
        self.version += 1
        self.group.post_result(
            Result(
                fragment=0,
                place=fill_with(self.group.slots, self.version),
                kind="full",
                counted=counted,
                version=self.version,
                inner_step=STEPS * self.version,
                boundary_steps=1,
                finish=finish,
                evaluate=evaluate,
                snapshot=snapshot,
            )
        )

    async def until(self, kind: type[E] | tuple[type[E], ...], *, within_s: float = 20) -> E:
        """The next event of this kind, or of these; those before it are passed over."""
        async with asyncio.timeout(within_s):
            while True:
                event = await self.events.get()
                if isinstance(event, kind):
                    return event

    async def ready(self, attempt: int = 0) -> dict[int, RankMetrics]:
        """All ranks are attached and have told their pids."""
        assert await self.until(GroupReady) == GroupReady(attempt)
        while len(self.metrics) < 2:
            await self.until(RankMetrics)
        return self.metrics

    async def ended(self) -> None:
        assert self.task is not None
        await asyncio.wait_for(asyncio.shield(self.task), 20)


@asynccontextmanager
async def run_owner(
    *,
    ranks: int = 2,
    hang_timeout_s: float = 30.0,
    restarts_max: int = 5,
    spawner: Spawner | None = None,
    elsewhere: Elsewhere | None = None,
) -> AsyncGenerator[Owner]:
    """An owner whose group runs, until cancelled at the end, after which nothing is left."""
    with tempfile.TemporaryDirectory(prefix="lc") as directory:
        config = RanksConfig(
            ranks=ranks,
            directory=directory,
            hang_limits=HangLimits(hang_timeout_s, first_step_timeout_s=hang_timeout_s),
            restarts_max=restarts_max,
        )
        owner = Owner(config, spawner=spawner, elsewhere=elsewhere)
        owner.task = asyncio.create_task(owner.group.run())
        try:
            yield owner
        finally:
            owner.task.cancel()
            await asyncio.wait({owner.task})
        assert os.listdir(directory) == []
        assert owner.group.slots is None
        if not owner.task.cancelled():
            owner.task.exception()


def decide_boundary(question: Boundary) -> Answer:
    """As the daemon of rank_programs.py does."""
    return Answer(fragment=0 if question.steps == STEPS else NONE)


def fill_with(slots: Slots | None, byte: int) -> int:
    """The same byte everywhere, in the place that it returns."""
    assert slots is not None
    place = byte % COPIES
    slots.begin_result(0, place)
    view = slots.result(0, place)
    view[:] = bytes([byte]) * len(view)
    return place


@pytest.fixture(params=["pidfds", "no signals", "ENOSYS", "EPERM"])
def pidfds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The test with pidfds; where a filter forbids to signal through them; and as on a kernel
    without them, or where a filter forbids to open them."""
    if request.param == "no signals":
        monkeypatch.setattr(signal, "pidfd_send_signal", _refuse(errno.EPERM))
    elif request.param != "pidfds":
        monkeypatch.setattr(os, "pidfd_open", _refuse(getattr(errno, request.param)))
    return request.param


def _refuse(code: int) -> Callable[..., int]:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return refuse


Running = Callable[..., AbstractAsyncContextManager[Owner]]
"""The arguments of `run_owner`."""


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Running:
    """Starts owners whose ranks can import `rank_programs`, and behave well."""
    monkeypatch.setenv("PYTHONPATH", f"{HERE.parents[1]}:{HERE}")
    monkeypatch.delenv("BEHAVIOUR", raising=False)
    return run_owner
