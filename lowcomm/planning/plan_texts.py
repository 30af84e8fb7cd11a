"""A plan as text for people, and as JSON. Must NOT estimate or choose."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lowcomm.planning.advice import Advice
from lowcomm.planning.forecast import Forecast, Workload
from lowcomm.planning.line_load import NodeLine
from lowcomm.planning.loss_costs import CONDITIONS
from lowcomm.planning.run_figures import RunFigures
from lowcomm.planning.variants import settings_of, toml_of
from lowcomm.quantities import RATE, show
from lowcomm.reports.figure_texts import bytes_text, count_text, decimal_bytes_text, seconds_text

NOT_COMPARED, BASELINE = "?", "-"
WIDTH_MIN = 80
"""Columns that the table needs; a narrower terminal breaks its lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A complete plan."""

    work: Workload
    line: NodeLine
    wanted_share: float
    forecasts: Sequence[Forecast]
    advice: Advice
    measured: RunFigures | None
    """The run that it was made from, if any."""
    replays: bool = False
    """Whether all figures are those of that run, so that the first forecast is of its own method
    and can be compared with it."""


def plan_as_json(plan: RunPlan) -> dict[str, Any]:
    """The plan as plain data. Shares are fractions, times seconds, rates bits a second."""
    work, line, advice, measured = plan.work, plan.line, plan.advice, plan.measured
    found: dict[str, Any] = {
        "params": work.params,
        "nodes": work.nodes,
        "step_s": work.step_s,
        "rate_bps": line.rate_bps,
        "round_trip_s": line.round_trip_s,
        "wanted_share": plan.wanted_share,
        "loss_conditions": CONDITIONS,
        "methods": [asdict(each) for each in plan.forecasts],
        "advice": {
            **asdict(advice.forecast),
            "why": advice.why,
            "settings": dict(settings_of(advice.variant.method)),
            "toml": toml_of(advice.variant.method, nodes=work.nodes),
        },
        "measured": None,
    }
    if measured is not None:
        names = ("nodes", "step_s", "rate_bps", "round_trip_s", "share")
        found["measured"] = {name: getattr(measured, name) for name in names}
    return found


def print_plan(plan: RunPlan) -> None:
    """Print the plan as a table, with the advised settings below."""
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    console.width = max(console.width, WIDTH_MIN)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("\nmethod", no_wrap=True)
    headings = (
        *("round:\nsteps", "round:\nsent", "round:\ntime", "node\ncomputes"),
        *(f"line for\n{100 * plan.wanted_share:g}%", "daemon's\nmemory", "loss\nabove"),
    )
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for each in plan.forecasts:
        table.add_row(*row(each))
    console.print(_conditions(plan), "", table, sep="\n")
    for text in _notes(plan):
        console.print("", text, sep="\n")


def row(found: Forecast) -> tuple[str, ...]:
    """The cells of a method."""
    above = found.loss_above
    return (
        found.name,
        str(found.steps),
        decimal_bytes_text(found.sent_bytes),
        seconds_text(found.round_s),
        f"{found.share:.1%}",
        "no rate" if found.enough_bps is None else show(float(f"{found.enough_bps:.3g}"), RATE),
        bytes_text(found.memory_bytes),
        NOT_COMPARED if above is None else f"{above:+.1%}" if above else BASELINE,
    )


def _conditions(plan: RunPlan) -> str:
    work, line = plan.work, plan.line
    return (
        f"{count_text(work.params)} parameters, {work.nodes} nodes, {seconds_text(work.step_s)} a "
        f"step,\neach node's line {show(line.rate_bps, RATE)} each way, round trip "
        f"{seconds_text(line.round_trip_s)}"
    )


def _notes(plan: RunPlan) -> list[str]:
    advice, measured = plan.advice, plan.measured
    notes: list[str] = []
    if measured is not None:
        text = f"The run computed for {measured.share:.1%} of the time."
        if plan.replays:
            text += (
                f" Planned for its method: {plan.forecasts[0].share:.1%}. The line is as fast as "
                "its exchanges were: it may be faster."
            )
        notes.append(text)
    notes.append(
        f"The column 'loss above' is the loss above all-reduce's in a comparison with {CONDITIONS} "
        "(docs/methods-compared.md)."
    )
    notes.append(f"Advice: {advice.variant.name}: {advice.why}.")
    notes.append(toml_of(advice.variant.method, nodes=plan.work.nodes))
    return notes
