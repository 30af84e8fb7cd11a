"""The time of an exchange with more and more peers: `python -m benchmarks peers --mib 16`.

Each number of peers is a separate run of `benchmarks exchange`. In theory the time grows with the
bytes of all peers, at the rate of their shared line or, without one, at the rate that the smallest
number of peers reached on the shared cores. Must NOT explain deviations.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.machine import machine
from lowcomm.codecs import codec as codec_of
from lowcomm.reports import Series, line_chart, svg_file
from peers.processes import dying_with_us
from protocols.types import ConfigError, LowcommError
from sims.terminal import bar, run
from sims.wan import RATE, parse

PEERS_MAX = 16
TIMEOUT_S = 1200.0
WIDTH, HEIGHT = 640, 320
STYLE = (
    "text{font:12px sans-serif;fill:#777}.end{text-anchor:end}.mid{text-anchor:middle}"
    ".grid{stroke:#bbb}.line{fill:none;stroke-width:2}"
    ".line.measured{stroke:#0072b2}text.measured{fill:#0072b2}"
    ".line.theory{stroke:#d55e00;stroke-dasharray:6 4}text.theory{fill:#d55e00}"
)
Q = typer.Option


def main(
    numbers: Annotated[str, Q("--peers", help="Numbers of peers, comma-separated.")] = "2,4,8,16",
    mib: Annotated[int, Q(help="MiB of fp32 contributed by each peer.", min=1, max=256)] = 16,
    codec: Annotated[
        str, Q(help="Codec of contributions and results: fp32, bf16 or int8.")
    ] = "fp32",
    line: Annotated[str, Q(help="Rate of the shared line, as in 1gbit; empty: loopback.")] = "",
    rounds: Annotated[int, Q(help="Timed exchanges for each number of peers.", min=1)] = 5,
    plot: Annotated[Path | None, Q(help="FILE.svg: write a chart there.")] = None,
    as_json: Annotated[bool, Q("--json", help="Print one JSON object.")] = False,
) -> None:
    """The time to exchange the same payload between 2, 4, 8 and 16 peers, measured and in theory.

    \b
    Examples:
      python -m benchmarks peers
      python -m benchmarks peers --codec int8 --peers 2,4 --line 1gbit --mib 64 --json
      python -m benchmarks peers --plot docs/exchange-peers.svg
    """
    rate_bps = parse(line, RATE, what="--line") if line else None
    counts = _counts(numbers)
    rows: list[dict[str, Any]] = []
    with bar("numbers of peers", len(counts)) as (advance, tell):
        for peers in counts:
            tell(f"{peers} peers")
            typed = ["--peers", str(peers), "--mib", str(mib), "--codec", codec]
            typed += ["--rounds", str(rounds), "--warmup", "1", *(["--line", line] if line else ())]
            rows.append({"peers": peers, **row(exchange(typed)["results"][0])})
            carried = moved_bytes(peers, mib << 18, codec)
            first = rows[0]
            rate = moved_bytes(counts[0], mib << 18, codec) / first["data_path_s"]
            rows[-1]["theory_s"] = carried / (rate_bps / 8 if rate_bps else rate)
            advance(
                f"{peers}: {rows[-1]['data_path_s']:.2f} s, {rows[-1]['theory_s']:.2f} expected"
            )
    told = {"mib": mib, "codec": codec, "line_bps": rate_bps, "machine": machine(), "results": rows}
    if plot is not None:
        plot.write_text(
            chart(rows, what=f"{mib} MiB of {codec}{line and ', ' + line}"), encoding="utf-8"
        )
    if as_json:
        print(json.dumps(told))
        return
    print("| peers | exchange s | data path s | in theory s | data path / theory | CPU s |")
    print("|---|---|---|---|---|---|")
    for one in rows:
        print(
            f"| {one['peers']} | {one['median_s']:.3f} | {one['data_path_s']:.3f} "
            f"| {one['theory_s']:.3f} | {one['data_path_s'] / one['theory_s']:.3f} "
            f"| {one['cpu_s']:.2f} |"
        )


def moved_bytes(peers: int, elements: int, codec: str) -> int:
    """Bytes from peer to peer: each peer owns an equal part, so N - 1 contributions and N - 1
    results."""
    return 2 * (peers - 1) * codec_of(codec).encoded_bytes(elements)


def exchange(typed: Sequence[str]) -> dict[str, Any]:
    """Run `benchmarks exchange` for lowcomm alone, and return its JSON. Raises LowcommError."""
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "exchange",
        "--against",
        "none",
        "--json",
        *typed,
    ]
    try:
        done = subprocess.run(
            dying_with_us(command),
            stdout=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LowcommError(f"{' '.join(command[1:])}: not done after {TIMEOUT_S:g} s") from None
    if done.returncode:
        raise LowcommError(f"{' '.join(command[1:])} failed; its output is above")
    return json.loads(done.stdout)


def row(result: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one number of peers."""
    names = ("median_s", "min_s", "data_path_s", "cpu_s", "wire_bytes", "line_share")
    return {name: result[name] for name in names}


def chart(rows: Sequence[Mapping[str, Any]], *, what: str) -> str:
    """The SVG file of the results."""
    series = [
        Series(label, css, [(float(one["peers"]), float(one[field])) for one in rows])
        for label, css, field in (
            ("in theory", "theory", "theory_s"),
            ("measured", "measured", "data_path_s"),
        )
    ]
    drawn = line_chart(
        series, width=WIDTH, height=HEIGHT, x_label=f"peers ({what})", y_label="seconds"
    )
    return svg_file(drawn, style=STYLE)


def _counts(typed: str) -> list[int]:
    """Parse the numbers of peers. Raises ConfigError."""
    words = typed.split(",")
    if not all(word.isdecimal() and 2 <= int(word) <= PEERS_MAX for word in words):
        raise ConfigError(f"--peers {typed}: give numbers from 2 to {PEERS_MAX}, as in 2,4,8")
    return sorted({int(word) for word in words})


if __name__ == "__main__":
    try:
        run(main)
    except LowcommError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
