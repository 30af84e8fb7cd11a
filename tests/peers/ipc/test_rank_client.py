"""The rank's side, against the daemon's parts in the same process."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from peers.ipc.daemon_socket import Closed, DaemonSocket, DaemonSocketServer, RankLink
from peers.ipc.messages import (
    EXIT_DAEMON_GONE,
    EXIT_REFUSED,
    NONE,
    Answer,
    Attached,
    Boundary,
    Configured,
    Contributed,
    GrantedLease,
    RankEvaluated,
    RankHello,
    RankLayout,
    RankMessage,
    RankReady,
    Result,
    SampleDemand,
    Snapshotted,
    StepMetrics,
    TensorPlace,
)
from peers.ipc.msgpack_records import LinkError
from peers.ipc.rank_client import RankClient
from peers.ipc.shared_memory import COPIES, Slots, SlotsError, SlotsShape
from protocols.types.sample_ranges import SampleRange
from protocols.wire.layout import pack_layout

ROOT = Path(__file__).parents[3]
TENSORS = (TensorPlace(0, "a", (2,), 0), TensorPlace(1, "b", (3,), 0))
SHAPE = SlotsShape(ranks=2, fragment_bytes=(8, 12))


@dataclass(frozen=True, slots=True)
class Daemon:
    """The parts that a rank speaks with. It never accepts the link of its own process."""

    path: str
    daemon_sockets: DaemonSocketServer
    slots: Slots

    async def heard(self) -> RankMessage | Closed:
        _, message = await asyncio.wait_for(self.daemon_sockets.receive(), 10)
        return message


@asynccontextmanager
async def serving() -> AsyncGenerator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="lc") as directory:
        daemon_sockets = DaemonSocketServer(
            f"{directory}/lifeline", links_max=4, obeyed=lambda _, __: None
        )
        slots = Slots.create(SHAPE)
        try:
            yield Daemon(f"{directory}/lifeline", daemon_sockets, slots)
        finally:
            slots.close()
            daemon_sockets.close()


def connect(path: str) -> RankClient:
    return RankClient(path, rank=1, world_size=2, attempt=4, timeout_s=5)


@asynccontextmanager
async def attached(daemon: Daemon) -> AsyncGenerator[tuple[RankClient, RankLink]]:
    """A client that is ready, and its lifeline."""
    connecting = asyncio.create_task(asyncio.to_thread(connect, daemon.path))
    link, hello = await daemon.daemon_sockets.receive()
    assert hello == RankHello(rank=1, world_size=2, attempt=4, pid=os.getpid())
    configured = Configured(run='{"a": 1}', node="{}", corpus="there")
    link.send(configured)
    client = await connecting
    try:
        assert client.configured == configured
        attaching = asyncio.create_task(asyncio.to_thread(client.attach, TENSORS, elements=3))
        assert (await daemon.daemon_sockets.receive())[1] == RankLayout(
            packed=pack_layout(TENSORS), elements=3
        )
        answer = Attached(
            shape=SHAPE,
            initial=False,
            contribution_generations=(7, 2),
            contribution_places=tuple(daemon.slots.places),
            slot=0,
            rank_state="",
        )
        link.send(answer, fd=daemon.slots.fd)
        assert await attaching == answer
        assert await daemon.heard() == RankReady()
        yield client, link
    finally:
        client.close()  # Before the daemon's parts: its watcher would end this process.
        client.close()


def result_of(fragment: int, generation: int) -> Result:
    return Result(
        fragment=fragment,
        generation=generation,
        place=generation % COPIES,
        kind="full",
        version=1,
        inner_step=0,
        boundary_steps=0,
        finish=False,
        evaluate=False,
        snapshot="",
    )


@pytest.mark.asyncio
async def test_a_contribution_is_whole_when_the_daemon_hears_of_it() -> None:
    async with serving() as daemon, attached(daemon) as (client, _):
        for fragment, generation in ((0, 7), (1, 2), (0, 8)):
            daemon.slots.set_done(fragment, generation, 0)
            view = client.contribution(fragment)
            assert not daemon.slots.all_done(fragment, generation)
            view[4:8] = bytes([generation]) * 4
            client.contribute(fragment, steps=3, tokens=6)
            message = Contributed(fragment=fragment, generation=generation, steps=3, tokens=6)
            assert await daemon.heard() == message
            written = daemon.slots.contribution(fragment)[4:8]
            assert written == bytes([generation]) * 4
            assert daemon.slots.all_done(fragment, generation)
        client.contribution(0)  # Generation 9 goes where 8 is.
        assert not daemon.slots.all_done(0, 8)


@pytest.mark.asyncio
async def test_results_come_by_fragment() -> None:
    async with serving() as daemon, attached(daemon) as (client, link):
        for fragment in (1, 0):
            daemon.slots.result(fragment, 1)[:4] = bytes([fragment]) * 4
            daemon.slots.publish_result(fragment, 1, 1)
            link.send(result_of(fragment, 1))
        result = await asyncio.to_thread(client.wait_result, 0)
        assert result == result_of(0, 1)
        view = client.result(result)
        assert view.readonly
        assert bytes(view[:4]) == bytes(4)
        client.check_untorn(result)
        assert client.wait_result(1) == result_of(1, 1), "it came first and was kept"


@pytest.mark.asyncio
async def test_a_result_that_is_overwritten_is_torn() -> None:
    async with serving() as daemon, attached(daemon) as (client, _):
        daemon.slots.publish_result(0, 1, 1)
        client.result(result_of(0, 1))
        daemon.slots.begin_result(0, 1)
        with pytest.raises(SlotsError, match="torn"):
            client.check_untorn(result_of(0, 1))
        daemon.slots.publish_result(0, 1, 3)
        for use in (client.check_untorn, client.result):
            with pytest.raises(SlotsError, match="holds generation 3"):
                use(result_of(0, 1))


@pytest.mark.asyncio
async def test_everything_else_that_a_rank_says() -> None:
    async with serving() as daemon, attached(daemon) as (client, link):
        client.count_step(12)
        assert daemon.slots.step_of_rank(1) == 12
        for fragment, heard in ((1, 1), (NONE, None)):
            asking = asyncio.create_task(
                asyncio.to_thread(client.ask_boundary, 30, due=True, left=[0, 1])
            )
            question = Boundary(steps=30, due=True, left=(0, 1))
            assert await daemon.daemon_sockets.receive() == (link, question)
            link.send(Answer(fragment=fragment))
            assert await asking == heard
        lease = (SampleRange(0, 12),)
        demanding = asyncio.create_task(
            asyncio.to_thread(client.demand_samples, step_samples=8, ahead=4)
        )
        assert await daemon.heard() == SampleDemand(step_samples=8, ahead=4)
        link.send(GrantedLease(samples=lease))
        assert await demanding == lease
        client.metrics(step=1, tokens=2, loss=3.0, tokens_per_s=4.0)
        client.evaluated(loss=1.0, windows=2, sample="s")
        client.snapshotted("d")
        for message in (
            StepMetrics(step=1, tokens=2, loss=3.0, tokens_per_s=4.0),
            RankEvaluated(loss=1.0, windows=2, sample="s"),
            Snapshotted(directory="d"),
        ):
            assert await daemon.heard() == message


@pytest.mark.asyncio
async def test_results_that_have_come_are_known_before_they_are_waited_for() -> None:
    async with serving() as daemon, attached(daemon) as (client, link):
        assert client.arrived_results() == []
        for generation in (1, 2):
            link.send(result_of(1, generation))
        link.send(result_of(0, 1))
        async with asyncio.timeout(10):
            while len(client.arrived_results()) < 2:  # noqa: ASYNC110  No event tells.
                await asyncio.sleep(0.001)
        assert client.arrived_results() == [result_of(1, 1), result_of(0, 1)]
        assert client.wait_result(1) == result_of(1, 1)
        assert client.arrived_results() == [result_of(1, 2), result_of(0, 1)]


@pytest.mark.asyncio
async def test_results_that_come_before_an_answer_are_kept() -> None:
    async with serving() as daemon, attached(daemon) as (client, link):
        for generation in (1, 2):
            link.send(result_of(1, generation))
        link.send(Answer(fragment=0))
        link.send(result_of(0, 1))
        assert await asyncio.to_thread(client.ask_boundary, 30, due=True, left=[0, 1]) == 0
        assert [client.wait_result(fragment) for fragment in (0, 1, 1)] == [
            *(result_of(0, 1), result_of(1, 1), result_of(1, 2))
        ]


@pytest.mark.asyncio
async def test_a_rank_that_is_refused_while_it_waits_for_a_result_ends() -> None:
    async with serving() as daemon, attached(daemon) as (client, link):
        link.refuse("another model")
        with pytest.raises(SystemExit) as caught:
            await asyncio.to_thread(client.wait_result, 0)
        assert caught.value.code == EXIT_REFUSED


@pytest.mark.asyncio
async def test_metrics_never_block() -> None:
    async with serving() as daemon, attached(daemon) as (client, _):
        for step in range(2000):  # The daemon hears nothing: its loop runs this.
            client.metrics(step=step, tokens=0, loss=0.0, tokens_per_s=0.0)
        assert isinstance(await daemon.heard(), StepMetrics)


@pytest.mark.asyncio
async def test_what_a_rank_says_before_it_closes_is_heard() -> None:
    async with serving() as daemon, attached(daemon) as (client, link):
        link.send(result_of(0, 1))  # It does not read that any more.
        client.evaluated(loss=1.0, windows=2, sample="s")
        client.contribute(0, steps=3, tokens=6)
        client.close()
        assert await daemon.heard() == RankEvaluated(loss=1.0, windows=2, sample="s")
        assert await daemon.heard() == Contributed(fragment=0, generation=7, steps=3, tokens=6)
        assert await daemon.heard() == Closed("it closed its connection", ended=True)


RANK = """
import os, sys
from peers.ipc.rank_client import RankClient
RankClient(sys.argv[1], rank=0, world_size=1, attempt=0)
os.write(1, b"configured")
sys.stdin.read()
"""


async def start(path: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        RANK,
        path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("when", ["waiting", "working"])
async def test_a_rank_ends_with_its_daemon(when: str) -> None:
    async with serving() as daemon:
        process = await start(daemon.path)
        link, _ = await daemon.daemon_sockets.receive()
        assert isinstance(link, DaemonSocket)
        assert process.stdout is not None
        if when == "working":
            link.send(Configured(run="", node="", corpus=""))
            assert await process.stdout.read(10) == b"configured"
        link.close("the daemon is gone")
        _, errors = await asyncio.wait_for(process.communicate(), 10)
        assert process.returncode == EXIT_DAEMON_GONE
        assert errors == b"rank 0: the daemon is gone\n"


@pytest.mark.asyncio
async def test_a_refused_rank_says_why() -> None:
    async with serving() as daemon:
        process = await start(daemon.path)
        link, _ = await daemon.daemon_sockets.receive()
        link.refuse("another model")
        _, errors = await asyncio.wait_for(process.communicate(), 10)
        assert process.returncode == EXIT_REFUSED
        assert errors == b"rank 0: refused by its daemon: another model\n"


@pytest.mark.asyncio
async def test_a_client_that_is_never_configured_leaves_no_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def live_on(_: object) -> None:
        """In place of the end of the process."""

    monkeypatch.setattr(RankClient, "_exit_without_daemon", live_on)
    async with serving() as daemon:
        connecting = asyncio.create_task(asyncio.to_thread(connect, daemon.path))
        link, _ = await daemon.daemon_sockets.receive()
        assert isinstance(link, DaemonSocket)
        link.close("the attempt is over")
        with pytest.raises(LinkError):
            await connecting


def test_no_daemon_is_an_error() -> None:
    with pytest.raises(OSError, match="No such file"):
        connect("/nonexistent/lifeline")


def test_the_client_needs_neither_torch_nor_numpy_nor_zeromq() -> None:
    program = (
        "import sys, peers.ipc.rank_client; "
        "raise SystemExit(bool({'torch', 'numpy', 'zmq'} & {*sys.modules}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=20,
        check=False,
    )
    assert result.returncode == 0
