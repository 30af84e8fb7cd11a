"""Kills the leader of a run repeatedly, each time with a replacement that joins.

`python -m sims.leader_loss` does it with real daemons and paced ranks on this machine, and prints
the time to the next commit. Must NOT judge the times: its callers do.
"""

import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from lowcomm.reports import Commit, Event, Finished, Follower
from protocols.types import LowcommError
from sims.cluster.local_cluster import LocalCluster, LocalNode
from sims.paced.cluster import start_all, start_paced
from sims.paced.rank import RankSpeed
from sims.terminal import run

LOOK_S = 0.01
WAIT_MAX_S = 60.0
END_MAX_S = 300.0
SWIFT = RankSpeed(step_s=0.02, elements=65536)
"""Ranks with which most of a round is the daemons' time."""
ENDLESS = 1_000_000
"""Rounds of a run that a command ends before."""
TINY_MODEL = tuple(
    f"run.model.{each}"
    for each in ("layers=1", "hidden_size=32", "heads=2", "kv_heads=2", "intermediate_size=64")
)
"""Overrides for the smallest model that the built-in program trains."""
CONFIG = """
[run]
name = "leader-loss"
peers_min = {peers}
outer_steps = {rounds}
[run.method]
{method}
[run.data]
source = "files"
window = 64
held_out_below = 64
eval_windows = 8
[node]
corpus = {corpus}
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Loss:
    """One killed leader."""

    name: str
    next_commit_s: float
    """Seconds from the SIGKILL to the first commit that a survivor applied afterwards."""
    member_s: float
    """Seconds from the start of the replacement until a round counted it."""


@dataclass(frozen=True, slots=True)
class LeaderLossOutcome:
    """The outcome of a run."""

    peers: int
    losses: tuple[Loss, ...]
    rounds: int
    digests_equal: bool
    """True if in each round all peers that applied it had the same state digest."""
    finished: int
    """The number of peers that saw the end of the run."""


@asynccontextmanager
async def within(seconds: float, awaited: str) -> AsyncGenerator[None]:
    """Limit the time of the block. Raises LowcommError, which names what was awaited."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise LowcommError(f"{seconds:g} s passed without {awaited}") from None


class Watcher:
    """Reads the events of all nodes as they are written."""

    def __init__(self, run_dir: Path) -> None:
        self.events: list[Event] = []
        self._follower = Follower(run_dir)

    def read(self) -> list[Event]:
        new = self._follower.read()
        self.events += new
        return new

    async def until(self, look: Callable[[list[Event]], T | None], awaited: str) -> T:
        """Read until `look` finds something in all events so far; return that. Raises LowcommError,
        which names what was awaited."""
        async with within(WAIT_MAX_S, awaited):
            while True:
                self.read()
                if (found := look(self.events)) is not None:
                    return found
                await asyncio.sleep(LOOK_S)

    async def commit_after(self, moment: float, *, but: str, count: int = 1) -> Commit:
        """Wait for `count` Commit events after `moment` (Unix time in seconds) of nodes other than
        `but`; return the first. Raises LowcommError."""

        def look(events: list[Event]) -> Commit | None:
            later = [x for x in events if isinstance(x, Commit) and x.t > moment and x.name != but]
            return min(later, key=lambda event: event.t) if len(later) >= count else None

        return await self.until(look, f"{count} commits of nodes other than {but or 'none'}")

    async def rounds_of_all(self, peers: int, *, after: float, count: int) -> Commit:
        """Wait for `count` rounds after the moment `after` (Unix time in seconds) that counted all
        `peers` nodes; return a commit of the first one. Raises LowcommError."""

        def look(events: list[Event]) -> Commit | None:
            later = (x for x in events if isinstance(x, Commit) and x.t > after)
            found = {x.round: x for x in later if len(x.roster) == peers}
            return found[min(found)] if len(found) >= count else None

        return await self.until(look, f"{count} rounds of all {peers} nodes")

    async def counted_after(self, moment: float, name: str) -> Commit:
        """Wait until a commit after `moment` (Unix time in seconds) counts this node, as the node
        itself reports; return that. Raises LowcommError."""

        def look(events: list[Event]) -> Commit | None:
            commits = (x for x in events if isinstance(x, Commit) and x.name == name)
            return next((x for x in commits if x.t > moment and x.counted), None)

        return await self.until(look, f"a commit that counts {name}")


async def play(
    run_dir: Path, config: Path, *, peers: int, kills: int, pace: RankSpeed
) -> LeaderLossOutcome:
    """Start `peers` nodes, kill the leader `kills` times, and wait for the end of the run."""
    watcher, losses = Watcher(run_dir), list[Loss]()
    async with LocalCluster(run_dir) as cluster:
        names = [f"p{number}" for number in range(peers)]
        nodes = await start_all(cluster, names, config, pace=pace)
        await watcher.commit_after(0.0, but="", count=3 * peers)
        for number in range(peers, peers + kills):
            leader = await agreed_leader(cluster, nodes)
            os.kill(leader.child.pid, signal.SIGKILL)
            moment = time.time()
            commit = await watcher.commit_after(moment, but=leader.name)
            nodes.remove(leader)
            began = time.time()
            joiner = start_paced(
                cluster, f"p{number}", config, pace=pace, join=cluster.invite(nodes[0])
            )
            nodes.append(joiner)
            await watcher.counted_after(0.0, joiner.name)
            losses.append(Loss(leader.name, commit.t - moment, time.time() - began))
        async with within(END_MAX_S, "the end of all nodes"):
            await asyncio.gather(*(node.child.wait() for node in nodes))
    watcher.read()
    return _judged(watcher.events, peers, losses)


def _judged(events: list[Event], peers: int, losses: list[Loss]) -> LeaderLossOutcome:
    return LeaderLossOutcome(
        peers=peers,
        losses=tuple(losses),
        rounds=len({event.round for event in events if isinstance(event, Commit)}),
        digests_equal=have_one_state(events),
        finished=sum(isinstance(event, Finished) for event in events),
    )


def have_one_state(events: list[Event]) -> bool:
    """Whether in each round of a branch of the log, and at the end, all peers had the same state
    digest."""
    digests: dict[tuple[str, int], set[str]] = {}
    for event in events:
        if isinstance(event, Commit):
            digests.setdefault((event.lineage, event.round), set()).add(event.state_digest)
    ends = {event.state_digest for event in events if isinstance(event, Finished)}
    return len(ends) <= 1 and all(len(found) == 1 for found in digests.values())


async def agreed_leader(cluster: LocalCluster, nodes: Sequence[LocalNode]) -> LocalNode:
    """The node that a majority reports as leader. Raises LowcommError."""
    async with within(WAIT_MAX_S, "one leader in the status of a majority of nodes"):
        while True:
            said = [str(status.get("leader", "")) for status in await cluster.statuses()]
            for node in nodes:
                agreed = sum(leader.rpartition(".")[0] == node.name for leader in said)
                if node.running and 2 * agreed > len(nodes):
                    return node
            await asyncio.sleep(0.1)


def write_config(
    directory: Path, *, peers: int, rounds: int, method: str = "inner_steps = 5"
) -> Path:
    """Write the configuration of a run on arbitrary text, and return its path. `method`: the lines
    of the table [run.method]."""
    text = directory / "text"
    text.mkdir(parents=True, exist_ok=True)
    for number in range(8):
        (text / f"{number}.py").write_text(f"x = {number}\n" * 2000, encoding="utf-8")
    path = directory / "run.toml"
    corpus = json.dumps(str(text))
    filled = CONFIG.format(peers=peers, rounds=rounds, method=method, corpus=corpus)
    path.write_text(filled, encoding="utf-8")
    return path


def play_once(
    play: Callable[[Path, Path], Coroutine[Any, Any, T]], *, peers: int, rounds: int = ENDLESS
) -> T:
    """Call `play` with a run directory and a configuration, both of which are removed afterwards.
    Raises LowcommError."""
    with tempfile.TemporaryDirectory(prefix="lowcomm-") as directory:
        config = write_config(Path(directory), peers=peers, rounds=rounds)
        return asyncio.run(play(Path(directory) / "run", config))


def main(
    peers: Annotated[int, typer.Option(help="How many peers.")] = 5,
    kills: Annotated[int, typer.Option(help="How often the leader is killed.")] = 3,
    rounds: Annotated[int, typer.Option(help="Rounds of the run.")] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Kill the leader of a run of real daemons, again and again.

    \b
    Example:
      python -m sims.leader_loss --json
    """
    played = play_once(
        partial(play, peers=peers, kills=kills, pace=SWIFT), peers=peers, rounds=rounds
    )
    if not (played.digests_equal and played.finished):
        raise LowcommError(f"the run failed: states differ, or no peer saw its end: {played}")
    if as_json:
        print(json.dumps(asdict(played)))  # noqa: T201
        return
    for loss in played.losses:
        print(f"{loss.name} killed: next commit after {loss.next_commit_s:.2f} s")  # noqa: T201


if __name__ == "__main__":
    run(main)
