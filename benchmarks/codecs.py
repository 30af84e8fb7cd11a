"""Bytes, time and error of each codec: `python -m benchmarks codecs [--mib 64] --json`.

One thread, CPU time of this process, normal numbers; codecs and a plain copy take turns, and each
figure is the median of its turns. Must NOT compare figures of two runs: the machine may be busy.
"""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import typer

from benchmarks.machine import machine
from benchmarks.timing import cpu_seconds
from lowcomm.codecs import Codec, codec, known_codecs
from lowcomm.numerics import F32, weighted_mean
from sims.terminal import bar

REPEATS = 9
SEED = 20250512
RESULT_CODECS = {
    "fp32": "fp32",
    "bf16": "bf16",
    "fp16": "fp16",
    "int8": "int8",
    "topk": "",
    "topk2bit": "",
    "powersgd": "",
}
"""By contribution codec, the codec of two peers' mean: "" for gather without a codec; bf16 if not
listed."""


@dataclass(frozen=True, slots=True)
class CodecFigures:
    """Figures of one codec. Errors are on N(0, 1): of one peer's values, and of the mean of two
    peers'."""

    codec: str
    grain: int
    reducible: bool
    bytes_per_element: float
    encode_gb_s: float
    """GB/s of fp32 values."""
    decode_gb_s: float
    encode_of_copy: float
    """The rate as a fraction of that of a plain copy, in the same run."""
    decode_of_copy: float
    rms_error: float
    mean_error: float
    result_codec: str
    two_peers_rms_error: float
    two_peers_mean_error: float


def measure(
    names: Sequence[str],
    elements: int,
    *,
    repeats: int = REPEATS,
    advance: Callable[[str], None] = lambda _: None,
) -> tuple[float, list[CodecFigures]]:
    """Return (GB/s of a plain copy, the figures of each codec)."""
    random = np.random.default_rng(SEED)
    mine, other = random.standard_normal((2, elements), np.float32)
    back = np.zeros_like(mine)
    codecs = [codec(name) for name in names]
    payloads = [bytearray(one.encoded_bytes(elements)) for one in codecs]
    copies: list[float] = []
    encodes: dict[str, list[float]] = {name: [] for name in names}
    decodes: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats + 1):  # The first turn touches all pages, and does not count.
        copies.append(cpu_seconds(lambda: np.copyto(back, mine)))
        for one, payload in zip(codecs, payloads, strict=True):
            encodes[one.name].append(cpu_seconds(lambda: one.encode(mine, payload)))  # noqa: B023
            decodes[one.name].append(cpu_seconds(lambda: one.decode(payload, back)))  # noqa: B023
        advance(f"turn {turn + 1}")
    rate = mine.nbytes / 1e9
    copy_gb_s = rate / statistics.median(copies[1:])
    results: list[CodecFigures] = []
    for one, payload in zip(codecs, payloads, strict=True):
        encode = rate / statistics.median(encodes[one.name][1:])
        decode = rate / statistics.median(decodes[one.name][1:])
        one.decode(payload, back)
        rms, mean = _errors(back, mine)
        result_name = RESULT_CODECS.get(one.name, "bf16")
        two_rms, two_mean = _two_peers(one, result_name, mine, other)
        results.append(
            CodecFigures(
                codec=one.name,
                grain=one.grain,
                reducible=one.reducible,
                bytes_per_element=len(payload) / elements,
                encode_gb_s=encode,
                decode_gb_s=decode,
                encode_of_copy=encode / copy_gb_s,
                decode_of_copy=decode / copy_gb_s,
                rms_error=rms,
                mean_error=mean,
                result_codec=result_name,
                two_peers_rms_error=two_rms,
                two_peers_mean_error=two_mean,
            )
        )
    return copy_gb_s, results


def table(results: Sequence[CodecFigures], copy_gb_s: float) -> str:
    """The results as Markdown; docs/codecs.md has the same figures."""
    lines = [
        f"plain copy: {copy_gb_s:.1f} GB/s; in brackets the fraction of it",
        "",
        "| codec | bytes / value | encode GB/s | decode GB/s | rms error | mean error "
        "| result in | rms, 2 peers | mean, 2 peers |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in results:
        encode = f"{one.encode_gb_s:.2f} ({one.encode_of_copy:.2f})"
        decode = f"{one.decode_gb_s:.2f} ({one.decode_of_copy:.2f})"
        lines.append(
            f"| {one.codec} | {one.bytes_per_element:.3f} | {encode} | {decode} "
            f"| {one.rms_error:.5f} | {one.mean_error:+.1e} | {one.result_codec or 'gather'} "
            f"| {one.two_peers_rms_error:.5f} | {one.two_peers_mean_error:+.1e} |"
        )
    return "\n".join(lines)


def main(
    mib: Annotated[int, typer.Option(help="MiB of fp32 values.", min=1, max=1024)] = 64,
    only: Annotated[str, typer.Option(help="Codecs, comma-separated; empty: all.")] = "",
    repeats: Annotated[int, typer.Option(help="Timed turns of each codec.", min=1)] = REPEATS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Bytes, CPU time and error of each codec.

    python -m benchmarks codecs

    python -m benchmarks codecs --only int8,fp4 --repeats 25

    python -m benchmarks codecs --mib 256 --json
    """
    names = only.split(",") if only else list(known_codecs())
    for name in names:
        codec(name)  # Raises ConfigError with the known names, before measuring.
    with bar("codecs", repeats + 1) as (advance, _):
        copy_gb_s, results = measure(names, mib << 18, repeats=repeats, advance=advance)
    told = {"mib": mib, "repeats": repeats, "machine": machine(), "copy_gb_s": copy_gb_s}
    if as_json:
        print(json.dumps({**told, "results": [asdict(result) for result in results]}))
    else:
        print(table(results, copy_gb_s))
        print("\n" + ", ".join(f"{name} {value}" for name, value in machine().items()))


def _two_peers(one: Codec, result_name: str, mine: F32, other: F32) -> tuple[float, float]:
    """Errors of a round of two peers: both contributions are decoded, and their mean is encoded
    again."""
    decoded: list[F32] = []
    for values in (mine, other):
        decoded.append(_there_and_back(one, values))
    mean = np.empty_like(mine)
    weighted_mean(decoded, [1, 1], mean)
    if result_name:
        mean = _there_and_back(codec(result_name), mean)
    exact = np.empty_like(mine)
    weighted_mean([mine, other], [1, 1], exact)
    return _errors(mean, exact)


def _there_and_back(one: Codec, values: F32) -> F32:
    payload = bytearray(one.encoded_bytes(values.size))
    one.encode(values, payload)
    back = np.empty_like(values)
    one.decode(payload, back)
    return back


def _errors(values: F32, exact: F32) -> tuple[float, float]:
    """(root mean square, mean) of the error."""
    error = np.subtract(values, exact, dtype=np.float64)
    return float(np.sqrt(np.square(error).mean())), float(error.mean())
