"""CPU time of the compiled loops and of numpy: `python -m benchmarks arithmetic --mib 1,64`.

It measures the outer step's operations, the block codecs and the cosine transform, for each
instruction set of this CPU in a process of its own, in which numpy uses that set too. One thread,
CPU time, normal numbers; the compiled loops, numpy's and a plain copy take turns, and each figure
is the median of its turns. Arrays of 1 MiB stay in the caches from one call to the next, those of
64 MiB do not. Must NOT compare figures of two runs: the machine may be busy.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, cast

import numpy as np
import typer

from benchmarks.instruction_sets import INSTRUCTION_SETS, build, load, usable
from benchmarks.machine import machine
from benchmarks.timing import cpu_seconds
from lowcomm.codecs import BlockCodec, Fp4, Int4, Int8, Kernels, compiled
from lowcomm.numerics import F32, LARGE_BYTES, NORM_ELEMENTS, Loops, NumpyLoops, dct, loops
from peers.processes import dying_with_us
from protocols.types import ConfigError
from sims.terminal import bar

REPEATS = 9
SEED = 20250512
PEERS = (2, 4, 8, 16)
"""Numbers of contributions in a mean."""
CHUNKS = (8, 64)
"""Lengths of the transformed vectors; tiles are vectors, and squares with these sides."""
TURN_BYTES = 64 << 20
"""Bytes of one array in one turn, so that a turn lasts long enough for the clock."""
Q = typer.Option
CHILD_TIMEOUT_S = 3600.0
LR, BETA = np.float32(0.7), np.float32(0.9)
INSTALLED = "installed"
"""In place of an instruction set: the loops of this installation; none if there was no compiler
when it was installed."""

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Compiled:
    """The compiled loops; None where there are none."""

    outer: Loops | None
    codecs: Mapping[str, Kernels | None]
    """Compiled loops by the codec's name."""
    cosines: dct.DctLoops | None


@dataclass(frozen=True, slots=True)
class OperationRates:
    """Rates of one operation on arrays of one size, in GB/s of one array, not of all arrays it
    touches."""

    instruction_set: str
    operation: str
    mib: int
    compiled_gb_s: float | None
    """None: this installation has no compiled loops."""
    numpy_gb_s: float
    copy_gb_s: float
    """Rate of a plain copy, in the same turns."""
    of_numpy: float | None
    """The compiled loop's rate as a multiple of numpy's: the median of the turns' quotients."""


def measure(
    mib: int,
    ours: Compiled,
    *,
    instruction_set: str = INSTALLED,
    repeats: int = REPEATS,
) -> list[OperationRates]:
    """Measure each operation on arrays of this size."""
    random = np.random.default_rng(SEED)
    arrays = [random.standard_normal(mib << 18, np.float32) for _ in range(max(PEERS))]
    out = np.zeros_like(arrays[0])
    plain = Compiled(NumpyLoops(), dict.fromkeys(ours.codecs), None)
    works = {("numpy", name): work for name, work in operations(plain, arrays, out).items()}
    if ours.outer is not None:
        works |= {("compiled", name): work for name, work in operations(ours, arrays, out).items()}
    works["copy", ""] = partial(np.copyto, out, arrays[0])
    order = sorted(works, key=lambda key: key[1])  # Compared operations follow one another.
    times = max(1, TURN_BYTES // out.nbytes)
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in works}
    for _ in range(repeats + 1):  # The first turn touches all pages, and does not count.
        for key in order:
            seconds[key].append(cpu_seconds(works[key], times=times))
    for taken in seconds.values():
        del taken[0]
    rates = {key: out.nbytes / 1e9 / statistics.median(taken) for key, taken in seconds.items()}
    results: list[OperationRates] = []
    for name in (name for way, name in works if way == "numpy"):
        mine, other = seconds.get(("compiled", name)), seconds["numpy", name]
        of_numpy = None
        if mine is not None:
            of_numpy = statistics.median(b / a for a, b in zip(mine, other, strict=True))
        results.append(
            OperationRates(
                instruction_set,
                name,
                mib,
                rates.get(("compiled", name)),
                rates["numpy", name],
                rates["copy", ""],
                of_numpy,
            )
        )
    return results


def operations(on: Compiled, arrays: list[F32], out: F32) -> Mapping[str, Work]:
    """The operations by name. Their output is read by at most one of them, so all numbers stay
    normal."""
    outer = on.outer
    assert outer is not None
    params, grad, momentum, moved = arrays[:4]
    named: dict[str, Work] = {
        "pseudo_gradient": lambda: outer.difference(params, grad, out),
        "descent": lambda: outer.descent(params, grad, LR, out),
        "nesterov_step": lambda: outer.nesterov_step(params, grad, momentum, LR, BETA, out, moved),
        "heavy_ball_step": lambda: outer.heavy_ball_step(
            params, grad, momentum, LR, BETA, out, moved
        ),
    }
    if out.nbytes >= LARGE_BYTES:  # lowcomm copies smaller arrays by numpy.
        named["copy"] = lambda: outer.copy(params, out)
    squares = np.empty(out.size // NORM_ELEMENTS)
    named["all_finite"] = lambda: outer.all_finite(grad)
    named["block_squares"] = lambda: outer.block_squares(grad, squares)
    for peers in PEERS:
        weights = np.ones(peers, np.float32)
        inverse = np.float32(1 / peers)
        named[f"weighted_mean of {peers}"] = partial(
            outer.weighted_mean, arrays[:peers], weights, inverse, out
        )
    for peers in PEERS:
        trimmed, inverse = (peers - 1) // 4, np.float32(1)
        named[f"trimmed_mean of {peers}"] = partial(
            outer.trimmed_mean, arrays[:peers], trimmed, inverse, out
        )
    return named | _codec_operations(on, grad, out) | _cosine_operations(on, grad)


def _codec_operations(on: Compiled, values: F32, out: F32) -> dict[str, Work]:
    named: dict[str, Work] = {}
    for made in (Int8, Int4, Fp4):
        one: BlockCodec = made()
        one.kernels = on.codecs[one.name]
        payload = bytearray(one.encoded_bytes(values.size))
        one.encode(values, payload)
        named[f"{one.name} encode"] = partial(one.encode, values, payload)
        named[f"{one.name} decode"] = partial(one.decode, payload, out)
    return named


def _cosine_operations(on: Compiled, values: F32) -> dict[str, Work]:
    named: dict[str, Work] = {}
    for chunk in CHUNKS:
        for elements, shape in ((chunk, f"{chunk}"), (chunk * chunk, f"{chunk} x {chunk}")):
            for inverse, name in ((False, "cosines of"), (True, "inverse cosines of")):
                named[f"{name} {shape}"] = partial(
                    dct.each_axis,
                    values.reshape(-1, elements),
                    chunk,
                    inverse=inverse,
                    loops=on.cosines,
                )
    return named


def installed() -> Compiled:
    """The loops of this installation."""
    outer = loops()
    return Compiled(
        None if isinstance(outer, NumpyLoops) else outer,
        {one.name: compiled(one.name) for one in (Int8, Int4, Fp4)},
        dct.compiled(),
    )


def built_for(name: str) -> Compiled:
    """The loops, built for the instruction set of this name."""
    (instruction_set,) = (one for one in INSTRUCTION_SETS if one.name == name)
    with tempfile.TemporaryDirectory(prefix="lowcomm-") as folder:
        files = build(Path(folder), instruction_set)
        modules = {name: load(file) for name, file in files.items()}
    kernels = modules["lowcomm.codecs._kernels"]
    return Compiled(
        cast(Loops, modules["lowcomm.numerics._arithmetic"]),
        {one.name: _kernels(kernels, one.name) for one in (Int8, Int4, Fp4)},
        cast(dct.DctLoops, modules["lowcomm.numerics._cosines"]),
    )


def _measured_in_a_child(name: str, mib: str, repeats: int) -> list[OperationRates]:
    """Measure in a process in which numpy uses this instruction set and no larger one."""
    (instruction_set,) = (one for one in INSTRUCTION_SETS if one.name == name)
    argv = [sys.executable, "-m", "benchmarks", "arithmetic", "--only", name, "--here", "--json"]
    argv += ["--mib", mib, "--repeats", str(repeats)]
    done = subprocess.run(
        dying_with_us(argv),
        env={**os.environ, **instruction_set.environment()},
        stdout=subprocess.PIPE,
        check=True,
        timeout=CHILD_TIMEOUT_S,
    )
    return [OperationRates(**each) for each in json.loads(done.stdout)["results"]]


def _kernels(module: ModuleType, name: str) -> Kernels:
    return Kernels(getattr(module, f"{name}_encode"), getattr(module, f"{name}_decode"))


def table(results: list[OperationRates]) -> str:
    """The results as Markdown; docs/arithmetic.md has the same figures."""
    lines = [
        "| instruction set | operation | MiB | compiled GB/s | numpy GB/s | times "
        "| plain copy GB/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in results:
        compiled_gb_s = f"{one.compiled_gb_s:.1f}" if one.compiled_gb_s else "-"
        times = f"{one.of_numpy:.1f}" if one.of_numpy else "-"
        lines.append(
            f"| {one.instruction_set} | {one.operation} | {one.mib} | {compiled_gb_s} "
            f"| {one.numpy_gb_s:.1f} | {times} | {one.copy_gb_s:.1f} |"
        )
    return "\n".join(lines)


def main(
    mib: Annotated[str, Q(help="Sizes of one array in MiB, comma-separated.")] = "1,64",
    repeats: Annotated[int, Q(help="Timed turns of each operation.", min=1)] = REPEATS,
    only: Annotated[str, Q(help="baseline, avx2, avx512f or installed; empty: all sets.")] = "",
    here: Annotated[bool, Q("--here", help="Leave numpy as it is.", hidden=True)] = False,
    as_json: Annotated[bool, Q("--json", help="Print one JSON object.")] = False,
) -> None:
    """CPU time of each compiled loop and of numpy, on each instruction set of this CPU.

    python -m benchmarks arithmetic

    python -m benchmarks arithmetic --mib 1,4,16,64 --repeats 25

    python -m benchmarks arithmetic --mib 1 --only avx2 --json
    """
    sizes = [parse_mib(text) for text in mib.split(",")]
    known = [one.name for one in usable()]
    if only not in ("", INSTALLED, *known):
        raise ConfigError(f"--only {only}: this machine has {', '.join([INSTALLED, *known])}")
    names = [only] if only else known or [INSTALLED]
    results: list[OperationRates] = []
    with bar("arithmetic", len(names)) as (advance, _):
        for name in names:
            if here or name == INSTALLED:
                ours = installed() if name == INSTALLED else built_for(name)
                for size in sizes:
                    results += measure(size, ours, instruction_set=name, repeats=repeats)
            else:
                results += _measured_in_a_child(name, mib, repeats)
            advance(name)
    if as_json:
        told = {"repeats": repeats, "machine": machine()}
        print(json.dumps({**told, "results": [asdict(result) for result in results]}))
    else:
        print(table(results))
        print("\n" + ", ".join(f"{name} {value}" for name, value in machine().items()))


def parse_mib(text: str) -> int:
    """Parse a size from 1 to 1024; raises ConfigError."""
    if not text.strip().isdecimal() or not 1 <= int(text) <= 1024:
        raise ConfigError(f"--mib wants whole numbers from 1 to 1024, got {text!r}")
    return int(text)
