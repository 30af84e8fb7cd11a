"""Silences one peer of a run repeatedly, and measures how long the others wait for it.

`python -m sims.silent_peer` does it with real daemons and paced ranks on this machine. The peer is
stopped (SIGSTOP of its daemon), its links take no bytes any more (a silent cut), its disk is full
(no file of its daemon may grow), or its disk hangs (no write to its log returns); after some
seconds it goes on. Must NOT judge the times: its callers do.
"""

import asyncio
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, cast, get_args

import typer

from lowcomm.reports import Commit, Event, Lost
from peers.storage import LOG_THREAD
from protocols.types import ConfigError, LowcommError
from sims.cluster.local_cluster import LocalCluster, LocalNode
from sims.cluster.stopped_thread import resume_thread, stop_thread, thread_of
from sims.leader_loss import SWIFT, Watcher, agreed_leader, have_one_state, play_once
from sims.paced.cluster import start_all
from sims.terminal import run
from sims.wan import TIME, Means, Wan, WanLink, parse, why_not

Fault = Literal["stop", "cut", "disk", "hang"]
SETTLED_COMMITS = 10
"""Commits of all nodes before each silence."""
SETTLED_S = 6.0
"""A daemon knows the pauses of another one after 20 heartbeats."""


@dataclass(frozen=True, slots=True)
class Silence:
    """One silence of one peer."""

    name: str
    gap_s: float
    """The longest time between two commits of the other nodes while the peer was silent."""
    return_gap_s: float
    """The same from the end of the silence until the peer was counted again in all its rounds."""
    counted_s: float
    """Seconds from the end of the silence until a commit counted the peer."""
    lost: tuple[str, ...]
    """Other nodes that were declared lost meanwhile."""


@dataclass(frozen=True, slots=True)
class SilenceOutcome:
    """The outcome of a run."""

    silences: tuple[Silence, ...]
    usual_gap_s: float
    """The longest time between two commits before the first silence."""
    digests_equal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SilencePlan:
    """The faults of one run."""

    fault: Fault = "stop"
    leader: bool = False
    """Silence the present leader, else a node that does not lead."""
    peers: int = 3
    times: int = 3
    lasting_s: float = 4.0
    """Seconds of each silence."""
    delay_s: float = 0.0
    """Delay of each direction of the links."""
    means: Means = "netns"
    """The means of a network, if a cut or a delay needs one."""

    @property
    def needs_network(self) -> bool:
        return self.fault == "cut" or self.delay_s > 0


async def play(run_dir: Path, config: Path, plan: SilencePlan) -> SilenceOutcome:
    """Start the nodes, and silence one of them `times` times. Raises LowcommError."""
    watcher, found = Watcher(run_dir), list[Silence]()
    with ExitStack() as stack:
        wan = None
        if plan.needs_network:
            link = WanLink(delay_s=plan.delay_s)
            wan = stack.enter_context(network(link, plan.peers, plan.means))
        async with LocalCluster(run_dir) as cluster:
            names = [f"p{number}" for number in range(plan.peers)]
            places = wan.places if wan is not None else ()
            nodes = await start_all(cluster, names, config, pace=SWIFT, places=places)
            await _settled(watcher, nodes, 0.0)
            usual_gap_s = longest_gap(watcher.events, time.time() - SETTLED_S, time.time())
            for _ in range(plan.times):
                leader = await agreed_leader(cluster, nodes)
                others = [node for node in nodes if node is not leader]
                victim = leader if plan.leader else others[-1]
                silence, end = _means_of(plan.fault, victim, nodes, wan)
                found.append(await _watch(watcher, victim.name, plan, silence, end))
                await _settled(watcher, nodes, time.time())
    watcher.read()
    return SilenceOutcome(tuple(found), usual_gap_s, have_one_state(watcher.events))


def means_of(text: str) -> Means:
    """The value of an option --means. Raises ConfigError."""
    if text not in ("netns", "proxy"):
        raise ConfigError(f"--means must be netns or proxy, got {text!r}")
    return cast(Means, text)


def network(link: WanLink, peers: int, means: Means) -> Wan:
    """An emulated network with such links. Raises ConfigError if this machine cannot make one."""
    if why := why_not(means):
        raise ConfigError(f"--means {means} does not work here: {why}")
    return Wan(link, peers=peers, means=means)


def _means_of(
    fault: Fault, victim: LocalNode, nodes: Sequence[LocalNode], wan: Wan | None
) -> tuple[Callable[[], None], Callable[[], None]]:
    """(silence the victim, let it go on). `wan`: the network with its links, for a cut."""
    pid = victim.child.pid
    if fault == "stop":
        return (lambda: os.kill(pid, signal.SIGSTOP)), (lambda: os.kill(pid, signal.SIGCONT))
    if fault == "disk":
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        return partial(_limit_files, pid, 0, hard), partial(_limit_files, pid, hard, hard)
    if fault == "hang":
        thread = thread_of(pid, LOG_THREAD)
        return partial(stop_thread, pid, thread), partial(resume_thread, thread)
    assert wan is not None, "links are cut in a network"
    at = nodes.index(victim)
    others = [number for number in range(len(nodes)) if number != at]

    def cut() -> None:
        for other in others:
            wan.cut(at, other)

    def mend() -> None:
        for other in others:
            wan.mend(at, other)

    return cut, mend


def _limit_files(pid: int, soft: int, hard: int) -> None:
    """No file of this process may grow beyond `soft` bytes: its writes fail as on a full disk."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


async def _watch(
    watcher: Watcher,
    name: str,
    plan: SilencePlan,
    silence: Callable[[], None],
    end: Callable[[], None],
) -> Silence:
    began = time.time()
    silence()
    try:
        await asyncio.sleep(plan.lasting_s)
    finally:
        end()
    ended = time.time()
    commit = await watcher.counted_after(ended, name)
    await asyncio.sleep(1.0)
    watcher.read()
    events, until = watcher.events, time.time()
    lost = {x.member_name for x in events if isinstance(x, Lost) and x.t > began} - {name}
    return Silence(
        name=name,
        gap_s=longest_gap(events, began, ended, name),
        return_gap_s=longest_gap(events, ended, until, name),
        counted_s=commit.t - ended,
        lost=tuple(sorted(lost)),
    )


async def _settled(watcher: Watcher, nodes: Sequence[LocalNode], moment: float) -> None:
    """Wait for some commits of all nodes, and until their pauses are known. Raises
    LowcommError."""
    await watcher.rounds_of_all(len(nodes), after=moment, count=SETTLED_COMMITS)
    await asyncio.sleep(SETTLED_S)
    watcher.read()


def longest_gap(events: Sequence[Event], begin: float, end: float, but: str = "") -> float:
    """The longest time between two commits of all nodes but one, from the last one before `begin`
    (Unix time) until `end`; a gap at the end counts too."""
    times = sorted({x.t for x in events if isinstance(x, Commit) and x.name != but})
    here = [*[t for t in times if t <= begin][-1:], *(t for t in times if begin < t <= end), end]
    return max((b - a for a, b in pairwise(here)), default=0.0)


Q = typer.Option


def main(
    fault: Annotated[
        str,
        Q(help="stop (SIGSTOP), cut (links take no bytes), disk (it is full) or hang (a disk)."),
    ] = "stop",
    leader: Annotated[bool, Q("--leader", help="Silence the leader.")] = False,
    peers: Annotated[
        int, Q(help="Number of peers: 3 or more, or 2 for a disk.", min=2, max=16)
    ] = 3,
    times: Annotated[int, Q(help="How often a peer is silenced.", min=1)] = 3,
    lasting: Annotated[str, Q(help="Duration of each silence.")] = "4s",
    rtt: Annotated[str, Q(help="Round trip of the links.")] = "0ms",
    means: Annotated[
        str, Q(help="netns (needs root) or proxy, for cuts and round trips.")
    ] = "netns",
    as_json: Annotated[bool, Q("--json", help="Print one JSON object.")] = False,
) -> None:
    """Silence one peer of a run of real daemons, again and again.

    \b
    Examples:
      python -m sims.silent_peer --times 20 --json
      python -m sims.silent_peer --fault cut --rtt 100ms
      python -m sims.silent_peer --leader --peers 5
      python -m sims.silent_peer --fault cut --lasting 30s --means proxy
      python -m sims.silent_peer --fault disk --peers 2
      python -m sims.silent_peer --fault hang --leader
    """
    if fault not in get_args(Fault):
        raise ConfigError(f"--fault must be stop, cut, disk or hang, got {fault!r}")
    if peers < 3 and fault not in ("disk", "hang"):
        raise ConfigError("--peers must be 3 or more: one of two peers has no majority")
    plan = SilencePlan(
        fault=cast(Fault, fault),
        leader=leader,
        peers=peers,
        times=times,
        lasting_s=parse(lasting, TIME, what="--lasting"),
        delay_s=parse(rtt, TIME, what="--rtt") / 2,
        means=means_of(means),
    )
    played = play_once(partial(play, plan=plan), peers=peers)
    if not played.digests_equal:
        raise LowcommError(f"the run failed: states differ: {played}")
    if as_json:
        print(json.dumps(asdict(played)))  # noqa: T201
        return
    for each in played.silences:
        print(  # noqa: T201
            f"{each.name} silent: the others waited at most {each.gap_s:.2f} s for a commit "
            f"(before: {played.usual_gap_s:.2f} s), at its return {each.return_gap_s:.2f} s; it "
            f"was counted after {each.counted_s:.2f} s"
        )


if __name__ == "__main__":
    run(main)
