"""Thousands of seeds of a whole cluster under faults: `python -m sims.sweep --seeds 300`.

Each seed runs two phases: safety (anything may fail) and liveness (a majority of the voters lives
and hears each other; the run must finish within LIVENESS_S). A failing seed prints its story and
the command that replays it.
"""

import json
import random
import statistics
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pool
from typing import Annotated

import typer

from protocols import entries as e
from protocols.errors import ConfigError, LowcommError
from protocols.ids import PeerId
from protocols.roles import MOVES
from protocols.waiting import describe
from sims.faults import Fault, draw_plan, inject
from sims.world import World

SAFETY_S = 30.0
LIVENESS_S = 400.0
"""Virtual seconds in which what is left of the rounds must be committed and everybody done."""
PEERS = (3, 9)
"""At the start of a seed, at least and at most."""


@dataclass(slots=True)
class SeedResult:
    """What one seed showed."""

    seed: int
    virtual_s: float
    commits: int
    """Rounds that were committed, those that a Restore took back included."""
    happened: dict[str, int]
    """Faults that took place, and what came of them."""
    log: dict[str, int]
    """Log entries by kind."""
    moves: dict[str, int]
    """Changes of role that peers made."""
    violations: list[str]
    story: list[str]
    plan: list[Fault] = field(default_factory=list[Fault])


def run_seed(
    seed: int, *, plan: list[Fault] | None = None, peers: tuple[int, int] = PEERS
) -> SeedResult:
    """One cluster, from start to end."""
    source = random.Random(seed)  # noqa: S311 (a simulation, no secrets)
    world = World(seed, peers=source.randint(*peers), outer_steps=source.choice([20, 24, 30]))
    faults = draw_plan(seed, until_s=SAFETY_S) if plan is None else plan
    inject(world, faults)
    world.at(SAFETY_S, world.heal)
    violations: list[str] = []
    try:
        world.run(until_s=SAFETY_S + LIVENESS_S)
    except (AssertionError, LookupError, ValueError, LowcommError):
        violations = traceback.format_exc().splitlines()[-8:]
    world.checkers.ended(world)
    violations += [*world.checkers.violations, *_unfinished(world)]
    return SeedResult(
        seed=seed,
        virtual_s=world.now,
        commits=len(world.checkers.commits),
        happened=dict(world.happened),
        log=dict(Counter(type(entry).__name__ for entry in world.checkers.log.values())),
        moves={f"{one.value} > {two.value}": n for (one, two), n in world.moves().items()},
        violations=violations,
        story=world.story,
        plan=faults,
    )


def _unfinished(world: World) -> list[str]:
    """Whoever is alive must have come to a good end."""
    found: list[str] = []
    if not any(disk.kept for disk in world.disks.values()):
        return found  # Its founder died before anybody had a state to go on from.
    for peer, node in world.nodes.items():
        allowed = {"finished"}
        if node.asked_to_leave:
            allowed.add("left")
        if world.finished:
            allowed.add("alone")  # It came, or slept, while the run ended without it.
        if node.alive and node.outcome not in allowed:
            # It came, or came back, when all others were gone: nobody tells it any more.
            alone = node.core.me.incarnation > 1 and not node.core.raft.commit_index
            ended = not node.outcome and world.finished
            late = ended and (alone or not _belongs(world, peer))
            if not late:
                wait = describe(node.core, world.now)
                found.append(f"{peer} did not finish: {node.outcome} {node.why} {wait}")
    return found


def _belongs(world: World, peer: PeerId) -> bool:
    """Did those who finished know it as one of theirs?"""
    return any(
        peer in node.core.members.members
        for node in world.nodes.values()
        if node.outcome == "finished"
    )


def summary(results: Sequence[SeedResult]) -> dict[str, object]:
    """What the seeds showed together; `violations` is a count."""
    happened, log, moves = Counter[str](), Counter[str](), Counter[str]()
    for result in results:
        happened.update(result.happened)
        log.update(result.log)
        moves.update(result.moves)
    legal = {f"{one.value} > {two.value}" for one, two in MOVES}
    return {
        "seeds": len(results),
        "first": results[0].seed if results else 0,
        "virtual_hours": round(sum(result.virtual_s for result in results) / 3600, 2),
        "faults": dict(sorted(happened.items())),
        "rounds_committed": statistics.median(r.commits for r in results) if results else 0,
        "elections": log[e.Elected.__name__],
        "joins": log[e.Member.__name__],
        "restores": log[e.Restore.__name__],
        "entries": dict(sorted(log.items())),
        "transitions": dict(sorted(moves.items())),
        "transitions_missing": sorted(legal - moves.keys()),
        "violations": sum(len(result.violations) for result in results),
        "failed": [result.seed for result in results if result.violations],
    }


def _run_all(seeds: range, *, peers: tuple[int, int], processes: int) -> Iterator[SeedResult]:
    jobs = [(seed, peers) for seed in seeds]
    if processes == 1:
        yield from map(_job, jobs)
        return
    with Pool(processes) as pool:
        yield from pool.imap(_job, jobs, chunksize=4)


def _job(job: tuple[int, tuple[int, int]]) -> SeedResult:
    seed, peers = job
    return run_seed(seed, peers=peers)


def _peers(text: str) -> tuple[int, int]:
    least, _, most = text.partition("-")
    if not (least.isdecimal() and (most or least).isdecimal()):
        raise ConfigError(f"--peers {text!r}: write a number or a range such as 3-9")
    low, high = int(least), int(most or least)
    if not 1 <= low <= high:
        raise ConfigError(f"--peers {text!r}: at least 1, and the larger number last")
    return low, high


def main(
    seeds: Annotated[int, typer.Option(help="How many seeds to run.")] = 300,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    peers: Annotated[str, typer.Option(help="Peers at the start of a seed.")] = "3-9",
    processes: Annotated[int, typer.Option(help="How many at a time.")] = 2,
    show: Annotated[bool, typer.Option("--story", help="Print each seed's story.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run simulated clusters; exit with 1 if anything that must hold did not.

    \b
    Examples:
      python -m sims.sweep --seeds 2000 --peers 3-9 --json
      python -m sims.sweep --first 4711 --seeds 1 --story
    """
    results: list[SeedResult] = []
    whole = range(first, first + seeds)
    for result in _run_all(whole, peers=_peers(peers), processes=min(processes, seeds)):
        results.append(result)
        if show or result.violations:
            print(*result.story[-60:], *result.violations, sep="\n", file=sys.stderr)  # noqa: T201
            replay = f"python -m sims.sweep --first {result.seed} --seeds 1 --peers {peers} --story"
            print(f"replay: {replay}", file=sys.stderr)  # noqa: T201
        if sys.stderr.isatty():
            print(f"\r{len(results)} of {seeds}", end="", file=sys.stderr)  # noqa: T201
    total = summary(results)
    text = json.dumps(total) if as_json else "\n".join(f"{k}: {v}" for k, v in total.items())
    print(text)  # noqa: T201
    sys.exit(1 if total["violations"] else 0)


if __name__ == "__main__":
    typer.run(main)
