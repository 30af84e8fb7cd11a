"""Figures of a daemon for Prometheus, served if `node.metrics` is set. Must NOT change anything."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from peers.sockets import bind

if TYPE_CHECKING:
    from lowcomm.config.schema import RunConfig
    from lowcomm.rank_control.context import DaemonContext
    from lowcomm.reports.event_log import EventLog
    from peers.metrics import Counters, Figures


@asynccontextmanager
async def served(
    address: str, event_log: EventLog, figures: Callable[[], Figures]
) -> AsyncGenerator[None]:
    """Serve the figures at HOST:PORT while the context lasts; "": do nothing. Raises
    ConfigError."""
    if not address:
        yield
        return
    from peers.metrics import served as answered

    bound, taken = bind(address, key="node.metrics")
    with bound:
        async with answered(bound, figures):
            event_log.write("metrics_listening", address=taken)
            yield


def figures_of(
    counters: Counters,
    discarded: int,
    run: RunConfig | None,
    gauges: Mapping[str, tuple[str, float]],
) -> Figures:
    """The present figures. `run`: None until it is agreed. `gauges`: {name without `lowcomm_`:
    (help text, value)}."""
    from peers.metrics import Figures

    name, method = (run.name, run.method.name) if run is not None else ("", "")
    return Figures(
        labels={"run": name, "method": method},
        traffic=counters.traffic(time.monotonic()),
        lag=counters.lag(),
        heartbeats=counters.heartbeats(time.monotonic()),
        discarded=discarded,
        gauges=gauges,
    )


def gauges_of(context: DaemonContext) -> dict[str, tuple[str, float]]:
    """Gauges of the node's progress: {name: (help text, value)}."""
    figures, run_state = context.figures, context.core.run_state
    return {
        "outer_step": ("Committed outer steps.", run_state.committed(0) if run_state.run else 0),
        "inner_steps": ("Inner steps of this node's ranks.", figures.steps),
        "tokens": ("Tokens trained by this node's ranks.", figures.tokens),
        "tokens_per_second": ("Speed of this node's ranks.", figures.tokens_per_s),
        "training_loss": ("Loss of this node's last inner step.", figures.loss),
    }
