"""The command `lowcomm plan`: bytes, time and memory of each method, before a run.

Must NOT import anything slow before the command runs: the command line imports this module before
it listens.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protocols.types import ConfigError

if TYPE_CHECKING:
    from lowcomm.config.schema import FileConfig, RunConfig
    from lowcomm.methods.base import Parameter
    from lowcomm.planning.forecast import Workload
    from lowcomm.planning.line_load import NodeLine
    from lowcomm.planning.run_figures import RunFigures
    from lowcomm.planning.variants import Variant

LAYERS = 24
OWN = "as configured"
"""Name of the configuration's or the run's own method among the variants."""
ConfigFile = Annotated[
    Path | None,
    typer.Argument(help="TOML with [run]: its model, and its method as one more row."),
]
Params = Annotated[
    str, typer.Option("--params", metavar="COUNT", help="Parameters of the model, as in 1.3b.")
]
Layers = Annotated[int, typer.Option("--layers", help="Layers of a model that is no built-in one.")]
Step = Annotated[
    str,
    typer.Option("--step", metavar="TIME", help="Time of an inner step of a node, as in 350ms."),
]
Nodes = Annotated[int, typer.Option("--nodes", help="Number of nodes.", show_default=False)]
Rate = Annotated[
    str,
    typer.Option(
        "--line", metavar="RATE", help="Rate of each node's line, each way, as in 100mbit."
    ),
]
Trip = Annotated[
    str, typer.Option("--rtt", metavar="TIME", help="Round trip between two nodes, as in 50ms.")
]
Wanted = Annotated[
    str,
    typer.Option(
        "--share", metavar="PERCENT", help="Share of the time in which a node is to compute."
    ),
]
Memory = Annotated[
    str,
    typer.Option(
        "--memory", metavar="SIZE", help="Memory that a node has for its daemon, as in 64gib."
    ),
]
From = Annotated[
    Path | None,
    typer.Option("--from", metavar="RUNDIR", help="Take figures that are not given from this run."),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE.svg", help="Draw the shares against the line's rate."),
]


def plan(
    config: ConfigFile = None,
    params: Params = "",
    layers: Layers = LAYERS,
    step: Step = "",
    nodes: Nodes = 0,
    line: Rate = "",
    rtt: Trip = "",
    share: Wanted = "90%",
    memory: Memory = "",
    source: From = None,
    plot: Plot = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Forecast the costs of each method, and advise one.

    Bytes and memory are counted from the code of the methods; times follow from bytes, line and
    step. The cost in loss is that of a small model (docs/methods-compared.md). The advised method
    is the one with the lowest loss among those that fit into --memory (if it is not given, that
    need at most four times the least) and let a node compute for the wanted share of the time.
    --from measures steps, sizes and lines in the events of an earlier run.

    \b
    Examples:
      lowcomm plan --params 1.3b --step 350ms --nodes 4 --line 1gbit --rtt 50ms
      lowcomm plan run.toml --step 0.2s --nodes 3 --line 20mbit --plot plan.svg
      lowcomm plan --from runs/first
      lowcomm plan --from runs/first --nodes 8 --line 1gbit --json
    """
    import json

    from lowcomm.planning.advice import advise
    from lowcomm.planning.forecast import forecast
    from lowcomm.planning.plan_texts import RunPlan, plan_as_json, print_plan
    from lowcomm.planning.share_chart import share_chart
    from lowcomm.planning.variants import compared_variants
    from lowcomm.quantities import SHARE, SIZE, parse

    wanted = parse(share, SHARE, what="--share")
    if not 0 < wanted < 1:
        raise ConfigError(f"--share {share}: give a share between 0% and 100%, such as 90%")
    if plot is not None and plot.suffix != ".svg":
        raise ConfigError(f"--plot {plot}: it draws SVG: give a name that ends with .svg")
    asked = _Asked(config, params, layers, step, nodes, line, rtt, source)
    file, measured = asked.sources()
    run = file.run if file is not None else measured.run if measured is not None else None
    memory_bytes = parse(memory, SIZE, what="--memory") if memory else 0.0
    if memory and not memory_bytes:
        raise ConfigError(f"--memory {memory}: give a size above 0, such as {SIZE.example}")
    work, links = asked.workload(file, measured), asked.links(measured)
    variants = [*_own_method(run, work), *compared_variants(work.parameters)]
    found = [forecast(each, work, links, wanted_share=wanted) for each in variants]
    made = RunPlan(
        work=work,
        line=links,
        wanted_share=wanted,
        forecasts=found,
        advice=advise(variants, found, work, links, wanted_share=wanted, memory_bytes=memory_bytes),
        measured=measured,
        replays=not any((config, params, step, nodes, line, rtt)),
    )
    if plot is not None:
        plot.write_text(share_chart(variants, work, links), encoding="utf-8")
    if as_json:
        print(json.dumps(plan_as_json(made)))  # noqa: T201
    else:
        print_plan(made)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The options of the command, as typed."""

    config: Path | None
    params: str
    layers: int
    step: str
    nodes: int
    line: str
    rtt: str
    source: Path | None

    def sources(self) -> "tuple[FileConfig | None, RunFigures | None]":
        """The configuration, and the figures of the run, as far as they were given."""
        from lowcomm.config.schema import load_config
        from lowcomm.planning.run_figures import run_figures

        measured = None
        if self.source is not None:
            measured = run_figures(self.source, layers=self.layers)
        if self.config is None:
            return None, measured
        file = load_config(self.config)
        if file.run is None:
            raise ConfigError(f"{self.config} has no [run], which says what to train")
        return file, measured

    def workload(self, file: "FileConfig | None", measured: "RunFigures | None") -> "Workload":
        from lowcomm.planning.forecast import Workload
        from lowcomm.quantities import TIME, parse

        if self.step:
            step_s = parse(self.step, TIME, what="--step")
        elif measured is not None:
            step_s = measured.step_s
        else:
            raise ConfigError(
                "the time of a step is not known: give --step, as in --step 350ms, or --from "
                "RUNDIR to measure it"
            )
        nodes = self.nodes or (measured.nodes if measured is not None else 0)
        if not nodes and file is not None and file.run is not None and file.run.peers_min > 1:
            nodes = file.run.peers_min
        if not nodes:
            raise ConfigError("the number of nodes is not known: give --nodes, as in --nodes 4")
        return Workload(parameters=self._parameters(file, measured), nodes=nodes, step_s=step_s)

    def _parameters(
        self, file: "FileConfig | None", measured: "RunFigures | None"
    ) -> "list[Parameter]":
        from lowcomm.planning.model_shapes import founded_parameters, stated_parameters
        from lowcomm.quantities import COUNT, parse

        if self.params:
            count = parse(self.params, COUNT, what="--params")
            return stated_parameters(round(count), layers=self.layers)
        if file is not None and file.run is not None:
            return founded_parameters(file.run, file.node)
        if measured is not None:
            return list(measured.parameters)
        raise ConfigError(
            "the size of the model is not known: give --params, as in --params 1.3b, a "
            "configuration file, or --from RUNDIR"
        )

    def links(self, measured: "RunFigures | None") -> "NodeLine":
        from lowcomm.planning.line_load import NodeLine
        from lowcomm.quantities import RATE, TIME, parse

        if self.line:
            rate_bps = parse(self.line, RATE, what="--line")
        elif measured is not None and measured.rate_bps is not None:
            rate_bps = measured.rate_bps
        else:
            raise ConfigError("the rate of a line is not known: give --line, as in --line 100mbit")
        trip_s = measured.round_trip_s if measured is not None else None
        if self.rtt:
            trip_s = parse(self.rtt, TIME, what="--rtt")
        return NodeLine(rate_bps=rate_bps, round_trip_s=trip_s or 0.0)


def _own_method(run: "RunConfig | None", work: "Workload") -> "list[Variant]":
    """The configuration's own method. Raises ConfigError if it cannot divide this model."""
    from lowcomm.planning.model_shapes import layout_of
    from lowcomm.planning.variants import Variant

    if run is None:
        return []
    layout_of(work.parameters, run.method)  # Raises ConfigError with the key to change.
    return [Variant(name=OWN, method=run.method)]
