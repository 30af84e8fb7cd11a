"""Measures the links that each means gives on this machine, beside the requested ones (`--check`).

Must NOT judge: a busy machine gives less, and the reader has to see it.
"""

import json
import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lowcomm.quantities import RATE, TIME, show
from peers.processes import dying_with_us, own_module
from sims.wan.link import WanError, WanLink
from sims.wan.network import MEANS, Means, Place, Wan, why_not
from sims.wan.probe import READY

PINGS = 20
DATAGRAMS = 5000
PROBE_TIMEOUT_S = 120.0
CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
LONG = WanLink(rate_bps=1e8, delay_s=0.05)
CASES: dict[Means, tuple[WanLink, ...]] = {
    "netns": (
        LONG,
        WanLink(rate_bps=1e8, delay_s=0.05, loss=0.01),
        WanLink(rate_bps=1e9, delay_s=0.005, jitter_s=0.001),
        WanLink(),
    ),
    "proxy": (
        LONG,
        WanLink(rate_bps=1e8, delay_s=0.05, loss=0.01),
        WanLink(rate_bps=1e9, delay_s=0.005, jitter_s=0.001),
        WanLink(),
    ),
    "loopback": (WanLink(rate_bps=1e9), WanLink()),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One link, two peers, one TCP stream from the first to the second."""

    means: Means
    asked: WanLink
    """The requested link, in both directions."""
    rtt_s: float
    """Median round trip in seconds."""
    rtt_min_s: float
    rtt_max_s: float
    rate_bps: float
    """Bits per second that the receiver got in the second half of the time, without headers."""
    loss: float | None
    """Lost share of datagrams; under proxy, which carries none, of the packets that the relay
    counts."""
    cpu_s_per_gb: float | None
    """CPU seconds of the process in the middle for each GB; None: tbf has no process."""
    late_max_s: float


def check(
    means: Sequence[Means] = MEANS,
    *,
    seconds: float = 4.0,
    on_measured: Callable[[Measured], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure every means that works here, one after the other."""
    results: list[Measured] = []
    missing: dict[str, str] = {}
    for each in means:
        if why := why_not(each):
            missing[each] = why
            continue
        for link in CASES[each]:
            results.append(measure(each, link, seconds=seconds))
            on_measured(results[-1])
    return {
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()},
        "congestion_control": CONGESTION.read_text().strip() if CONGESTION.exists() else "",
        "seconds": seconds,
        "not_here": missing,
        "results": [asdict(result) for result in results],
    }


def measure(means: Means, link: WanLink, *, seconds: float) -> Measured:
    """Measure one link with two probes. Raises WanError if a probe fails."""
    datagrams = 0 if means == "proxy" else DATAGRAMS
    with Wan(link, peers=2, means=means) as wan:
        asker, server = wan.places
        with _start(server, "serve", server.listen) as serving:
            try:
                assert serving.stdout is not None
                if serving.stdout.readline().strip() != READY:
                    raise WanError("the probe does not listen: see its output on stderr")
                target = asker.dialled[server.peer]
                pinged = _ask(asker, target, "--pings", str(PINGS), "--seconds", "0")
                before = wan.usage()
                sent = _ask(asker, target, "--pings", "0", "--seconds", str(seconds))
                after = wan.usage()
                counted = ["--pings", "0", "--seconds", "0", "--datagrams", str(datagrams)]
                loss = _ask(asker, target, *counted).get("loss")
                if means == "proxy":
                    forth = wan.counters()[0, 1]
                    loss = forth.lost / forth.packets
            finally:
                serving.kill()
    cpu_s = after.cpu_s - before.cpu_s
    return Measured(
        means=means,
        asked=link,
        rtt_s=pinged["rtt_s"],
        rtt_min_s=pinged["rtt_min_s"],
        rtt_max_s=pinged["rtt_max_s"],
        rate_bps=8 * sent["bytes_per_s"],
        loss=loss,
        cpu_s_per_gb=None if means == "loopback" else cpu_s / (sent["received_bytes"] / 1e9),
        late_max_s=after.late_max_s,
    )


def table(report: dict[str, Any]) -> str:
    """The report as a Markdown table."""
    lines = [
        "| means | line asked, measured | round trip asked, measured (least, most) "
        "| loss asked, measured | CPU-s per GB |",
        "|---|---|---|---|---|",
    ]
    lines += [row(result) for result in report["results"]]
    lines += [f"{means} does not work here: {why}" for means, why in report["not_here"].items()]
    return "\n".join(lines)


def row(result: dict[str, Any]) -> str:
    asked = result["asked"]
    line = show(asked["rate_bps"], RATE) if asked["rate_bps"] else "no limit"
    trip = show(2 * asked["delay_s"], TIME)
    if asked["jitter_s"]:
        trip += f" +-{show(2 * asked['jitter_s'], TIME)}"
    found = [show(result[f"rtt{which}_s"], TIME) for which in ("", "_min", "_max")]
    loss = "-" if result["loss"] is None else f"{result['loss']:.2%}"
    cpu = "-" if result["cpu_s_per_gb"] is None else f"{result['cpu_s_per_gb']:.2f}"
    return (
        f"| {result['means']} | {line}, {show(result['rate_bps'], RATE)} "
        f"| {trip}, {found[0]} ({found[1]}, {found[2]}) "
        f"| {asked['loss']:.2%}, {loss} | {cpu} |"
    )


def _start(place: Place, *arguments: str) -> "subprocess.Popen[str]":
    command = place.command([*own_module("sims.wan.probe"), *arguments])
    return subprocess.Popen(
        dying_with_us(command),
        env={**os.environ, **place.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )


def _ask(place: Place, target: str, *arguments: str) -> dict[str, float]:
    with _start(place, "ask", target, *arguments) as asking:
        try:
            out, _ = asking.communicate(timeout=PROBE_TIMEOUT_S)
        except BaseException:
            asking.kill()
            raise
    if asking.returncode != 0:
        raise WanError("a probe failed: see its output on stderr")
    return json.loads(out)
