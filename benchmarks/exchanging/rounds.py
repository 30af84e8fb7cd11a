"""Runs all systems side by side: starts them, lets them exchange in turns, times and ends them.

One system works at a time. Must NOT know how a system exchanges.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.exchanging import proc
from benchmarks.exchanging.figures import (
    BusiestLine,
    Exchanged,
    SystemResult,
    seconds,
    with_figures,
)
from benchmarks.exchanging.gate import GateError
from benchmarks.exchanging.network import Conditions, SystemNetwork, network
from benchmarks.exchanging.payloads import PayloadFiles, sign_of
from benchmarks.exchanging.systems import ExchangeOrder, Side, System
from benchmarks.exchanging.worker import Marks
from protocols.types import ConfigError, LowcommError

SETTLE_LOOK_S = 0.05
SETTLE_LOOKS = 2
"""Consecutive idle measurements needed: on a busy machine a process may wait for a CPU."""
SETTLE_MAX_S = 2.0
IDLE = 0.05
"""Below this share of one core a system has ended its exchange: only heartbeats remain."""
PREPARE_TIMEOUT_S = 60.0
COPIES = 2
"""Each peer's source and result, in memory files that all systems share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsPlan:
    """The settings of a measurement."""

    peers: int
    mib: int
    codec: str
    conditions: Conditions
    warmup: int
    rounds: int
    deadline_s: float
    """Timeout of one exchange."""
    encrypted: bool = False
    """Whether lowcomm encrypts; the others have no such choice."""
    idle_s: float = 0.0
    """Seconds of pause before each exchange."""

    @property
    def elements(self) -> int:
        return self.mib << 18


@dataclass(slots=True)
class Contestant:
    """A system in this run."""

    system: System
    result: SystemResult
    network: SystemNetwork
    running: AsyncExitStack
    """Closing it ends all processes of the system."""
    side: Side | None = None
    exchanges: list[Exchanged] = field(default_factory=list[Exchanged])
    done: int = 0

    async def failed(self, why: str) -> None:
        """End the system with this error, so that it takes no time from the others, which go on."""
        await asyncio.sleep(SETTLE_LOOK_S)  # So that the exit of a process is noticed.
        words = self.side.last_words() if self.side is not None else ""
        self.result = replace(self.result, error=f"{why}: {words}" if words else why)
        self.side = None
        await self.running.aclose()


def check_memory(systems: Sequence[System], plan: RoundsPlan, *, free_bytes: int) -> None:
    """Raise ConfigError if the run needs more memory than is free, so that the kernel need not kill
    processes."""
    copies = COPIES + sum(one.copies for one in systems)
    each_bytes = copies * 4 * plan.elements + sum(one.base_bytes for one in systems)
    needed = plan.peers * each_bytes
    if needed > free_bytes:
        raise ConfigError(
            f"{plan.peers} peers x {plan.mib} MiB need about {needed / 2**30:.1f} GiB and "
            f"{free_bytes / 2**30:.1f} GiB are free: give less of --mib, --peers or --against"
        )


async def compare(
    systems: Sequence[System],
    plan: RoundsPlan,
    payloads: PayloadFiles,
    directory: Path,
    *,
    advance: Callable[[str], None] = lambda _: None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[SystemResult]:
    """Return the result of each system, in their order. Raises WanError."""
    contestants: list[Contestant] = []
    async with AsyncExitStack() as stack:
        for system in systems:
            own = stack.enter_context(network(plan.conditions, plan.peers))
            running = await stack.enter_async_context(AsyncExitStack())
            one = Contestant(system, _no_result(system), own, running)
            contestants.append(one)
            place = directory / system.name
            place.mkdir()
            await _start(one, plan, payloads, place)
            if one.result.error:
                tell(one.result.error)
        for turn in range(plan.warmup + plan.rounds):
            first = turn % len(contestants)  # The order of the systems must not matter.
            for one in (*contestants[first:], *contestants[:first]):
                if one.side is not None:
                    await _turn(one, plan, payloads, timed=turn >= plan.warmup)
                    if one.result.error:
                        tell(one.result.error)
                advance(one.system.name)
        for one in contestants:
            if one.side is not None:
                one.result = _told(one, plan)
    return [one.result for one in contestants]


def _no_result(system: System) -> SystemResult:
    return SystemResult(system=system.name, version=system.version, note=system.note)


async def _start(
    one: Contestant, plan: RoundsPlan, payloads: PayloadFiles, directory: Path
) -> None:
    try:
        if one.system.missing:
            raise GateError(one.system.missing)
        order = ExchangeOrder(
            peers=plan.peers,
            codec=one.system.codec(plan.codec),
            payloads=payloads,
            network=one.network,
            directory=directory,
            python=one.system.python,
            encrypted=plan.encrypted,
        )
        one.result = replace(one.result, codec=order.codec)
        one.side = await one.running.enter_async_context(one.system.start(order))
    except (LowcommError, OSError) as error:
        await one.failed(str(error))


async def _turn(one: Contestant, plan: RoundsPlan, payloads: PayloadFiles, *, timed: bool) -> None:
    try:
        exchanged = await _exchange(one, plan, payloads, timed=timed)
    except (GateError, OSError) as error:
        await one.failed(str(error))
        return
    if exchanged is not None:
        one.exchanges.append(exchanged)


async def _exchange(
    one: Contestant, plan: RoundsPlan, payloads: PayloadFiles, *, timed: bool
) -> Exchanged | None:
    """Run one exchange; None if it was not timed."""
    assert one.side is not None
    side, sign = one.side, sign_of(one.done)
    one.done += 1
    await side.gate.ask({"do": "prepare", "sign": sign}, within_s=PREPARE_TIMEOUT_S)
    pids = [pid for peer in side.peers for pid in peer.working()]
    cpu_s, sent = proc.cpu_s(pids), _sent_bytes(one)
    await asyncio.sleep(plan.idle_s)
    answers = await side.gate.ask({"do": "exchange"}, within_s=plan.deadline_s)
    await _idle(pids)
    cpu_s, sent_now = proc.cpu_s(pids) - cpu_s, _sent_bytes(one)
    marks = side.complete([Marks(**answer) for answer in answers])
    if one.done == 1:
        one.result = replace(one.result, first_s=seconds(marks))
    if not timed:
        return None
    missing = [mark.contributors for mark in marks if 0 < mark.contributors < plan.peers]
    if missing:
        raise GateError(f"{one.system.name}: only {missing[0]} of {plan.peers} peers counted")
    await side.gate.ask({"do": "keep"}, within_s=PREPARE_TIMEOUT_S)
    checked = await asyncio.to_thread(payloads.check, sign)
    return Exchanged(
        marks=marks,
        cpu_s=cpu_s,
        wire_bytes=None if sent is None or sent_now is None else sent_now - sent,
        digests=checked.digests,
        mean_square=checked.mean_square,
        mean_error=checked.mean_error,
    )


def _sent_bytes(one: Contestant) -> int | None:
    """Bytes sent by all peers so far; None if other traffic uses the network. Raises OSError."""
    assert one.side is not None
    if not one.network.own:
        return None
    shown = {place.prefix: place.peer for place in one.network.places}
    return sum(proc.sent_bytes(one.side.peers[peer].exchanging()[0]) for peer in shown.values())


async def _idle(pids: Sequence[int]) -> None:
    """Wait until these processes are nearly idle, at most SETTLE_MAX_S."""
    deadline, before, quiet = time.monotonic() + SETTLE_MAX_S, proc.cpu_s(pids), 0
    while quiet < SETTLE_LOOKS and time.monotonic() < deadline:
        await asyncio.sleep(SETTLE_LOOK_S)
        now = proc.cpu_s(pids)
        quiet = quiet + 1 if now - before < IDLE * SETTLE_LOOK_S else 0
        before = now


def _told(one: Contestant, plan: RoundsPlan) -> SystemResult:
    assert one.side is not None
    memories = [
        proc.together([proc.memory(pid) for pid in peer.exchanging()]) for peer in one.side.peers
    ]
    result = replace(
        one.result,
        peak_rss_bytes=max(each.peak_rss for each in memories),
        rss_shmem_bytes=max(each.rss_shmem for each in memories),
        congestion=one.network.congestion(),
    )
    return with_figures(result, one.exchanges, line=_line(one, plan))


def _line(one: Contestant, plan: RoundsPlan) -> BusiestLine | None:
    """The line that all peers share, or one direction between two peers; each peer owns an equal
    part."""
    rate_bps, shared = plan.conditions.rate_bps, not plan.conditions.routed
    if rate_bps is None:
        return None
    payload_bytes = one.system.payload_bytes(one.result.codec, plan.elements)
    if payload_bytes is not None:
        ways = plan.peers - 1 if shared else 1 / plan.peers
        payload_bytes = round(ways * payload_bytes)
    return BusiestLine(rate_bps, shared, payload_bytes)
