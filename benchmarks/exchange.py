"""The cost of one exchange, beside others: `python -m benchmarks exchange --peers 2 --mib 64`.

Real processes on this machine take turns in one run. Must NOT compare figures of two runs: the
machine may be busy.
"""

import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.exchanging import lowcomm_system
from benchmarks.exchanging.figures import SystemResult
from benchmarks.exchanging.network import Conditions, default_congestion
from benchmarks.exchanging.others import others
from benchmarks.exchanging.payloads import payloads
from benchmarks.exchanging.rounds import RoundsPlan, check_memory, compare
from benchmarks.exchanging.systems import System, prepared
from benchmarks.machine import machine
from peers.processes import available_memory_bytes
from protocols.types import ConfigError, LowcommError
from sims.terminal import Advance, Tell, bar, run
from sims.wan import RATE, SHARE, TIME, parse

ROUNDS = 9
PEERS_MAX = 16
EXIT_TERMINATED = 143
Q = typer.Option


def main(
    peers: Annotated[int, Q(help="Number of peers.", min=2, max=PEERS_MAX)] = 2,
    mib: Annotated[int, Q(help="MiB of fp32 contributed by each peer.", min=1, max=1024)] = 64,
    codec: Annotated[str, Q(help="If a system has it; int8,fp32: lowcomm with both.")] = "fp32",
    against: Annotated[
        str, Q(help="gloo,tcp,bare,torchft,hivemind; lowcomm itself, but clear,unchecked; or none.")
    ] = "gloo",
    line: Annotated[str, Q(help="Rate of the shared line, or with --rtt of each line.")] = "",
    rtt: Annotated[str, Q(help="Round-trip time, as in 100ms.")] = "0",
    loss: Annotated[str, Q(help="Share of lost packets, as in 1%.")] = "0",
    slow: Annotated[str, Q(help="Rate of the last peer's lines, with --rtt, as in 20mbit.")] = "",
    congestion: Annotated[str, Q(help="reno, cubic or bbr; empty: the machine's.")] = "",
    encrypted: Annotated[bool, Q("--encrypted", help="Over encrypted links.")] = False,
    rounds: Annotated[int, Q(help="Timed exchanges of each system.", min=1)] = ROUNDS,
    warmup: Annotated[int, Q(help="First exchanges of each system, not timed.", min=0)] = 3,
    idle: Annotated[str, Q(help="Pause before each exchange, as in 30s.")] = "0",
    deadline: Annotated[str, Q(help="Timeout of an exchange; it ends the system.")] = "120s",
    as_json: Annotated[bool, Q("--json", help="Print one JSON object.")] = False,
) -> None:
    """The cost of one exchange of a model between peers, with lowcomm and with other systems.

    Timed from the last contribution handed over to the last result in a buffer, commit included.
    Each system has a network namespace of its own where this machine allows it (root).

    \b
    Examples:
      python -m benchmarks exchange
      python -m benchmarks exchange --peers 4 --codec int8 --json
      python -m benchmarks exchange --codec fp32,int8 --peers 4 --against none
      python -m benchmarks exchange --encrypted --against clear,gloo
      python -m benchmarks exchange --peers 3 --against unchecked
      python -m benchmarks exchange --line 1gbit --congestion reno
      python -m benchmarks exchange --line 200mbit --rtt 100ms --loss 0.1% --mib 16 --encrypted
      python -m benchmarks exchange --peers 4 --line 400mbit --slow 40mbit --rtt 20ms --encrypted
    """
    conditions = Conditions(
        rate_bps=parse(line, RATE, what="--line") if line else None,
        rtt_s=parse(rtt, TIME, what="--rtt"),
        loss=parse(loss, SHARE, what="--loss"),
        slow_bps=parse(slow, RATE, what="--slow") if slow else None,
        congestion=congestion,
    )
    conditions.check()
    _check_encryption(conditions, encrypted=encrypted and "clear" not in against.split(","))
    first, *more = dict.fromkeys(codec.split(","))
    plan = RoundsPlan(
        encrypted=encrypted,
        peers=peers,
        mib=mib,
        codec=first,
        conditions=conditions,
        warmup=warmup,
        rounds=rounds,
        deadline_s=parse(deadline, TIME, what="--deadline"),
        idle_s=parse(idle, TIME, what="--idle"),
    )
    ours = [lowcomm_system.system(), *map(lowcomm_system.system, more)]
    for one in ours:
        one.codec(first)  # Raises ConfigError before anything takes time.
    systems = [*ours, *chosen(against)]
    check_memory(systems, plan, free_bytes=available_memory_bytes())
    results = _measured(systems, plan)
    told = {**_told(plan), "machine": machine(), "results": [asdict(one) for one in results]}
    if as_json:
        print(json.dumps(told))
    else:
        _show(results)
    for one in results[: len(ours)]:
        if one.error:
            raise LowcommError(one.error)


def chosen(names: str) -> list[System]:
    """The systems to compare with. Raises ConfigError."""
    if names in ("", "none"):
        return []
    known = {
        **others(),
        "clear": lowcomm_system.in_the_clear(),
        "unchecked": lowcomm_system.unchecked(),
    }
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        raise ConfigError(f"--against {unknown[0]}: give some of {', '.join(known)}, or none")
    return [known[name] for name in dict.fromkeys(names.split(","))]


def table(results: Sequence[SystemResult]) -> Table:
    """The results for people; a figure that no system has is left out."""
    shown = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    columns = [
        column
        for column in _COLUMNS
        if any(getattr(one, column.field) is not None for one in results)
    ]
    shown.add_column("system")
    shown.add_column("codec")
    for column in columns:
        shown.add_column(column.heading, justify="right")
    shown.add_column("same\nbits")
    for one in results:
        same = {True: "yes", False: "no", None: ""}[one.bit_identical]
        shown.add_row(one.system, one.codec, *(column.text(one) for column in columns), same)
    return shown


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of the table of Results."""

    heading: str
    field: str
    form: str = "{:.4f}"
    unit: float = 1.0

    def text(self, result: SystemResult) -> str:
        value = getattr(result, self.field)
        return "" if value is None else self.form.format(value / self.unit)


_COLUMNS = (
    _Column("median\ns", "median_s"),
    _Column("min\ns", "min_s"),
    _Column("data\ns", "data_path_s"),
    _Column("CPU\ns", "cpu_s"),
    _Column("sent\nMB", "wire_bytes", "{:.0f}", 1e6),
    _Column("share\nof line", "line_share", "{:.1%}"),
    _Column("payload\nof line", "payload_share", "{:.1%}"),
    _Column("in data\npath", "data_path_share", "{:.1%}"),
    _Column("in the\nfirst", "first_share", "{:.1%}"),
    _Column("peak\nMiB", "peak_rss_bytes", "{:.0f}", 2.0**20),
    _Column("rms\nerror", "rms_error", "{:.1e}"),
)


def _show(results: Sequence[SystemResult]) -> None:
    console = Console()
    console.print(table(results))
    for one in results:
        console.print(one.error or f"{one.system}: {one.note}", markup=False, highlight=False)
    console.print(", ".join(f"{name} {value}" for name, value in machine().items()))


def _check_encryption(conditions: Conditions, *, encrypted: bool) -> None:
    """Raise ConfigError if lowcomm must encrypt under these conditions but is told not to."""
    if conditions.routed and not encrypted:
        raise ConfigError(
            "--rtt and --loss put each peer into a network of its own, and between networks "
            "lowcomm always encrypts: add --encrypted, and leave clear out of --against"
        )


def _told(plan: RoundsPlan) -> dict[str, object]:
    """The settings of the measurement, for the JSON output."""
    conditions = plan.conditions
    return {
        "peers": plan.peers,
        "mib": plan.mib,
        "codec": plan.codec,
        "encrypted": plan.encrypted,
        "line_bps": conditions.rate_bps,
        "rtt_s": conditions.rtt_s,
        "loss": conditions.loss,
        "slow_bps": conditions.slow_bps,
        "tcp_congestion_control": conditions.congestion or default_congestion(),
        "line_shared": conditions.shared_rate_bps is not None,
        "idle_s": plan.idle_s,
        "rounds": plan.rounds,
        "warmup_rounds": plan.warmup,
        "wire_bytes_from": "the network devices of each system's own namespaces",
    }


def _measured(systems: Sequence[System], plan: RoundsPlan) -> list[SystemResult]:
    with bar("exchanges", len(systems) * (plan.warmup + plan.rounds)) as (advance, tell):
        ready = [prepared(one, codec=plan.codec, tell=tell) for one in systems]
        tell(f"starting {', '.join(one.name for one in ready)}: {plan.peers} peers each")
        try:
            return asyncio.run(_play(ready, plan, advance, tell))
        except asyncio.CancelledError:
            sys.exit(EXIT_TERMINATED)


async def _play(
    systems: Sequence[System], plan: RoundsPlan, advance: Advance, tell: Tell
) -> list[SystemResult]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with (
        tempfile.TemporaryDirectory(prefix="lowcomm-") as directory,
        payloads(plan.peers, plan.elements) as made,
    ):
        return await compare(systems, plan, made, Path(directory), advance=advance, tell=tell)


if __name__ == "__main__":
    try:
        run(main)
    except LowcommError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
