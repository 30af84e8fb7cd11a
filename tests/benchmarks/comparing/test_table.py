"""Figures and verdicts, from outcomes that nobody trained."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.comparing.kept import Outcome
from benchmarks.comparing.rows import Bar, Point, Row
from benchmarks.comparing.table import (
    Finding,
    above,
    bars_markdown,
    chosen,
    grid,
    grid_markdown,
    judged,
    markdown,
    rows,
    step_seconds,
    steps_to,
    words,
)
from lowcomm.config.schema import MuonConfig
from lowcomm.methods import AllReduceMethod, DiLoCoMethod, FlexDeMoMethod
from lowcomm.planning.sent_bytes import NodeTraffic
from tests.benchmarks.comparing.tiny import outcome

BASE = Row(name="allreduce", points=[Point(method=AllReduceMethod())])
OTHER = Row(name="diloco", points=[Point(method=DiLoCoMethod(inner_steps=4))])


def finding(row: Row, *losses: float | None, **said: Any) -> Finding:
    outcomes: list[Outcome | None] = [outcome(loss, **said) for loss in losses]
    sent = 1000 if row is BASE else 250
    traffic = NodeTraffic(
        sent=(2 * sent,), least=(sent,), line=(sent,), round_steps=1 if row is BASE else 4
    )
    return Finding(row=row, point=row.points[0], traffic=traffic, outcomes=outcomes)


def both(one: Finding, other: Finding) -> dict[str, Finding]:
    return {each.row.name: each for each in (one, other)}


def test_losses_are_compared_seed_by_seed() -> None:
    mean, error = above(finding(OTHER, 1.1, 2.2, 3.3), finding(BASE, 1.0, 2.0, 3.0))
    assert mean == pytest.approx(0.1)
    assert error == pytest.approx(0)
    mean, error = above(finding(OTHER, 1.1, 1.3), finding(BASE, 1.0, 1.0))
    assert mean == pytest.approx(0.2)
    assert error == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("losses", "within", "met"),
    [
        ((1.05, 1.05), 0.05, True),
        ((1.06, 1.06), 0.05, False),
        ((1.04, 1.08), 0.05, True),  # 6 % with a standard error of 2 %.
        ((1.05, 1.08), 0.045, False),  # 6.5 % with one of 1.5 %.
        ((0.9, 0.9), -0.05, True),
    ],
)
def test_a_bar_is_met_within_its_bound_and_one_standard_error(
    losses: tuple[float, float], within: float, met: bool
) -> None:
    found = both(finding(BASE, 1.0, 1.0), finding(OTHER, *losses))
    bar = Bar(row="diloco", against="allreduce", within=within + 1e-9)
    assert judged(bar, found)["met"] is met


def test_a_bar_asks_for_waits_and_bytes_too() -> None:
    base, other = finding(BASE, 1.0), finding(OTHER, 1.0)
    waits = Bar(row="diloco", against="allreduce", within=0.1, waits_most=0.05)
    assert judged(waits, both(base, other))["met"] is True
    slow = finding(OTHER, 1.0, waited=(0.0, 0.06))
    assert judged(waits, both(base, slow))["met"] is False
    fewer = Bar(row="diloco", against="allreduce", within=0.1, fewer_bytes=4)
    assert judged(fewer, both(base, other))["met"] is True
    more = Bar(row="diloco", against="allreduce", within=0.1, fewer_bytes=5)
    seldom = replace(other, traffic=replace(other.traffic, sent=(250,)))
    verdict = judged(more, both(base, seldom))
    assert verdict["met"] is False
    measured = "+0.00%, standard error 0.00%, 4 times fewer bytes, 8 times as sent"
    assert verdict["measured"] == measured
    assert bars_markdown([verdict]).splitlines()[-1] == (
        f"| diloco: within +10% of allreduce, 5 times fewer bytes | {measured} | **no** |"
    )


@pytest.mark.parametrize("losses", [(), (1.0, None)])
def test_what_failed_meets_no_bar_and_is_in_the_table(losses: tuple[float | None, ...]) -> None:
    other = finding(OTHER, *losses) if losses else None
    found = {"allreduce": finding(BASE, 1.0, 1.0)} | ({"diloco": other} if other else {})
    verdict = judged(Bar(row="diloco", against="allreduce", within=9.0), found)
    assert (verdict["met"], verdict["measured"]) == (False, "-")
    if other:
        shown = markdown(rows(found))
        assert "lr 0.006 | the held-out loss was nan after 12 steps | - |" in shown


def test_what_is_not_trained_yet_is_said() -> None:
    found = Finding(
        row=OTHER,
        point=OTHER.points[0],
        traffic=NodeTraffic(sent=(1,), least=(1,), line=(1,)),
        outcomes=[None],
    )
    assert "| not trained yet | - |" in markdown(rows({"diloco": found}))


def test_the_time_to_a_loss_is_of_the_mean_curve_after_the_warm_start() -> None:
    curve = [(10, 4.0), (20, 2.0), (30, 1.0)]
    assert steps_to(curve, 3.0) == pytest.approx(5.0)
    assert steps_to(curve, 1.0) == pytest.approx(20.0)
    assert steps_to(curve, 4.5) == pytest.approx(0.0)
    assert steps_to(curve, 0.9) is None


def test_the_table_has_bytes_and_seconds_of_each_row() -> None:
    told = rows(both(finding(BASE, 1.0, 1.0), finding(OTHER, 1.02, 1.04)))
    base, other = told
    assert "above" not in base
    assert other["above"] == pytest.approx(0.03)
    assert (base["sent_bytes"], base["least_bytes"]) == (16000.0, 8000.0)
    assert (other["sent_bytes"], other["least_bytes"]) == (1000.0, 500.0)
    # To 1.05, from 2.0 at 8 steps to 1.0 and 1.03 at 12, from step 4 on; 0.1 s a step.
    steps = 4 + 4 * 0.95 / 1.0
    assert base["seconds"]["10 Mbit/s"] == pytest.approx(steps * (0.1 + 8e-4))
    steps = 4 + 4 * 0.95 / 0.97
    assert other["seconds"]["10 Mbit/s"] == pytest.approx(steps * (0.1 + 5e-5))
    shown = markdown(told).splitlines()
    assert len({line.count("|") for line in shown}) == 1
    assert "lr 0.006 | 1.0300 +- 0.0141 | +3.00% +- 1.00% | 1 kB | 500 B |" in shown[3]
    single = markdown(rows(both(finding(BASE, 1.0), finding(OTHER, 1.03)))).splitlines()
    assert "lr 0.006 | 1.0300 | +3.00% | 1 kB | 500 B |" in single[3]


def test_seconds_are_of_steps_that_compute_the_same() -> None:
    muon = Point(method=DiLoCoMethod(), optimizer=MuonConfig())
    sign = Point(method=FlexDeMoMethod())
    none = finding(
        Row(name="flexdemo full", points=[Point(method=FlexDeMoMethod(replicator="full"))])
    )
    made = [
        finding(BASE, 1.0, step_s=0.2),
        finding(OTHER, 1.0, step_s=0.1),
        finding(Row(name="diloco muon", points=[muon]), 1.0, step_s=0.3),
        finding(Row(name="flexdemo demo", points=[sign]), 1.0, step_s=0.4),
        replace(none, outcomes=[None]),
    ]
    found = {each.row.name: each for each in made}
    seconds = {
        "allreduce": 0.1,
        "diloco": 0.1,
        "diloco muon": 0.3,
        "flexdemo demo": 0.4,
        "flexdemo full": 0.0,
    }
    assert step_seconds(found) == seconds
    assert {one["name"]: one["step_s"] for one in rows(found)} == seconds


def test_a_loss_that_is_not_reached_has_no_time() -> None:
    told = rows(both(finding(BASE, 1.0), finding(OTHER, 1.2)))
    assert told[1]["seconds"]["1 Gbit/s"] is None
    assert markdown(told).splitlines()[3].endswith("| - | - | - |")


def test_the_best_point_is_chosen_once_all_are_trained() -> None:
    points = [Point(method=AllReduceMethod(), lr=lr) for lr in (1e-3, 2e-3, 3e-3)]
    row = Row(name="allreduce", points=points)
    assert chosen(row, [outcome(1.2), outcome(None), outcome(1.1)]) is points[2]
    assert chosen(row, [outcome(1.1), outcome(1.1), outcome(1.3)]) is points[0]
    assert chosen(row, [outcome(1.2), None, outcome(1.1)]) is None
    tried = grid([(row, points[0], outcome(1.2)), (row, points[1], outcome(None))])
    assert grid_markdown([*tried, *grid([(row, points[2], None)])]).splitlines()[2:] == [
        "| allreduce | lr 0.001 | 1.2000 |",
        "| allreduce | lr 0.002 | the held-out loss was nan after 12 steps |",
        "| allreduce | lr 0.003 | not trained yet |",
    ]


def test_a_point_is_named_by_what_is_its_own() -> None:
    point = Point(
        method=DiLoCoMethod(inner_steps=30, outer_lr=1.0, contribution_codec="int8"), lr=6e-3
    )
    assert words(point, [point]) == "contribution_codec int8, outer_lr 1.0, lr 0.006"
    other = Point(method=DiLoCoMethod(inner_steps=30, outer_momentum=0.0))
    assert words(other, [point, other]) == (
        "contribution_codec fp32, outer_lr 0.7, outer_momentum 0.0, lr 0.006"
    )
