"""Compares all methods: `python -m benchmarks methods --json`.

The same model, text, tokens and warm start for each, a grid of the same size, then three seeds of
the best point. Results are kept in small files, so that a run can be interrupted and continued, on
another machine too. Must NOT train anything itself, nor omit a failure.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.comparing.kept import Outcome, check_corpus, kept, name_of
from benchmarks.comparing.making import WorkFiles, make_all
from benchmarks.comparing.node import ComparedNode
from benchmarks.comparing.plots import write_plots
from benchmarks.comparing.rows import (
    BARS,
    FULL,
    GRID,
    QUICK,
    SCRATCH,
    Point,
    Row,
    Size,
    base_of,
    choose,
    setting,
)
from benchmarks.comparing.settings import DATA, Setting
from benchmarks.comparing.table import (
    Finding,
    bars_markdown,
    chosen,
    grid,
    grid_markdown,
    judged,
    markdown,
    rows,
)
from benchmarks.exchanging.venvs import cache_directory
from benchmarks.machine import machine
from lowcomm.data import Corpus, build_corpus
from lowcomm.planning import traffic_of
from protocols.types import LowcommError
from sims.terminal import run

RESULTS = Path(__file__).parent / "comparing" / "results.jsonl"
EXIT_FAILED = 1
Q = typer.Option
Findings = Mapping[str, Finding]


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of the rows that were asked for."""

    picked: Sequence[Row]
    outcomes: Path
    """File of the outcomes."""
    quick: bool

    @property
    def tried(self) -> list[tuple[Row, Point, Setting]]:
        """The settings of the grid."""
        bases = {base_of(row).name: base_of(row) for row in self.picked}
        return [
            (row, point, setting(point, GRID, seed=GRID.seeds[0]))
            for row in bases.values()
            for point in row.points
        ]

    def point_of(self, row: Row) -> Point | None:
        """The chosen point of the row; None until the grid is trained."""
        base = base_of(row)
        if self.quick:
            return base.points[0]
        settings = [one for each, _, one in self.tried if each is base]
        return chosen(base, [kept(self.outcomes, one) for one in settings])

    def settings(self, size: Size) -> dict[str, list[Setting]]:
        """By row, the settings of its point, if one is chosen."""
        found: dict[str, list[Setting]] = {}
        for row in self.picked:
            point = self.point_of(row)
            if point is not None and (row.scratch or size.warm_steps):
                found[row.name] = [
                    setting(point, size, seed=seed, world=row.world) for seed in size.seeds
                ]
        return found

    def findings(self, size: Size) -> dict[str, Finding]:
        """By row, the kept outcomes of these settings."""
        by_name = {row.name: row for row in self.picked}
        found: dict[str, Finding] = {}
        for name, settings in self.settings(size).items():
            point = self.point_of(by_name[name])
            assert point is not None, "settings of no point"
            found[name] = Finding(
                row=by_name[name],
                point=point,
                traffic=traffic_of(
                    point.method, ComparedNode(settings[0]).layout, nodes=settings[0].nodes
                ),
                outcomes=[kept(self.outcomes, one) for one in settings],
            )
        return found


def main(
    quick: Annotated[
        bool, Q("--quick", help="Short runs without a grid: 10 minutes at most.")
    ] = False,
    only: Annotated[str, Q(help="Beginnings of row names, comma-separated.")] = "",
    listed: Annotated[bool, Q("--list", help="Print the settings, and train none.")] = False,
    as_kept: Annotated[
        bool, Q("--kept", help="Print the kept results, and train nothing.")
    ] = False,
    jobs: Annotated[int, Q(help="Settings trained at a time, one core each.", min=1)] = 2,
    keep: Annotated[Path | None, Q(help="FILE of outcomes.", show_default=False)] = None,
    plots: Annotated[Path | None, Q(help="DIR: draw two charts there.")] = None,
    as_json: Annotated[bool, Q("--json", help="Print one JSON object.")] = False,
) -> None:
    """Held-out loss, bytes, and time to the same loss, of every method at equal tokens.

    All of it takes hours, and may be interrupted and repeated: finished runs are kept.

    \b
    Examples:
      python -m benchmarks methods --quick
      python -m benchmarks methods --only allreduce,diloco --list
      nice python -m benchmarks methods --plots docs --json
    """
    cache = cache_directory() / "methods"
    corpus = build_corpus(DATA, folder="", directory=cache / "text")
    plan = Plan(choose(only), keep or (cache / "quick.jsonl" if quick else RESULTS), quick)
    sizes = [QUICK] if quick else [FULL, SCRATCH]
    failed: list[str] = []
    if not (listed or as_kept):
        place = WorkFiles(plan.outcomes, cache / "text", jobs)
        failed = _train(plan, sizes, place, corpus)
    check_corpus(_outcomes(plan, sizes), corpus.digest)
    if listed:
        _list(plan, sizes)
        return
    found = [plan.findings(size) for size in sizes]
    told = _told(plan, found, failed)
    if plots is not None:
        write_plots(plots, found[0])
    print(json.dumps(told) if as_json else _text(plan, told))
    if failed:
        raise LowcommError(f"{len(failed)} runs failed; repeat the command to try them again")


def _train(plan: Plan, sizes: Sequence[Size], place: WorkFiles, corpus: Corpus) -> list[str]:
    """Train all settings. If results of another text are kept, refuse before adding any."""
    check_corpus(_outcomes(plan, sizes), corpus.digest)
    failed: list[str] = []
    if not plan.quick:
        failed += make_all([one for _, _, one in plan.tried], place, corpus)
    for size in sizes:
        wanted = [one for settings in plan.settings(size).values() for one in settings]
        failed += make_all(wanted, place, corpus)
    return failed


def _outcomes(plan: Plan, sizes: Sequence[Size]) -> list[Outcome]:
    all_of_them = [kept(plan.outcomes, one) for one in _settings(plan, sizes)]
    return [one for one in all_of_them if one is not None]


def _settings(plan: Plan, sizes: Sequence[Size]) -> list[Setting]:
    tried = [] if plan.quick else [one for _, _, one in plan.tried]
    return tried + [
        one for size in sizes for settings in plan.settings(size).values() for one in settings
    ]


def _list(plan: Plan, sizes: Sequence[Size]) -> None:
    for one in _settings(plan, sizes):
        word = "kept" if kept(plan.outcomes, one) is not None else "to train"
        print(f"{word:8} {name_of(one)}, lr {one.optimizer.lr:g}")


def _told(plan: Plan, found: Sequence[Findings], failed: Sequence[str]) -> dict[str, Any]:
    tried = [] if plan.quick else plan.tried
    return {
        "machine": machine(),
        "quick": plan.quick,
        "results": rows(found[0]),
        "bars": [judged(bar, found[0]) for bar in BARS if bar.row in found[0]],
        "scratch": [row for each in found[1:] for row in rows(each)],
        "grid": grid([(row, point, kept(plan.outcomes, one)) for row, point, one in tried]),
        "failed": list(failed),
    }


def _text(plan: Plan, told: Mapping[str, Any]) -> str:
    parts = [markdown(told["results"])]
    if not plan.quick:
        parts += [bars_markdown(told["bars"]), "From scratch:", markdown(told["scratch"])]
        parts += ["Tried, on one seed, at a third of the tokens:"]
        parts += [grid_markdown(told["grid"])]
    return "\n\n".join(parts)


if __name__ == "__main__":
    try:
        run(main)
    except LowcommError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
