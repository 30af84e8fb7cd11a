"""A plan as a table and as JSON."""

import json
import tomllib

import pytest

from lowcomm.planning.advice import advise
from lowcomm.planning.forecast import Workload, forecast
from lowcomm.planning.line_load import NodeLine
from lowcomm.planning.model_shapes import stated_parameters
from lowcomm.planning.plan_texts import RunPlan, plan_as_json, print_plan, row
from lowcomm.planning.variants import compared_variants


def made(round_trip_s: float = 0.05) -> RunPlan:
    work = Workload(parameters=stated_parameters(1_300_000, layers=4), nodes=4, step_s=0.35)
    line = NodeLine(rate_bps=1e8, round_trip_s=round_trip_s)
    variants = compared_variants(work.parameters)
    found = [forecast(each, work, line, wanted_share=0.9) for each in variants]
    advice = advise(variants, found, work, line, wanted_share=0.9)
    return RunPlan(
        work=work, line=line, wanted_share=0.9, forecasts=found, advice=advice, measured=None
    )


def test_the_table_has_a_row_for_each_method_and_the_advised_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = made()
    print_plan(plan)
    shown = capsys.readouterr().out
    assert shown.startswith("1.3 M parameters, 4 nodes, 0.35 s a step,\n")
    assert "each node's line 100mbit each way, round trip 0.05 s" in shown
    assert max(map(len, shown.splitlines())) <= 80
    for each in plan.forecasts:
        assert f"\n{each.name} " in shown
    table = tomllib.loads(shown[shown.index("[run]\n") :])
    assert table["run"]["peers_min"] == 4
    assert table["run"]["method"]["name"] == plan.advice.variant.method.name


def test_a_row_says_each_figure_in_its_unit() -> None:
    (diloco,) = [each for each in made().forecasts if each.name == "diloco"]
    cells = row(diloco)
    assert cells[:3] == ("diloco", "30", "7.8 MB")
    assert cells[4].endswith("%")
    assert cells[7] == "+1.8%"
    far = [row(each) for each in made(round_trip_s=5.0).forecasts]
    assert {cells[0]: cells[5] for cells in far}["allreduce"] == "no rate"


def test_json_has_all_figures_and_the_reason() -> None:
    plan = made()
    told = json.loads(json.dumps(plan_as_json(plan)))
    assert (told["params"], told["nodes"], told["rate_bps"]) == (1_300_000, 4, 1e8)
    assert [each["name"] for each in told["methods"]] == [each.name for each in plan.forecasts]
    assert told["advice"]["settings"]["name"] == plan.advice.variant.method.name
    assert told["advice"]["why"]
    assert told["measured"] is None
