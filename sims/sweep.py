"""Runs many seeds of a whole cluster under faults: `python -m sims.sweep --seeds 300`.

Each seed runs two phases: safety (anything may fail) and liveness (a majority of the voters lives
and hears each other; the run must finish within LIVENESS_S). A failing seed prints its story and
the command that replays it; `python -m sims.shrink --seed SEED` finds the faults that it needs.
"""

import gc
import json
import random
import shlex
import statistics
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, NoReturn, TextIO, TypeVar

import typer

from protocols.messages import log_entries as e
from protocols.peer import describe
from protocols.raft import MOVES, Role
from protocols.state import RunState
from protocols.types import ConfigError, LowcommError, PeerId
from sims.checkers import World
from sims.mutations.catalogue import MUTANT_HELP, plant
from sims.node.node import Node
from sims.node.toy_model import Training
from sims.scenarios.fault_plan import KINDS, LIARS_EVERY, LIARS_IN, PlannedFault, draw_plan, inject
from sims.scenarios.plan_files import read_plan
from sims.scenarios.two_peers import ForkWorld, draw_faults
from sims.simulator.limit_values import EXTREME_EVERY, EXTREME_IN
from sims.terminal import bar, run

SAFETY_S = 30.0
LIVENESS_S = 400.0
"""Virtual seconds in which the remaining rounds must be committed, and all peers finish."""
ROUNDS, SLOW_ROUNDS = (20, 24, 30), 16
"""Rounds of all fragments together, and the number over slow lines. There a round takes seconds,
and nearly all rounds would come after the last fault, where they are all alike."""
PAIR_EVERY = 8
"""One of so many seeds has two peers, which may go on alone."""
VOID_EVERY, VOID_ONE_IN = 5, 6
"""In one of VOID_EVERY seeds, one of VOID_ONE_IN contributions cannot be averaged with others."""
PLAIN = 0.5
"""Share of seeds in which ranks train one fragment, and wait for each result."""
IN_FLIGHT_EVERY, IN_FLIGHT = 49, (12, 16, 24, 29, 46)
"""Seeds, modulo IN_FLIGHT_EVERY, in which results come after boundaries of other fragments. Seeds
that failed before this existed are not among them, so that these replay unchanged."""
LINES_EVERY, LINES_IN = 54, (7, 23, 28, 38, 41, 46, 53)
"""Seeds, modulo LINES_EVERY, in which some lines are slow. None of these failed before."""
ANSWERS_EVERY = 120
ANSWERS_IN = (4, 11, 23, 34, 38, 45, 49, 53, 69, 73, 78, 89, 95, 103, 106, 114)
"""Seeds, modulo ANSWERS_EVERY, in which stragglers contribute early. None of these failed
before."""
CLEAR_EVERY, CLEAR_IN = 96, (17, 23, 33, 36, 38, 41, 54, 58, 67, 82, 83)
"""Seeds, modulo CLEAR_EVERY, in which the run is not encrypted, so that peers commit by the word of
the leader. None of these failed before."""
PEERS = (3, 9)
"""The least and the most peers at the start of a seed."""
MANY_EVERY = 120
MANY_IN = (38, 49, 53, 69, 71, 78, 85, 89, 103, 106, 114, 116)
"""Seeds, modulo MANY_EVERY, with so many peers that learners read the log through relays. None of
these failed before."""
MANY_PEERS, MANY_ROUNDS = (12, 24), 6
GARBAGE = 10_000
"""New objects between two garbage collections: a seed makes hundreds of thousands that are freed
without one."""
RAISED = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(LowcommError, TypeError, ValueError),
)
"""Exceptions with which a bug can end a seed: that seed fails, and the others go on."""
Seeds = Annotated[int, typer.Option(help="How many seeds to run.", min=1)]
First = Annotated[int, typer.Option(help="The first seed.")]
Processes = Annotated[int, typer.Option(help="Processes at a time.", min=1)]
Story = Annotated[bool, typer.Option("--story", help="Print each seed's story.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Job = TypeVar("Job")


@dataclass(slots=True)
class SeedResult:
    """The outcome of one seed."""

    seed: int
    virtual_s: float
    commits: int
    """Number of committed rounds (or states of steps), those that a Restore took back included."""
    happened: dict[str, int]
    """Number of faults that took place, and of their outcomes, by kind."""
    log: dict[str, int]
    """Number of log entries, by kind."""
    moves: dict[str, int]
    """Number of role changes of peers, by kind."""
    comparisons: int
    """Number of events after which a core was compared with its twin, in which all parts run."""
    violations: list[str]
    story: list[str]
    plan: list[PlannedFault] = field(default_factory=list[PlannedFault])


def draw_training(seed: int) -> Training:
    """Draw how the ranks of a seed train: with one fragment and no overlap, or with several
    fragments in flight and results that come while ranks train."""
    source = random.Random(seed ^ 0xF7A6)  # noqa: S311 (a simulation, no secrets)
    void_one_in = VOID_ONE_IN if seed % VOID_EVERY == VOID_EVERY - 1 else 0
    in_flight = seed % IN_FLIGHT_EVERY in IN_FLIGHT
    if source.random() < PLAIN and not in_flight:
        return Training(void_one_in=void_one_in)
    if in_flight:
        fragments, least = source.choice([(2, 7), (3, 5), (4, 3), (4, 6), (4, 7)])
        return Training(
            fragments=fragments,
            overlap_steps=least,
            overlap_max_steps=min(least + source.choice([0, 0, 2]), Training().inner_steps),
            discards_overlap=source.choice([False, True]),
            void_one_in=void_one_in,
        )
    least = source.choice([0, 0, 1, 3])
    return Training(
        fragments=source.choice([1, 2, 3]),
        overlap_steps=least,
        overlap_max_steps=min(least + source.choice([0, 2, 6]), Training().inner_steps),
        discards_overlap=source.choice([False, True]),
        void_one_in=void_one_in,
    )


def run_seed(
    seed: int,
    *,
    plan: Sequence[PlannedFault] | None = None,
    peers: tuple[int, int] = PEERS,
    log: TextIO | None = None,
    gossip: bool = False,
) -> SeedResult:
    """Run one cluster from start to end. `plan`: faults instead of the seed's own; `log`: the file
    for all events and commands; `gossip`: peers exchange in pairs."""
    source = random.Random(seed)  # noqa: S311 (a simulation, no secrets)
    if log is not None:
        log.write(f"seed {seed}\n")
    lines = seed if seed % LINES_EVERY in LINES_IN else 0
    pair, training = seed % PAIR_EVERY == 0, draw_training(seed)
    answers = seed % ANSWERS_EVERY in ANSWERS_IN
    extremes = seed % EXTREME_EVERY in EXTREME_IN
    training = replace(training, gossip=gossip, lines=lines, answers=answers, extremes=extremes)
    checks = seed % LIARS_EVERY in LIARS_IN
    certified = seed % CLEAR_EVERY not in CLEAR_IN
    training = replace(training, certified=certified, checks=checks)
    num_peers, rounds = 2 if pair else source.randint(*peers), source.choice(ROUNDS)
    slow_rounds = SLOW_ROUNDS
    if peers == PEERS and seed % MANY_EVERY in MANY_IN:
        num_peers, rounds = source.randint(*MANY_PEERS), MANY_ROUNDS
        slow_rounds = MANY_ROUNDS
    world = (ForkWorld if pair else World)(
        seed,
        peers=num_peers,
        outer_steps=-(-rounds // training.fragments),
        slow_outer_steps=None if pair else -(-slow_rounds // training.fragments),
        training=training,
        log=log,
    )
    draw = draw_faults if pair else draw_plan
    return play(seed, world, draw(seed, until_s=SAFETY_S) if plan is None else plan)


def play(seed: int, world: World, plan: Sequence[PlannedFault]) -> SeedResult:
    """Run both phases of a world that was drawn from this seed."""
    inject(world, plan)
    world.clock.at(SAFETY_S, world.heal)
    violations: list[str] = []
    try:
        world.run(until_s=SAFETY_S + LIVENESS_S)
    except RAISED:
        violations = traceback.format_exc().splitlines()[-8:]
    checkers = world.checkers
    checkers.run_ended(world)
    world.limit_values.check(world)
    violations += [*checkers.violations, *_unfinished(world)]
    if not world.twin_cores.comparisons:
        violations.append("no core was compared with its twin")
    return SeedResult(
        seed=seed,
        virtual_s=world.clock.now,
        commits=checkers.history.num_commits,
        happened=dict(world.happened),
        log=dict(Counter(type(entry).__name__ for entry in checkers.log.values())),
        moves={f"{one.value} > {two.value}": n for (one, two), n in _moves(world).items()},
        comparisons=world.twin_cores.comparisons,
        violations=violations,
        story=world.story.lines,
        plan=list(plan),
    )


def _moves(world: World) -> Counter[tuple[Role, Role]]:
    """All changes of role, in ended incarnations too."""
    total = Counter(world.story.past_moves)
    for node in world.nodes.values():
        state = node.raft.term_state
        total.update(state.role_changes)
    return total


def _unfinished(world: World) -> list[str]:
    """Violations of live peers that did not end well."""
    found: list[str] = []
    if _is_lost(world):
        return found
    certification = world.dialer.certification
    for peer, node in world.nodes.items():
        allowed = {"finished", "dropped"}
        if node.process.asked_to_leave:
            allowed.add("left")
        if certification.is_revoked(peer) or certification.is_kicked(node):
            allowed.add("refused")
        if world.finished:
            allowed.add("alone")  # It came, or was paused, while the run ended without it.
        if node.process.alive and node.process.outcome not in allowed:
            # It came, or came back, when all others were gone: no peer tells it of the end.
            # Entries in a snapshot on its disk are committed, though no peer has told it.
            core = node.core
            alone = core.me.incarnation > 1 and (
                _met_late_ones(world, node) or not core.raft.commit_index
            )
            ended = not node.process.outcome and world.finished
            late = ended and (alone or not _belongs(world, peer))
            if not late:
                wait = describe(node.core, world.clock.now)
                found.append(
                    f"{peer} did not finish: {node.process.outcome} {node.process.why} {wait}"
                )
    return found


def _is_lost(world: World) -> bool:
    """True if no peer has a state to go on from, in memory or in a checkpoint: the founder died
    before there was one, or torn checkpoints were the last of those to which the run had gone
    back."""
    nodes = world.nodes.values()
    run_state = max((node.run_state for node in nodes), key=lambda each: each.index)
    kept = [node.disk.kept for node in nodes if node.disk.kept is not None]
    if not kept:
        return True
    held = any(rounds.version >= 0 for node in nodes for rounds in node.core.rounds)
    if held or not world.happened["relapse"]:
        return False
    return not any(run_state.is_kept(each.lineage, each.versions) for each in kept)


def _met_late_ones(world: World, node: Node) -> bool:
    """True if the node and each peer that it met came after the last peer had ended, or know no
    run. A peer that was never let in does not count: it cannot tell that the run has ended."""
    met = [node, *(world.nodes[peer] for peer in node.contacts.met if _belongs(world, peer))]
    known = [one.core for one in met if one.run_state.run is not None]
    return all(core.part.since > world.story.ended_at for core in known)


def _belongs(world: World, peer: PeerId) -> bool:
    """True if the peer that finished with the longest log had it as a member or a witness."""
    logs = [node.run_state for node in world.nodes.values() if node.process.outcome == "finished"]
    last = max(logs, key=lambda run_state: run_state.index, default=RunState())
    return peer in last.members or peer in last.witnesses


def summary(results: Sequence[SeedResult]) -> dict[str, object]:
    """The figures of all seeds together; `violations` is a count."""
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
        "faults": {kind: happened[kind] for kind in sorted(KINDS)},
        "outcomes": {what: n for what, n in sorted(happened.items()) if what not in KINDS},
        "rounds_committed": statistics.median(r.commits for r in results) if results else 0,
        "elections": log[e.Elected.__name__],
        "joins": log[e.Member.__name__],
        "restores": log[e.Restore.__name__],
        "forks": happened["fork"],
        "limits": happened["limit"],
        "entries": dict(sorted(log.items())),
        "transitions": dict(sorted(moves.items())),
        "transitions_missing": sorted(legal - moves.keys()),
        "comparisons": sum(result.comparisons for result in results),
        "violations": sum(len(result.violations) for result in results),
        "failed": [result.seed for result in results if result.violations],
    }


def _run_all(seeds: range, *, peers: tuple[int, int], processes: int) -> Iterator[SeedResult]:
    return in_turn(_job, [(seed, peers) for seed in seeds], processes=processes)


def in_turn(
    play_job: Callable[[Job], SeedResult], jobs: Iterable[Job], *, processes: int
) -> Iterator[SeedResult]:
    """Yield the results in the order of the jobs. `play_job` is a function of a module.

    The processes are forks of this one: a bug that was planted here is in all of them.
    """
    gc.freeze()  # Imported objects stay: no garbage collection in a seed looks at them again.
    gc.set_threshold(GARBAGE)
    if processes == 1:
        yield from map(play_job, jobs)
        return
    with get_context("fork").Pool(processes) as pool:
        yield from pool.imap(play_job, jobs, chunksize=4)


def _run_noted(
    seeds: range, *, peers: tuple[int, int], plan: Path | None, log: Path | None
) -> Iterator[SeedResult]:
    """Run seeds one after the other in this process, with faults from a file, or with a log
    file."""
    faults = read_plan(plan) if plan is not None else None
    with log.open("w") if log is not None else nullcontext() as file:
        for seed in seeds:
            yield run_seed(seed, peers=peers, plan=faults, log=file)


def _job(job: tuple[int, tuple[int, int]]) -> SeedResult:
    seed, peers = job
    return run_seed(seed, peers=peers)


def parse_peers(text: str) -> tuple[int, int]:
    least, _, most = text.partition("-")
    if not (least.isdecimal() and (most or least).isdecimal()):
        raise ConfigError(f"--peers {text!r}: write a number or a range such as 3-9")
    low, high = int(least), int(most or least)
    if not 1 <= low <= high:
        raise ConfigError(f"--peers {text!r}: at least 1, and the larger number last")
    return low, high


def replay(
    seed: int,
    *,
    peers: str,
    plan: Path | None = None,
    mutant: str = "",
    shrink: bool = False,
) -> str:
    """The command that replays a seed, or that finds the faults that it needs."""
    which = f"sims.shrink --seed {seed}" if shrink else f"sims.sweep --first {seed} --seeds 1"
    command = [f"python -m {which} --peers {peers}"]
    if plan is not None:
        command.append(f"--plan {plan}")
    if mutant:
        command.append(f"--mutant {shlex.quote(mutant)}")
    return " ".join(command if shrink else [*command, "--story"])


def again_with(module: str, result: SeedResult, *, mutant: str) -> Iterator[str]:
    """The command that replays a seed of another sweep."""
    planted = f" --mutant {shlex.quote(mutant)}" if mutant else ""
    yield f"replay: python -m {module} --first {result.seed} --seeds 1{planted} --story"


def main(
    seeds: Seeds = 300,
    first: First = 0,
    peers: Annotated[str, typer.Option(help="Peers at the start of a seed.")] = "3-9",
    processes: Processes = 2,
    show: Story = False,
    as_json: AsJson = False,
    log: Annotated[
        Path | None, typer.Option(help="Write every event and every command to this file.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Faults from this file, instead of the seed's own.")
    ] = None,
    mutant: Annotated[str, typer.Option(help=MUTANT_HELP)] = "",
) -> None:
    """Run simulated clusters; exit with 1 if a checker finds a violation.

    \b
    Examples:
      python -m sims.sweep --seeds 2000 --peers 3-9 --json
      python -m sims.sweep --seeds 100 --mutant my_bug.py
      python -m sims.sweep --first 4711 --seeds 1 --story
      python -m sims.sweep --first 4711 --seeds 1 --log events.txt
      python -m sims.sweep --first 4711 --seeds 1 --plan plan.json
    """
    whole = range(first, first + seeds)
    if mutant:
        plant(mutant)
    if log is not None or plan is not None:
        running = _run_noted(whole, peers=parse_peers(peers), plan=plan, log=log)
    else:
        running = _run_all(whole, peers=parse_peers(peers), processes=min(processes, seeds))

    def again(result: SeedResult) -> Iterator[str]:
        yield f"replay: {replay(result.seed, peers=peers, plan=plan, mutant=mutant)}"
        if result.violations and plan is None:
            yield f"fewer faults: {replay(result.seed, peers=peers, mutant=mutant, shrink=True)}"

    report(running, seeds, again, show=show, as_json=as_json)


def report(
    running: Iterable[SeedResult],
    seeds: int,
    again: Callable[[SeedResult], Iterable[str]],
    *,
    show: bool,
    as_json: bool,
) -> NoReturn:
    """Print the seeds as they end, and their figures; exit with 1 if there is a violation.

    `again`: the commands that replay a seed.
    """
    results: list[SeedResult] = []
    failed = 0
    with bar("seeds", seeds) as (advance, tell):
        for result in running:
            results.append(result)
            failed += bool(result.violations)
            if show or result.violations:
                tell("\n".join([*result.story[-60:], *result.violations]))
                tell("\n".join(again(result)))
            advance(f"{failed} failed" if failed else "")
    total = summary(results)
    text = json.dumps(total) if as_json else "\n".join(f"{k}: {v}" for k, v in total.items())
    print(text)  # noqa: T201
    sys.exit(1 if total["violations"] else 0)


if __name__ == "__main__":
    run(main)
