"""Each bar is judged by what its command prints."""

import importlib

import pytest
import typer

from benchmarks.asked import BARS
from tests.benchmarks.told import BY_NAME, TOLD


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("shared-fp32-2", ("84.0% (with the commit 70.0%)", False)),
        ("long-64-cold", ("84.0% (with the commit 70.0%)", False)),
        ("long-16-warm", ("84.0% (with the commit 70.0%)", True)),
        ("long-64-first", ("60.0%", False)),
        ("loss-cubic", ("0.12 (500 to 4000 ms); CPU 1.00", True)),
        ("gloo-2-64", ("0.12 (500 to 4000 ms); CPU 1.00", False)),
        ("gloo-reno-2-64", ("0.12 (500 to 4000 ms); CPU 1.00", True)),
        ("encrypted-4-gloo", ("1.25 (500 to 400 ms); CPU 3.00", False)),
        ("int8-exact", ("1.011 bytes, rms 0.00695, mean 4e-09", True)),
        ("codec-int8", ("4.00, 9.00", True)),
        ("blocked", ("2.00 + 1.50 ms", False)),
        ("lag", ("4.00 ms", True)),
        ("heartbeats", ("51 ms (one loop by itself 30 ms)", False)),
        ("memory-fp32", ("3.50", True)),
        ("memory-int8", ("3.50", False)),
        ("memory-growth", ("+0.10%", True)),
        ("join", ("0.30 s (at most 0.60 of 9), 3 donors", True)),
        ("join-rounds", ("1.09 times", True)),
        ("join-exchanges", ("2.10 times", False)),
        ("others", ("lowcomm 0.500 s, lowcomm 4.000 s, gloo 0.400 s", True)),
    ],
)
def test_each_bar_is_judged_by_what_its_command_printed(
    name: str, verdict: tuple[str, bool]
) -> None:
    if name.startswith("codec"):
        only = {**TOLD, "results": TOLD["results"][1:]}
        assert BY_NAME[name].judge(only) == verdict
    else:
        assert BY_NAME[name].judge(TOLD) == verdict


def test_a_step_is_judged_by_its_median_and_its_tail() -> None:
    gloo = {"p50_ms": 0.2, "p99_ms": 8.0}
    told = {"results": {"lowcomm": {"p50_ms": 0.39, "p99_ms": 2.1}, "gloo all_reduce": gloo}}
    shown = "0.39 and 2.1 ms (gloo's all-reduce 0.20 and 8.0 ms)"
    assert BY_NAME["step-2"].judge(told) == (shown, False)
    assert BY_NAME["step-4"].judge(told) == (shown, True)


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(BARS)


@pytest.mark.parametrize("command", sorted({one.command for one in BARS}))
def test_every_command_understands_what_it_is_asked(command: str) -> None:
    name, *arguments = command.split()
    app = typer.Typer(add_completion=False)
    app.command()(importlib.import_module(f"benchmarks.{name}").main)
    context = typer.main.get_command(app).make_context(name, [*arguments, "--json"])
    assert context.params["as_json"] is True
