"""`lowcomm plan`, from its options to its output. tests/lowcomm/cli has its mistakes."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lowcomm.cli.main import app
from lowcomm.methods import DiLoCoMethod
from protocols.types.errors import ConfigError
from tests.lowcomm.planning.a_run import EXCHANGE_S, STEPS, TRIP_S, write_run

GIVEN = ("--step", "350ms", "--nodes", "4", "--line", "100mbit", "--rtt", "50ms")


def call(*arguments: str) -> str:
    result = CliRunner().invoke(
        app, ["plan", *arguments], catch_exceptions=False, standalone_mode=False
    )
    assert not result.exit_code, result.output
    return result.output


def told(*arguments: str) -> dict[str, Any]:
    return json.loads(call(*arguments, "--json"))


def test_figures_that_are_given() -> None:
    plan = told("--params", "1.3b", *GIVEN)
    names = ("params", "nodes", "step_s", "rate_bps", "round_trip_s")
    given = [1_300_000_000, 4, 0.35, 1e8, 0.05]
    assert [plan[name] for name in names] == pytest.approx(given)
    (diloco,) = [each for each in plan["methods"] if each["name"] == "diloco"]
    assert diloco["sent_bytes"] == 3 * 8 * 1_300_000_000 // 4
    assert "method " in call("--params", "1.3b", *GIVEN)


def test_a_configuration_gives_the_model_and_its_method_a_row(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[run]\npeers_min = 3\n[run.method]\nname = "sparseloco"\n', encoding="utf-8")
    plan = told(str(path), "--step", "1s", "--line", "1mbit")
    assert plan["nodes"] == 3
    assert plan["params"] == 857_216
    own, *_ = plan["methods"]
    assert (own["name"], own["steps"], own["loss_above"]) == ("as configured", 30, None)


FILE = """\
[run.data]
source = "{source}"
[run.model]
vocab_size = {values}
[node]
{node}
"""


@pytest.mark.parametrize(
    ("source", "node", "words"),
    [
        ("tokens", "", "run.model.vocab_size"),
        ("files", 'tokenizer = "t.json"', "run.model.vocab_size"),
        ("own", "", 'run.data.source is "own"'),
        ("private", "", 'run.data.source is "private"'),
    ],
)
def test_a_file_that_does_not_tell_the_model_gives_no_plan(
    tmp_path: Path, source: str, node: str, words: str
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(FILE.format(source=source, node=node, values=0), encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        call(str(path), *GIVEN)
    assert told(str(path), *GIVEN, "--params", "1m")["params"] == 1_000_000
    path.write_text(FILE.format(source=source, node=node, values=512), encoding="utf-8")
    if source not in ("own", "private"):
        assert told(str(path), *GIVEN)["params"] == 857_216 + 2 * 256 * 128


def test_a_run_gives_all_figures_and_options_replace_them(tmp_path: Path) -> None:
    method = DiLoCoMethod(inner_steps=STEPS)
    run = write_run(tmp_path, method, params=1_200_000, step_s=0.1, rounds=6)
    plan = told("--from", str(run))
    assert plan["params"] == 1_200_000
    assert plan["step_s"] == pytest.approx(0.2)
    assert plan["round_trip_s"] == TRIP_S
    measured = plan["measured"]["share"]
    assert measured == pytest.approx(2.0 / (2.0 + EXCHANGE_S))
    assert plan["methods"][0]["share"] == pytest.approx(measured, rel=0.15)
    assert "The run computed for 50.0% of the time" in call("--from", str(run))
    other = told("--from", str(run), "--nodes", "8", "--line", "1gbit", "--rtt", "0")
    assert (other["nodes"], other["rate_bps"], other["round_trip_s"]) == (8, 1e9, 0.0)


def test_a_plot_is_written(tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    call("--params", "1m", *GIVEN, "--plot", str(path))
    assert path.read_text("utf-8").startswith("<svg")
