"""A daemon's lifelines and a rank's end of one, in one process, for tests of both.

Must NOT hold tests.
"""

import asyncio
import struct
import tempfile
from collections.abc import Generator
from contextlib import contextmanager

from peers.ipc.daemon_socket import Closed, DaemonSocket, DaemonSocketServer
from peers.ipc.messages import (
    Answer,
    Attached,
    Boundary,
    Configured,
    Contributed,
    DaemonMessage,
    RankEvaluated,
    RankHello,
    RankLayout,
    RankMessage,
    RankReady,
    RankRefused,
    Result,
    Snapshotted,
    StepMetrics,
    TensorPlace,
)
from peers.ipc.msgpack_records import kinds_of
from peers.ipc.rank_socket import RankSocket
from peers.ipc.shared_memory import SlotsShape
from peers.ipc.step_orders import Obeyed
from protocols.types.sample_ranges import SampleRange
from protocols.wire.layout import pack_layout

HELLO = RankHello(rank=1, world_size=2, attempt=3, pid=4)
TENSORS = (TensorPlace(0, "w", (2, 3), 0), TensorPlace(0, "b", (), 6))
LAYOUT = RankLayout(packed=pack_layout(TENSORS), elements=7)
BOUNDARY = Boundary(steps=9, due=True, left=(0, 2))
CONTRIBUTED = Contributed(
    fragment=0, generation=1, steps=10, tokens=20, samples=(SampleRange(3, 9),)
)
REPORTS: tuple[RankMessage, ...] = (
    RankReady(),
    CONTRIBUTED,
    StepMetrics(step=3, tokens=4, loss=float("inf"), tokens_per_s=0.5),
    RankEvaluated(loss=2.5, windows=8, sample="Once"),
    Snapshotted(directory="d"),
)
RESULT = Result(
    fragment=0,
    place=0,
    kind="delta",
    version=1,
    inner_step=10,
    boundary_steps=20,
    samples=(SampleRange(0, 8), SampleRange(9, 10)),
)
ATTACHED = Attached(
    shape=SlotsShape(2, (28,)),
    initial=True,
    contribution_generations=(1,),
    contribution_places=(0,),
    slot=5,
    rank_state="",
)
FROM_DAEMON = kinds_of(Configured, Attached, Answer, Result, RankRefused)


def ignored(link: DaemonSocket, message: Obeyed) -> None:
    """Nobody is ordered anything here."""


@contextmanager
def serving(*, links_max: int = 4) -> Generator[tuple[DaemonSocketServer, str]]:
    """Inside a running loop. These tests never `accept` a link of their own process: to end an
    accepted one kills its process."""
    with tempfile.TemporaryDirectory(prefix="lc") as directory:
        path = f"{directory}/lifeline"
        server = DaemonSocketServer(path, links_max=links_max, obeyed=ignored)
        try:
            yield server, path
        finally:
            server.close()


@contextmanager
def linked(path: str) -> Generator[RankSocket]:
    link = RankSocket(path, timeout_s=5)
    try:
        yield link
    finally:
        link.close()


async def heard(server: DaemonSocketServer) -> tuple[DaemonSocket, RankMessage | Closed]:
    link, message = await asyncio.wait_for(server.receive(), 10)
    assert isinstance(link, DaemonSocket)
    return link, message


def frame(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


def words(step: int) -> StepMetrics:
    return StepMetrics(step=step, tokens=0, loss=0.0, tokens_per_s=0.0)


def receive(link: RankSocket) -> DaemonMessage:
    return link.receive(FROM_DAEMON)
