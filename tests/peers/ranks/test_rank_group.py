"""RankGroup with real processes: what its owner sees, and that nothing is left of it."""

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
import zmq

from peers.ipc.command_bus import Status, StopPeer, ask_daemon
from peers.ipc.messages import RankHello, RankReady, RankRefused
from peers.ipc.msgpack_records import encode, kinds_of
from peers.ipc.rank_socket import RankSocket
from peers.ranks.events import (
    GroupLost,
    GroupReady,
    RankContribution,
    RankEvent,
    RanksEvaluated,
    RanksFinished,
    RanksLayout,
    RanksSnapshotted,
    StopAsked,
)
from peers.ranks.rank_group import RanksFailed
from protocols.types.errors import ConfigError

if TYPE_CHECKING:
    from tests.peers.conftest import Running


STEPS = 3


@pytest.mark.asyncio
async def test_two_ranks_train_and_finish(running: "Running") -> None:
    async with running() as owner:
        owner.configure()
        layout = await owner.until(RanksLayout)
        assert [tensor.name for tensor in layout.tensors] == ["a", "b"]
        await owner.until(GroupReady)
        for generation in (1, 2, 3):
            owner.post()
            contribution = await owner.until(RankContribution)
            assert contribution == RankContribution(0, generation, steps=STEPS, tokens=300)
            slots = owner.group.slots
            assert slots is not None
            assert slots.all_done(0, generation)
            assert slots.contribution(0) == bytes(2048) + b"\x01" * 2048
        del slots
        owner.post(evaluate=True, snapshot="there")
        assert await owner.until(RanksEvaluated) == RanksEvaluated(1.5, 4, "rank 1")
        assert await owner.until(RanksSnapshotted) == RanksSnapshotted("there")
        await owner.until(RankContribution)
        owner.post(finish=True)
        assert await owner.until(RanksFinished) == RanksFinished(0)
        await owner.ended()


@pytest.mark.asyncio
@pytest.mark.parametrize("when", ["before the hello", "at the layout", "while they train"])
async def test_refused_ranks_say_why_and_the_group_fails(
    running: "Running", when: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running() as owner:
        owner.attaches = when == "while they train"
        if when == "before the hello":
            owner.group.refuse("another model")
        else:
            owner.configure()
            await owner.until(RanksLayout)
            if owner.attaches:
                await owner.until(GroupReady)
            owner.group.refuse("another model")
        with pytest.raises(RanksFailed, match=r"^another model$"):
            await owner.ended()
        assert owner.events.empty() or when == "while they train"
    if when == "at the layout":
        assert "refused by its daemon: another model" in capfd.readouterr().err


@pytest.mark.asyncio
@pytest.mark.parametrize("behaviour", ["unfit", "unfit later"])
async def test_what_no_attempt_can_do_is_tried_once(
    running: "Running", behaviour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEHAVIOUR", behaviour)
    async with running() as owner:
        owner.configure()
        if behaviour == "unfit later":
            await owner.until(GroupReady)
            owner.post()
        with pytest.raises(ConfigError, match=r"^9 fragments of 2 tensors$"):
            await owner.ended()
        while not owner.events.empty():
            assert not isinstance(owner.events.get_nowait(), GroupLost)


@pytest.mark.asyncio
async def test_ranks_that_cannot_go_on_are_started_anew(running: "Running") -> None:
    async with running() as owner:
        owner.configure()
        await owner.until(GroupReady)
        owner.group.restart("the run went back")
        assert (await owner.until(GroupLost)).why == "the run went back"
        owner.group.restart("nobody is there")
        assert await owner.until(GroupReady) == GroupReady(1)


@pytest.mark.asyncio
async def test_ranks_whose_contributions_never_count_are_given_up(running: "Running") -> None:
    async with running(restarts_max=1) as owner:
        owner.configure()
        for number, counted in enumerate((False, True, False)):
            assert await owner.until(GroupReady) == GroupReady(number)
            owner.post(counted=counted)
            await owner.until(RankContribution)
            owner.group.restart("not finite")
            await owner.until(GroupLost)
        # Of the second one something counted, and only the third was one too many after it.
        with pytest.raises(RanksFailed, match=r"^2 attempts of the ranks failed in a row: not fin"):
            await owner.ended()


@pytest.mark.asyncio
async def test_ranks_wait_until_they_are_configured_and_attached(running: "Running") -> None:
    async with running() as owner:
        owner.attaches = False
        with pytest.raises(TimeoutError):
            await owner.until(RanksLayout, within_s=0.5)
        owner.configure()
        await owner.until(RanksLayout)
        with pytest.raises(TimeoutError):
            await owner.until(GroupReady, within_s=0.2)
        slots = owner.attach()
        assert await owner.until(GroupReady) == GroupReady(0)
        assert owner.attach() is slots
        del slots


@pytest.mark.asyncio
@pytest.mark.parametrize("turns", [0, 1, 3, 10])
async def test_cancelling_early_leaves_nothing_behind(running: "Running", turns: int) -> None:
    async with running() as owner:
        owner.configure()
        for _ in range(turns):
            await asyncio.sleep(0)


@pytest.mark.asyncio
@pytest.mark.parametrize("event", [RanksLayout, GroupReady, RankContribution, GroupLost])
async def test_cancelling_at_any_event_leaves_nothing_behind(
    running: "Running", event: type[RankEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    if event is GroupLost:
        monkeypatch.setenv("BEHAVIOUR", "malformed")
    async with running() as owner:
        owner.configure()
        if event is RankContribution:
            await owner.until(GroupReady)
            owner.post()
        await owner.until(event)


@pytest.mark.asyncio
async def test_cancelling_twice_leaves_nothing_behind(running: "Running") -> None:
    async with running() as owner:
        owner.configure()
        await owner.until(GroupReady)
        assert owner.task is not None
        for _ in range(3):
            owner.task.cancel()
            await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_an_owner_that_fails_ends_the_group(running: "Running") -> None:
    """A programmer's error must not be lost in a callback of the loop."""
    async with running() as owner:

        def fail(_event: RankEvent) -> None:
            raise ZeroDivisionError

        owner.group._on_event = fail
        owner.configure()
        with pytest.raises(BaseExceptionGroup) as caught:
            await owner.ended()
        assert caught.group_contains(ZeroDivisionError)


@pytest.mark.asyncio
async def test_clients_on_the_bus_are_served_and_strangers_harm_nobody(running: "Running") -> None:
    async with running() as owner:
        owner.configure()
        await owner.until(GroupReady)
        endpoint = owner.group.rendezvous.bus_endpoint
        status = await asyncio.to_thread(ask_daemon, endpoint, Status(), timeout_s=10)
        assert status == {"state": "training"}
        with zmq.Context(1) as context, context.socket(zmq.DEALER) as stranger:
            stranger.connect(endpoint)
            for word in (b"\xc1", b"", encode(RankReady())):
                stranger.send(word)
                assert await asyncio.to_thread(stranger.poll, 10_000)
                answer = json.loads(stranger.recv())
                assert answer["type"] == "refused"
        stopped = await asyncio.to_thread(ask_daemon, endpoint, StopPeer(), timeout_s=10)
        assert stopped == {"type": "stopping"}
        await owner.until(StopAsked)
        owner.post()
        await owner.until(RankContribution)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("hello", "why", "loses"),
    [
        (
            RankHello(rank=0, world_size=2, attempt=9, pid=1),
            "attempt 9 of the ranks is over",
            False,
        ),
        (RankHello(rank=0, world_size=3, attempt=0, pid=1), "world of 3, not 2", True),
        (RankHello(rank=2, world_size=2, attempt=0, pid=1), "rank 2 of 2", True),
    ],
)
async def test_a_hello_that_does_not_fit_is_refused(
    running: "Running", hello: RankHello, why: str, loses: bool
) -> None:
    async with running() as owner:
        owner.configure()
        await owner.until(GroupReady)
        link = RankSocket(owner.group.rendezvous.socket_path, timeout_s=5)
        link.send(hello)
        refused = await asyncio.to_thread(link.receive, kinds_of(RankRefused))
        link.close()
        assert why in refused.why
        if loses:
            assert why in (await owner.until(GroupLost)).why
        else:
            owner.post()
            await owner.until(RankContribution)
