"""What the outer step's operations cost: `python -m benchmarks.arithmetic [--mib 1,64] --json`.

One thread, CPU time of this process, normal numbers; the compiled loops, numpy's and a plain copy
take turns, and each figure is the median of its turns. Arrays of 1 MiB stay in the caches from one
call to the next, those of 64 MiB do not. Must NOT compare figures of two runs: the machine may be
busy.
"""

import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated

import numpy as np
import typer

from benchmarks.machine import machine
from benchmarks.timing import cpu_seconds
from lowcomm.arithmetic import F32, NORM_ELEMENTS, Loops, NumpyLoops, loops
from protocols.errors import ConfigError
from sims.terminal import bar, run

REPEATS = 9
SEED = 20250512
PEERS = (2, 4, 8, 16)
"""How many contributions a mean is of."""
TURN_BYTES = 64 << 20
"""Of one array in one turn, so that a turn lasts long enough for the clock."""
LR, BETA = np.float32(0.7), np.float32(0.9)

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Result:
    """Of one operation on arrays of one size. GB/s of one array, not of all that it touches."""

    operation: str
    mib: int
    compiled_gb_s: float | None
    """None: this installation has nothing compiled."""
    numpy_gb_s: float
    copy_gb_s: float
    """Of a plain copy, in the same turns."""


def measure(
    mib: int, *, repeats: int = REPEATS, advance: Callable[[str], None] = lambda _: None
) -> list[Result]:
    """Each operation on arrays of this size."""
    random = np.random.default_rng(SEED)
    arrays = [random.standard_normal(mib << 18, np.float32) for _ in range(max(PEERS))]
    out = np.zeros_like(arrays[0])
    ours, plain = loops(), NumpyLoops()
    works = {("numpy", name): work for name, work in operations(plain, arrays, out).items()}
    if not isinstance(ours, NumpyLoops):
        works |= {("compiled", name): work for name, work in operations(ours, arrays, out).items()}
    works["copy", ""] = partial(np.copyto, out, arrays[0])
    times = max(1, TURN_BYTES // out.nbytes)
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in works}
    for turn in range(repeats + 1):  # The first one touches all pages, and does not count.
        for key, work in works.items():
            seconds[key].append(cpu_seconds(work, times=times))
        advance(f"{mib} MiB, turn {turn + 1}")
    rates = {key: out.nbytes / 1e9 / statistics.median(taken[1:]) for key, taken in seconds.items()}
    return [
        Result(name, mib, rates.get(("compiled", name)), rates["numpy", name], rates["copy", ""])
        for name in operations(plain, arrays, out)
    ]


def operations(on: Loops, arrays: list[F32], out: F32) -> Mapping[str, Work]:
    """By name. What is written is never read for more than one of them: all numbers stay normal."""
    params, grad, momentum, moved = arrays[:4]
    named: dict[str, Work] = {
        "copy": lambda: on.copy(params, out),
        "pseudo_gradient": lambda: on.difference(params, grad, out),
        "descent": lambda: on.descent(params, grad, LR, out),
        "nesterov_step": lambda: on.nesterov_step(params, grad, momentum, LR, BETA, out, moved),
        "heavy_ball_step": lambda: on.heavy_ball_step(params, grad, momentum, LR, BETA, out, moved),
    }
    squares = np.empty(out.size // NORM_ELEMENTS)
    named["all_finite"] = lambda: on.all_finite(grad)
    named["block_squares"] = lambda: on.block_squares(grad, squares)
    for peers in PEERS:
        weights = np.ones(peers, np.float32)
        inverse = np.float32(1 / peers)
        named[f"weighted_mean of {peers}"] = partial(
            on.weighted_mean, arrays[:peers], weights, inverse, out
        )
    for peers in PEERS:
        trimmed, inverse = (peers - 1) // 4, np.float32(1)
        named[f"trimmed_mean of {peers}"] = partial(
            on.trimmed_mean, arrays[:peers], trimmed, inverse, out
        )
    return named


def table(results: list[Result]) -> str:
    """For a person: Markdown, so that it can go into docs/arithmetic.md as it is."""
    lines = [
        "| operation | MiB | compiled GB/s | numpy GB/s | times | plain copy GB/s |",
        "|---|---|---|---|---|---|",
    ]
    for one in results:
        compiled = f"{one.compiled_gb_s:.1f}" if one.compiled_gb_s else "-"
        times = f"{one.compiled_gb_s / one.numpy_gb_s:.1f}" if one.compiled_gb_s else "-"
        lines.append(
            f"| {one.operation} | {one.mib} | {compiled} | {one.numpy_gb_s:.1f} | {times} "
            f"| {one.copy_gb_s:.1f} |"
        )
    return "\n".join(lines)


def main(
    mib: Annotated[str, typer.Option(help="MiB of one array; several with commas.")] = "1,64",
    repeats: Annotated[int, typer.Option(help="Turns of each that count.", min=1)] = REPEATS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """CPU time of each operation of the outer step, compiled and with numpy.

    python -m benchmarks.arithmetic

    python -m benchmarks.arithmetic --mib 1,4,16,64 --repeats 25

    python -m benchmarks.arithmetic --mib 1 --json
    """
    sizes = [parse_mib(text) for text in mib.split(",")]
    results: list[Result] = []
    with bar("arithmetic", len(sizes) * (repeats + 1)) as (advance, _):
        for size in sizes:
            results += measure(size, repeats=repeats, advance=advance)
    if as_json:
        told = {"repeats": repeats, "machine": machine()}
        print(json.dumps({**told, "results": [asdict(result) for result in results]}))
    else:
        print(table(results))
        print("\n" + ", ".join(f"{name} {value}" for name, value in machine().items()))


def parse_mib(text: str) -> int:
    """1 to 1024; raises ConfigError."""
    if not text.strip().isdecimal() or not 1 <= int(text) <= 1024:
        raise ConfigError(f"--mib wants whole numbers from 1 to 1024, got {text!r}")
    return int(text)


if __name__ == "__main__":
    run(main)
