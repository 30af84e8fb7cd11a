"""The figures of a plan, measured from the events of a run: its steps, its size and its line.

Must NOT ask a daemon: it reads the files of a run directory.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from lowcomm.config.schema import RunConfig
from lowcomm.methods.base import Parameter, RoundMethod
from lowcomm.outer_state.fragment_layout import fragment_elements
from lowcomm.planning.line_load import PAYLOAD_SHARE, busy_bytes
from lowcomm.planning.model_shapes import (
    configured_parameters,
    knows_vocabulary,
    layout_of,
    stated_parameters,
)
from lowcomm.reports import Commit, Event, Ready, read_timeline
from lowcomm.reports.events import Layout, Reduced, Start, Traffic
from lowcomm.startup.identity import node_directories, read_record, recorded_config
from lowcomm.training.round_schedule import ANCHOR
from protocols.types import ConfigError

ROUNDS_MIN = 4
"""Fewest committed rounds that a plan is made from. The first one does not count: nodes are still
starting."""
ASK = "give --params, --nodes, --step, --line and --rtt"

T = TypeVar("T", Commit, Ready)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """Measured figures of a run of rounds; None where its events do not tell."""

    run: RunConfig
    parameters: Sequence[Parameter]
    nodes: int
    step_s: float
    """Seconds of an inner step of the slowest node."""
    rate_bps: float | None
    """Bits a second, with headers, that passed each node's line in each direction while a round was
    exchanged: the line has at least this rate."""
    round_trip_s: float | None
    """To the farthest peer."""
    share: float
    """The share of the time in which the slowest node computed, in a median round: a pause of the
    run does not count."""


def run_figures(directory: Path, *, layers: int) -> RunFigures:
    """The figures of a run, or of one node of it. `layers`: of a model that is not the built-in
    one. Raises ConfigError if the run is too short, or not of rounds; OSError."""
    (node, run), events = _founder(directory), read_timeline(directory).events
    method = run.method
    if not isinstance(method, RoundMethod):
        raise ConfigError(
            f"--from {directory}: with {method.name} each step contains an exchange, so the run's "
            f"events do not tell the time of a step: {ASK}"
        )
    commits = [each for each in events if isinstance(each, Commit) and each.fragment == ANCHOR]
    ends = {each.round: each.t for each in reversed(commits)}
    if len(ends) < ROUNDS_MIN:
        raise ConfigError(
            f"--from {directory}: {len(ends)} rounds are committed, and a plan needs {ROUNDS_MIN}: "
            f"let the run go on, or {ASK}"
        )
    steps_s = step_seconds(events, method)
    rounds_s = [ends[number] - ends[number - 1] for number in ends if number - 1 in ends]
    if not steps_s or not rounds_s:
        raise ConfigError(f"--from {directory}: no node contributed in consecutive rounds: {ASK}")
    step_s = max(steps_s.values())
    round_trip_s = _round_trip(events)
    size = max((each.params for each in events if isinstance(each, Start | Layout)), default=0)
    if not size:
        raise ConfigError(f"--from {directory}: no event tells the size of the model: {ASK}")
    parameters = _parameters(node, run, size, layers=layers)
    nodes = max(len(each.roster) for each in commits)
    return RunFigures(
        run=run,
        parameters=parameters,
        nodes=nodes,
        step_s=step_s,
        rate_bps=_rate(events, method, parameters, nodes=nodes, round_trip_s=round_trip_s or 0.0),
        round_trip_s=round_trip_s,
        share=min(method.inner_steps * step_s / statistics.median(rounds_s), 1.0),
    )


def step_seconds(events: Sequence[Event], method: RoundMethod) -> Mapping[str, float]:
    """Seconds of an inner step by node: the median of its rounds or, if it trains on while a round
    is exchanged and so may wait at an unknown step, their lower quartile."""
    ready = _by_round(each for each in events if isinstance(each, Ready))
    applied = _by_round(each for each in events if isinstance(each, Commit))
    found: dict[str, float] = {}
    for name, own in ready.items():
        begins = own if method.overlap_steps else applied.get(name, {})
        spans = [
            (own[number].t - begins[number - 1].t) / own[number].steps
            for number in sorted(own)
            if number - 1 in begins and own[number].steps
        ]
        if len(spans) > 1:
            lower, median, _ = statistics.quantiles(spans, n=4)
            found[name] = lower if method.overlap_steps else median
    return found


def _rate(
    events: Sequence[Event],
    method: RoundMethod,
    parameters: Sequence[Parameter],
    *,
    nodes: int,
    round_trip_s: float,
) -> float | None:
    """The median rate of the exchanges. Each lasts from the last node's contribution to the last
    node's result, because earlier nodes wait for that one."""
    began = {(e.fragment, e.round, e.peer): e.t for e in events if isinstance(e, Ready)}
    spans: dict[tuple[int, int], tuple[float, float]] = {}
    for each in events:
        if isinstance(each, Reduced) and (each.fragment, each.round, each.peer) in began:
            begin = began[each.fragment, each.round, each.peer]
            last = spans.get((each.fragment, each.round), (begin, begin))
            end = begin + each.seconds
            spans[each.fragment, each.round] = max(last[0], begin), max(last[1], end)
    sizes = fragment_elements(layout_of(parameters, method))
    busy = [busy_bytes(method, each, nodes=nodes) for each in sizes]
    rates = [
        8 * busy[fragment] / PAYLOAD_SHARE / (end - begin - round_trip_s)
        for (fragment, _), (begin, end) in spans.items()
        if end - begin > round_trip_s and fragment < len(busy)
    ]
    return statistics.median(rates) if rates and sum(busy) else None


def _round_trip(events: Sequence[Event]) -> float | None:
    """That of the farthest two nodes. Of each two the shortest counts: in others packets waited
    behind those of a payload."""
    shortest: dict[tuple[str, str], float] = {}
    for each in events:
        if isinstance(each, Traffic):
            for other, trip in zip(each.peers, each.round_trip_s, strict=False):
                if trip:
                    key = (each.peer, other)
                    shortest[key] = min(trip, shortest.get(key, trip))
    return max(shortest.values(), default=None)


def _parameters(node: Path, run: RunConfig, size: int, *, layers: int) -> list[Parameter]:
    """Those of the built-in model, if the run's has the same size. If the node's file does not tell
    the vocabulary, it is the one that gives this size."""
    model, record = run.model, read_record(node)
    program = record is not None and record.command
    if not program and not knows_vocabulary(run, recorded_config(node).node):
        without = sum(each.elements for each in configured_parameters(model))
        row = model.hidden_size * (1 if model.tied_embeddings else 2)
        rows, rest = divmod(size - without + model.embeddings * row, row)
        if rows > 0 and not rest:
            model = replace(model, vocab_size=rows)
    built_in = configured_parameters(model)
    if sum(each.elements for each in built_in) == size:
        return built_in
    return stated_parameters(size, layers=layers)


def _by_round(events: Iterable[T]) -> dict[str, dict[int, T]]:
    """Events of the anchor by name of the node and number of the round; of several the last."""
    found: dict[str, dict[int, T]] = {}
    for each in events:
        if each.fragment == ANCHOR:
            found.setdefault(each.name, {})[each.round] = each
    return found


def _founder(directory: Path) -> tuple[Path, RunConfig]:
    """The first node that was started with a `[run]`, and that. Raises ConfigError."""
    for node in node_directories(directory):
        if (run := recorded_config(node).run) is not None:
            return node, run
    raise ConfigError(
        f"--from {directory}: it holds no node that was started with a [run]: give the directory "
        "of a run (runs/NAME), or of the node that began it"
    )
