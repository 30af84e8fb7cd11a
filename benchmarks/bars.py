"""Measures and judges every bar of this project: `python -m benchmarks bars`.

Each bar is measured by a command (benchmarks.asked). Its JSON is kept, so that an interrupted run
continues. Must NOT measure anything itself, nor judge.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import xxhash

from benchmarks.asked import BARS, Requirement
from benchmarks.exchanging.venvs import cache_directory
from benchmarks.machine import machine
from peers.processes import dying_with_us
from protocols.types import ConfigError
from sims.terminal import bar

TIMEOUT_S = 3600.0
Q = typer.Option


def main(
    only: Annotated[str, Q(help="Names or their beginnings, comma-separated.")] = "",
    keep: Annotated[Path | None, Q(help="DIR of measured figures.", show_default=False)] = None,
    again: Annotated[bool, Q("--again", help="Measure kept figures again.")] = False,
    as_json: Annotated[bool, Q("--json", help="Print one JSON object.")] = False,
) -> None:
    """All bars: the requirement, the measured figure and its command.

    It takes about an hour, and may be interrupted and repeated: measured figures are kept.

    \b
    Examples:
      python -m benchmarks bars
      python -m benchmarks bars --only long,loss --again
      python -m benchmarks bars --json
    """
    chosen = choose(only)
    directory = keep or cache_directory() / "bars"
    directory.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    tried: set[str] = set()
    with bar("bars", len(chosen)) as (advance, tell):
        for one in chosen:
            file = kept_in(directory, one.command)
            if one.command not in tried and (again or not file.exists()):
                tell(f"{one.name}: python -m benchmarks.{one.command}")
                tell(measure(one.command, file))
            tried.add(one.command)
            rows.append(judged(one, file))
            advance(f"{one.name}: {rows[-1]['measured']}")
    if as_json:
        print(json.dumps({"machine": machine(), "results": rows}))
    else:
        print(table(rows))


def choose(only: str) -> list[Requirement]:
    """The bars with these names or beginnings of names. Raises ConfigError."""
    wanted = [word for word in only.split(",") if word]
    for word in wanted:
        if not any(one.name.startswith(word) for one in BARS):
            raise ConfigError(f"--only {word}: there are {', '.join(one.name for one in BARS)}")
    return [one for one in BARS if not wanted or one.name.startswith(tuple(wanted))]


def measure(command: str, file: Path) -> str:
    """Run the command, and keep its output in the file. Returns a word on its success."""
    file.unlink(missing_ok=True)  # A failure now must not leave an earlier result.
    argv = dying_with_us([sys.executable, "-m", *f"benchmarks.{command} --json".split()])
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done after {TIMEOUT_S:g} s"
    if done.returncode:
        return "failed; its output is above"
    file.write_text(done.stdout, encoding="utf-8")
    return "done"


def judged(one: Requirement, file: Path) -> dict[str, Any]:
    """A row of the table; a bar that could not be measured is not met."""
    row = {"name": one.name, "asked": one.asked, "command": one.command}
    if not file.exists():
        return {**row, "measured": "failed", "met": False, "machine": machine()}
    told = json.loads(file.read_text(encoding="utf-8"))
    found, met = one.judge(told)
    return {**row, "measured": found, "met": met, "machine": told["machine"]}


def kept_in(directory: Path, command: str) -> Path:
    """The file of a command's output; bars with the same command share it."""
    return (
        directory
        / f"{command.split(maxsplit=1)[0]}-{xxhash.xxh3_64_hexdigest(command.encode())}.json"
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as Markdown, for the documentation."""
    lines = ["| asked | measured | met | load | stolen | `python -m benchmarks.` |"]
    lines.append("|---|---|---|---|---|---|")
    for one in rows:
        met = "yes" if one["met"] else "**no**"
        busy = f"{one['machine']['load_1min']} | {one['machine']['stolen_s']:.1f} s"
        lines.append(
            f"| {one['asked']} | {one['measured']} | {met} | {busy} | `{one['command']}` |"
        )
    return "\n".join(lines)
