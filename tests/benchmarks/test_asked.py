"""Each bar is judged by what its command prints."""

import importlib

import pytest
import typer

from benchmarks.asked import BARS
from tests.benchmarks.told import BY_NAME, RESULT, TOLD


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("shared-fp32-2", ("70.0% (84.0% while the data moves)", False)),
        ("long-16-cold", ("70.0% (84.0% while the data moves)", True)),
        (
            "long-16-warm",
            ("70.0% (84.0% while the data moves), at most 0.8 s after another", False),
        ),
        ("long-64-first", ("60.0%", False)),
        ("loss-cubic", ("0.12 (500 to 4000 ms); CPU 1.00", True)),
        ("gloo-2-64", ("0.12 (500 to 4000 ms); CPU 1.00", False)),
        ("gloo-reno-2-64", ("0.12 (500 to 4000 ms); CPU 1.00", True)),
        ("encrypted-4-gloo", ("1.25 (500 to 400 ms); CPU 3.00", False)),
        ("int8-exact", ("1.011 bytes, rms 0.00695, mean 4e-09", True)),
        ("codec-int8", ("4.00, 9.00", True)),
        ("blocked", ("2.00 + 1.50 ms", False)),
        ("lag", ("11.00 ms (4.00 ms of the last minute)", False)),
        ("heartbeats", ("51 ms (one loop by itself 30 ms)", False)),
        ("memory-fp32", ("3.50", True)),
        ("memory-int8", ("3.50", False)),
        ("memory-growth", ("+0.10%", True)),
        ("join", ("0.30 s (at most 0.60 of 9), 3 donors", True)),
        ("join-rounds", ("1.09 times", True)),
        ("join-exchanges", ("2.10 times", False)),
        ("others", ("lowcomm 0.500 s, lowcomm 4.000 s, gloo 0.400 s", False)),
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


@pytest.mark.parametrize("name", ["gloo-reno-2-64", "int8-exact"])
def test_different_results_meet_no_bar(name: str) -> None:
    results = [{**one, "bit_identical": False} for one in TOLD["results"]]
    assert BY_NAME[name].judge(TOLD)[1] is True
    assert BY_NAME[name].judge({**TOLD, "results": results})[1] is False


@pytest.mark.parametrize(("pause_s", "met"), [(1.0, True), (1.1, False)])
def test_an_exchange_is_warm_within_a_second(pause_s: float, met: bool) -> None:
    told = {**TOLD, "results": [{**RESULT, "payload_share": 0.8, "pause_max_s": pause_s}]}
    assert BY_NAME["long-16-warm"].judge(told)[1] is met


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
