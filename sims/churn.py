"""Has nodes join and die without a pause, and counts the joiners that get in.

`python -m sims.churn` does it with real daemons and paced ranks on this machine. Each joiner gets
the token that names the fewest living nodes, but one at least, and an older node is killed while it
joins. Must NOT judge the numbers: its callers do.
"""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lowcomm.cli import issue
from lowcomm.startup import new_token
from protocols.state import decode_token
from protocols.types import ConfigError, LowcommError
from sims.cluster.local_cluster import LocalCluster, LocalNode
from sims.leader_loss import SWIFT, Watcher, have_one_state, play_once
from sims.paced.cluster import start_all, start_paced
from sims.silent_peer import longest_gap
from sims.terminal import bar, run

KILL_S = 2.0
"""A node is killed within so many seconds from the start of the joiner."""
SETTLED_COMMITS = 10


@dataclass(frozen=True, slots=True)
class Joined:
    """One joiner, and the node that was killed meanwhile."""

    name: str
    killed: str
    addresses: int
    """Addresses in its token, and how many of them were those of living nodes."""
    living: int
    counted_s: float
    """Seconds from its start until a round counted it."""
    why: str
    """Why it did not get in; "" if it did."""


@dataclass(frozen=True, slots=True)
class ChurnOutcome:
    """The outcome of a run."""

    seconds: float
    joined: tuple[Joined, ...]
    longest_gap_s: float
    """The longest time between two commits."""
    digests_equal: bool

    @property
    def failed(self) -> list[Joined]:
        return [each for each in self.joined if each.why]


@dataclass(slots=True)
class _Crowd:
    """The living nodes, and the tokens that they have made."""

    cluster: LocalCluster
    config: Path
    drawn: random.Random
    nodes: list[LocalNode]
    tokens: list[str] = field(default_factory=list[str])

    async def invite(self) -> None:
        """Have each living voter without a token in the list make one."""
        for node in self.nodes:
            try:
                word = new_token(node.directory)
            except ConfigError:
                continue  # It does not vote yet.
            known = {decode_token(each).addresses for each in self.tokens}
            if decode_token(word).addresses in known:
                continue
            if why := await asyncio.to_thread(issue, node.directory, word):
                raise LowcommError(f"{node.name} cannot issue a token: {why}")
            self.tokens.append(word)

    def hardest(self) -> tuple[str, list[LocalNode]]:
        """The token with the fewest addresses of living nodes, but one; and these nodes."""
        found: list[tuple[int, str, list[LocalNode]]] = []
        for word in self.tokens:
            addresses = decode_token(word).addresses
            there = [node for node in self.nodes if node.address() in addresses]
            if there:
                found.append((len(there), word, there))
        _, word, there = min(found, key=lambda each: each[:2])
        return word, there

    def kill(self, *, but: Sequence[LocalNode]) -> LocalNode:
        """SIGKILL the daemon of a node."""
        victim = self.drawn.choice([node for node in self.nodes if node not in but])
        os.kill(victim.child.pid, signal.SIGKILL)
        self.nodes.remove(victim)
        return victim


async def play(
    run_dir: Path, config: Path, *, peers: int, seconds: float, seed: int
) -> ChurnOutcome:
    """Start the nodes, and replace one after the other for so long. Raises LowcommError."""
    watcher, joined = Watcher(run_dir), list[Joined]()
    drawn = random.Random(seed)  # noqa: S311 (a simulation, no secrets)
    async with LocalCluster(run_dir) as cluster:
        names = [f"p{number}" for number in range(peers)]
        nodes = await start_all(cluster, names, config, pace=SWIFT)
        await watcher.rounds_of_all(peers, after=0.0, count=SETTLED_COMMITS)
        crowd, began = _Crowd(cluster, config, drawn, nodes), time.time()
        with bar("joiners", None) as (advance, _):
            while time.time() < began + seconds:
                await crowd.invite()
                joined.append(await _replace(watcher, crowd, f"p{peers + len(joined)}"))
                advance(joined[-1].why)
        watcher.read()
        ended = time.time()
    gap_s = longest_gap(watcher.events, began, ended)
    return ChurnOutcome(ended - began, tuple(joined), gap_s, have_one_state(watcher.events))


async def _replace(watcher: Watcher, crowd: _Crowd, name: str) -> Joined:
    """Start a node, kill another one, and wait until a round counts the new one."""
    word, there = crowd.hardest()
    began = time.time()
    joiner = start_paced(crowd.cluster, name, crowd.config, pace=SWIFT, join=word)
    await asyncio.sleep(crowd.drawn.uniform(0, KILL_S))
    victim = crowd.kill(but=there[:1])
    try:
        await watcher.counted_after(0.0, name)
        why = ""
    except LowcommError as error:
        why = f"{error}: {joiner.last_words()}"
    crowd.nodes.append(joiner)
    addresses = decode_token(word).addresses
    took = time.time() - began
    return Joined(name, victim.name, len(addresses), len(there), took, why)


def main(
    minutes: Annotated[float, typer.Option(help="How long nodes join and die.", min=0.1)] = 6.0,
    peers: Annotated[int, typer.Option(help="Living nodes.", min=4, max=16)] = 4,
    seed: Annotated[int, typer.Option(help="Of the killed nodes, and the moments.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Have nodes join a run of real daemons, each while another one is killed.

    \b
    Examples:
      python -m sims.churn
      python -m sims.churn --minutes 30 --peers 6 --json
    """
    played = play_once(partial(play, peers=peers, seconds=60 * minutes, seed=seed), peers=peers)
    if as_json:
        print(json.dumps(asdict(played)))  # noqa: T201
    else:
        for each in played.joined:
            print(  # noqa: T201
                f"{each.name}: {each.living} of {each.addresses} addresses lived, {each.killed} "
                f"was killed meanwhile: {each.why or f'counted after {each.counted_s:.1f} s'}"
            )
    if played.failed or not played.digests_equal:
        names = ", ".join(each.name for each in played.failed) or "none"
        raise LowcommError(f"joiners that did not get in: {names}; equal: {played.digests_equal}")


if __name__ == "__main__":
    run(main)
