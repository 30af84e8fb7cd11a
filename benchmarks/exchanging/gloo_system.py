"""torch's gloo, as it comes with the torch that is installed. Must NOT import torch."""

import importlib.metadata
from contextlib import AbstractAsyncContextManager

from benchmarks.exchanging.systems import Order, Side, System, workers


def system() -> System:
    return System(
        name="gloo",
        version=lambda: f"torch {importlib.metadata.version('torch')}",
        start=_start,
        codec=lambda _: "fp32",
        note="all_reduce, then a division; it has no codecs, commits or faults",
    )


def _start(order: Order) -> AbstractAsyncContextManager[Side]:
    return workers(order, "benchmarks.exchanging.gloo_worker", name="gloo")
