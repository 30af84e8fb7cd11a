"""Memory of one exchange: `python -m benchmarks memory --mib 64 --codec int8`.

Real daemons on this machine. The memory of daemons with the smallest fragment is subtracted. With
--methods: the memory of a daemon in runs of whole methods, in bytes a parameter (footprint.py).
Must NOT count the ranks: they stand for the training.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import footprint
from benchmarks.exchanging import lowcomm_system, proc
from benchmarks.exchanging.network import Conditions, network
from benchmarks.exchanging.payloads import payloads, sign_of
from benchmarks.exchanging.systems import ExchangeOrder, Side, SystemPeer
from benchmarks.machine import machine
from protocols.types import LowcommError
from sims.terminal import Advance, bar, run

TIMEOUT_S = 120.0
"""Timeout of one exchange."""
SETTLED = 10
"""After so many exchanges a peer has all the memory it needs, and should not grow any more."""
STATE_COPIES = 2
"""Outer parameters and their momentum."""
MOMENTUM = "run.method.outer_momentum=0.9"
"""Runs have a momentum; without this setting the benchmark would keep none."""
MIB = 1 << 20
Q = typer.Option


@dataclass(frozen=True, slots=True)
class Held:
    """Memory of the peer that needs most, in bytes."""

    peak: int
    """Peak resident memory, with the memory shared with ranks."""
    settled: int
    """Resident after SETTLED exchanges ..."""
    last: int
    """... and after all exchanges."""
    mappings: tuple[tuple[str, int, int], ...]
    """The larger mappings at the end: (mapped file, "" for private memory; bytes; resident
    bytes)."""


def main(
    peers: Annotated[int, Q(help="Number of peers.", min=2, max=16)] = 2,
    mib: Annotated[int, Q(help="MiB of fp32 contributed by each peer.", min=4, max=1024)] = 64,
    codec: Annotated[str, Q(help="Codec of contributions.")] = "fp32",
    encrypted: Annotated[bool, Q("--encrypted", help="Over encrypted links.")] = False,
    rounds: Annotated[int, Q(help="Number of exchanges.", min=SETTLED)] = 20,
    methods: Annotated[
        bool, Q("--methods", help="Measure runs of whole methods, in bytes a parameter.")
    ] = False,
    only: Annotated[str, Q(help="With --methods: some of them, comma-separated.")] = "",
    in_files: Annotated[
        bool, Q("--in-files", help='With --methods: node.outer_state = "file".')
    ] = False,
    as_json: Annotated[bool, Q("--json", help="Print one JSON object.")] = False,
) -> None:
    """The memory of a peer beyond its outer state, in fragments, and its growth.

    \b
    Examples:
      python -m benchmarks memory
      python -m benchmarks memory --codec int8 --encrypted --json
      python -m benchmarks memory --mib 4 --rounds 500
      python -m benchmarks memory --methods --mib 256 --json
      python -m benchmarks memory --methods --only diloco,streaming --in-files --mib 100
    """
    if methods:
        _tell_methods(mib, only, in_files=in_files, as_json=as_json)
        return
    with bar("exchanges", SETTLED + rounds) as (advance, tell):
        tell("daemons with almost nothing to exchange: the memory of the program")
        bare = asyncio.run(_play(peers, 1, codec, SETTLED, advance, encrypted=encrypted))
        tell(f"daemons with {mib} MiB")
        held = asyncio.run(_play(peers, mib, codec, rounds, advance, encrypted=encrypted))
    told: dict[str, object] = {
        "peers": peers,
        "mib": mib,
        "codec": codec,
        "encrypted": encrypted,
        "rounds": rounds,
        "machine": machine(),
        "program_bytes": bare.peak,
        **asdict(held),
        "fragments": fragments(held, bare, mib),
        "growth": held.last / held.settled - 1,
    }
    if as_json:
        print(json.dumps(told))
        return
    print(f"{told['fragments']:.2f} fragments beyond the outer state, at most")
    print(f"{told['growth']:+.2%} from exchange {SETTLED} to exchange {rounds}")
    for name, size, resident in held.mappings:
        print(f"{size / MIB:8.1f} MiB, {resident / MIB:8.1f} resident: {name or 'its own'}")


def _tell_methods(mib: int, only: str, *, in_files: bool, as_json: bool) -> None:
    names = footprint.chosen(only)
    with bar("runs", 2 * len(names)) as (advance, _):
        found = footprint.measure(mib, advance, names, in_files=in_files)
    if as_json:
        told = {
            "mib": mib,
            "peers": footprint.PEERS,
            "in_files": in_files,
            "machine": machine(),
            "results": [asdict(each) for each in found],
        }
        print(json.dumps(told))
        return
    for each in found:
        print(
            f"{each.method}: {each.bytes_per_parameter:.2f} bytes a parameter, "
            f"{each.peak_bytes_per_parameter:.2f} at the peak, "
            f"{each.needed_bytes_per_parameter:.2f} needed to start"
        )


def fragments(held: Held, bare: Held, mib: int) -> float:
    """Peak memory beyond program and outer state, in fp32 fragments of `mib`."""
    return (held.peak - bare.peak) / ((mib - 1) * MIB) - STATE_COPIES


def mappings(lines: Iterable[str], *, larger_than: int) -> list[tuple[str, int, int]]:
    """(mapped file, bytes, resident bytes), from the lines of /proc/PID/smaps, largest resident
    first; only those with more than `larger_than` bytes resident."""
    found: list[tuple[str, int, int]] = []
    name, size = "", 0
    for line in lines:
        words = line.split()
        if not words[0].endswith(":"):
            name = " ".join(words[5:])
        elif words[0] == "Size:":
            size = 1024 * int(words[1])
        elif words[0] == "Rss:" and 1024 * int(words[1]) > larger_than:
            found.append((name, size, 1024 * int(words[1])))
    return sorted(found, key=lambda each: -each[2])


async def _play(
    peers: int, mib: int, codec: str, rounds: int, advance: Advance, *, encrypted: bool
) -> Held:
    system = lowcomm_system.system(overrides=(MOMENTUM,))
    with (
        tempfile.TemporaryDirectory(prefix="lowcomm-") as directory,
        payloads(peers, mib << 18) as made,
        network(Conditions(), peers) as own,
    ):
        order = ExchangeOrder(
            peers=peers,
            codec=system.codec(codec),
            payloads=made,
            network=own,
            directory=Path(directory),
            python=sys.executable,
            encrypted=encrypted,
        )
        async with system.start(order) as side:
            settled = await _exchange(side, 0, SETTLED, advance)
            last = await _exchange(side, SETTLED, rounds, advance)
            peaks = [proc.memory(peer.child.pid).peak_rss for peer in side.peers]
            return Held(max(peaks), settled, last, _mapped(side.peers[0], mib))


async def _exchange(side: Side, first: int, end: int, advance: Callable[[str], None]) -> int:
    """Run these exchanges; return the resident bytes of the largest peer afterwards."""
    for number in range(first, end):
        await side.gate.ask({"do": "prepare", "sign": sign_of(number)}, within_s=TIMEOUT_S)
        await side.gate.ask({"do": "exchange"}, within_s=TIMEOUT_S)
        advance("")
    return max(proc.memory(peer.child.pid).rss for peer in side.peers)


def _mapped(peer: SystemPeer, mib: int) -> tuple[tuple[str, int, int], ...]:
    with open(f"/proc/{peer.child.pid}/smaps", encoding="utf-8") as file:
        return tuple(mappings(file, larger_than=mib * MIB // 8))


if __name__ == "__main__":
    try:
        run(main)
    except LowcommError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
