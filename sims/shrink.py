"""Finds the fewest faults with which a seed still fails: `python -m sims.shrink --seed 4711`.

Delta debugging of the plan (Zeller and Hildebrandt 2002): faults are dropped in ever smaller
groups, then one by one, then the remaining ones are made shorter, as long as the run fails in the
same way. Must NOT judge a run, which the checkers do, nor change the world of a seed but for its
faults.
"""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from sims.mutants import RAISED, SEED_CPU_S, cpu_limit
from sims.mutations.catalogue import MUTANT_HELP, plant
from sims.scenarios.fault_plan import PlannedFault
from sims.scenarios.plan_files import read_plan, write_plan
from sims.sweep import parse_peers, replay, run_seed
from sims.terminal import bar, run

SHORTER = (0.0, 0.1, 0.25, 0.5)
"""Shares of the duration of a fault, to try in this order."""
Plan = list[PlannedFault]
Fails = Callable[[Sequence[PlannedFault]], bool]


def shrink(plan: Sequence[PlannedFault], fails: Fails) -> Plan:
    """The smallest plan found. If any one fault of it is dropped, the failure goes away."""
    smallest, size = list(plan), (len(plan) + 1) // 2
    while size >= 1:
        before = len(smallest)
        smallest = _without_groups(smallest, size, fails)
        if size > 1:
            size = (size + 1) // 2
        elif len(smallest) == before:
            break  # In a whole pass every single fault was needed.
    for index, fault in enumerate(smallest):
        for share in SHORTER:
            shorter = replace(fault, duration_s=round(fault.duration_s * share, 3))
            changed = [*smallest[:index], shorter, *smallest[index + 1 :]]
            if shorter != fault and fails(changed):
                smallest = changed
                break
    return smallest


def _without_groups(plan: Plan, size: int, fails: Fails) -> Plan:
    """Drop each group of `size` neighbours that the failure does not need. The last groups come
    first, since late faults mostly happen after the failure."""
    end = len(plan)
    while end > 0:
        start = max(0, end - size)
        fewer = plan[:start] + plan[end:]
        if fails(fewer):
            plan = fewer
        end = start
    return plan


def kinds(violations: Sequence[str]) -> list[str]:
    """The kinds of violations of a run, without peers and numbers. Of a traceback only the last
    line counts."""
    telling = [line for line in violations if not line.startswith((" ", "Traceback"))]
    return list(dict.fromkeys(map(_kind, telling)))


def _kind(violation: str) -> str:
    text = re.sub(r"\bp\d+\.[0-9a-f]{8}\b", "PEER", violation.splitlines()[0])
    text = re.sub(r"\b[0-9a-f]{32}\b|\d+(\.\d+)?", "N", text)
    head, _, rest = text.partition(": ")
    # The message of an error is its kind; the text after a checker's colon is detail.
    return f"{head}: {rest}" if head.isidentifier() and head.endswith("Error") else head


def failures(
    seed: int, *, plan: Sequence[PlannedFault] | None, peers: tuple[int, int]
) -> tuple[Plan, list[str]]:
    """The faults of a seed, and the kinds of its violations with them."""
    try:
        with cpu_limit(SEED_CPU_S):
            result = run_seed(seed, plan=plan, peers=peers)
    except RAISED as error:
        return list(plan or ()), kinds([f"{type(error).__name__}: {error}"])
    return result.plan, kinds(result.violations)


def main(
    seed: Annotated[int, typer.Option(help="The seed that fails.")],
    mutant: Annotated[str, typer.Option(help=MUTANT_HELP)] = "",
    peers: Annotated[str, typer.Option(help="Peers at the start, as in the sweep.")] = "3-9",
    plan: Annotated[
        Path | None, typer.Option(help="Begin with the faults in this file, not the seed's own.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the plan found.  [default: plan-SEED.json]")
    ] = None,
) -> None:
    """Find the fewest faults with which a seed still fails; exit with 1 if it does not fail.

    \b
    Examples:
      python -m sims.shrink --seed 4711
      python -m sims.shrink --seed 3 --mutant no-rebase
      python -m sims.shrink --seed 4711 --plan plan-4711.json --out smaller.json
    """
    if mutant:
        plant(mutant)
    low_high, runs = parse_peers(peers), 0
    given = read_plan(plan) if plan is not None else None
    whole, failed = failures(seed, plan=given, peers=low_high)
    if not failed:
        print(f"seed {seed} does not fail")  # noqa: T201
        sys.exit(1)
    wanted = failed[0]
    with bar("runs", None) as (advance, tell):
        tell(f"{len(whole)} faults: {wanted}")

        def fails(faults: Sequence[PlannedFault]) -> bool:
            nonlocal runs
            runs += 1
            same = wanted in failures(seed, plan=faults, peers=low_high)[1]
            advance(f"{len(faults)} faults{' are enough' if same else ''}")
            return same

        smallest = shrink(whole, fails) if fails(whole) else whole
    file = out or Path(f"plan-{seed}.json")
    write_plan(file, smallest)
    lines = [f"{len(smallest)} of {len(whole)} faults are enough ({runs} runs): {wanted}"]
    lines += [" ".join(f"{k}={v}" for k, v in asdict(fault).items()) for fault in smallest]
    lines.append(f"replay: {replay(seed, peers=peers, plan=file, mutant=mutant)}")
    print(*lines, sep="\n")  # noqa: T201


if __name__ == "__main__":
    run(main)
