"""Every bar that this project holds itself to, asked and measured: `python -m benchmarks.bars`.

Each is a command of its own (benchmarks.asked) whose JSON is kept, so that a run that was ended
goes on where it was. Must NOT measure anything itself, nor judge.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import xxhash

from benchmarks.asked import BARS, Bar
from benchmarks.exchanging.venvs import cache_directory
from benchmarks.machine import machine
from peers.processes.processes import dying_with_us
from protocols.types.errors import ConfigError
from sims.terminal import bar, run

TIMEOUT_S = 3600.0
Q = typer.Option


def main(
    only: Annotated[str, Q(help="Names, or how they begin, with commas between.")] = "",
    keep: Annotated[Path | None, Q(help="DIR for what was measured.", show_default=False)] = None,
    again: Annotated[bool, Q("--again", help="Measure what was measured before, too.")] = False,
    as_json: Annotated[bool, Q("--json", help="Print one JSON object.")] = False,
) -> None:
    """All bars: what is asked, what was measured, with which command.

    It takes about an hour, and may be ended and called again: what is measured is kept.

    \b
    Examples:
      python -m benchmarks.bars
      python -m benchmarks.bars --only long,loss --again
      python -m benchmarks.bars --json
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


def choose(only: str) -> list[Bar]:
    """Raises ConfigError."""
    wanted = [word for word in only.split(",") if word]
    for word in wanted:
        if not any(one.name.startswith(word) for one in BARS):
            raise ConfigError(f"--only {word}: there are {', '.join(one.name for one in BARS)}")
    return [one for one in BARS if not wanted or one.name.startswith(tuple(wanted))]


def measure(command: str, file: Path) -> str:
    """Have it measured, and keep what it printed. Returns how that went."""
    file.unlink(missing_ok=True)  # What fails now is not what was measured before.
    argv = dying_with_us([sys.executable, "-m", *f"benchmarks.{command} --json".split()])
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done after {TIMEOUT_S:g} s"
    if done.returncode:
        return "failed; what it said is above"
    file.write_text(done.stdout, encoding="utf-8")
    return "done"


def judged(one: Bar, file: Path) -> dict[str, Any]:
    """A row of the table; what could not be measured is not met."""
    row = {"name": one.name, "asked": one.asked, "command": one.command}
    if not file.exists():
        return {**row, "measured": "failed", "met": False, "machine": machine()}
    told = json.loads(file.read_text(encoding="utf-8"))
    found, met = one.judge(told)
    return {**row, "measured": found, "met": met, "machine": told["machine"]}


def kept_in(directory: Path, command: str) -> Path:
    """Bars of one command share what it measured."""
    return (
        directory
        / f"{command.split(maxsplit=1)[0]}-{xxhash.xxh3_64_hexdigest(command.encode())}.json"
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown, so that it can go into the documentation as it is."""
    lines = ["| asked | measured | met | load | stolen | `python -m benchmarks.` |"]
    lines.append("|---|---|---|---|---|---|")
    for one in rows:
        met = "yes" if one["met"] else "**no**"
        busy = f"{one['machine']['load_1min']} | {one['machine']['stolen_s']:.1f} s"
        lines.append(
            f"| {one['asked']} | {one['measured']} | {met} | {busy} | `{one['command']}` |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    run(main)
