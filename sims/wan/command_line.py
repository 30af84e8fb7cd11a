"""`python -m sims.wan`: runs a command once for each peer of an emulated network, or measures the
network."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from lowcomm.quantities import RATE, SHARE, TIME, parse, show
from peers.processes import SIGNALLED, Child, dying_with_us, shell_status, start_child
from protocols.types import ConfigError
from sims.wan.check import check, row, table
from sims.wan.link import WanLink
from sims.wan.network import MEANS, Means, Place, Wan, why_not

STOP_TIMEOUT_S = 3.5
"""Seconds from SIGTERM to SIGKILL, as in `lowcomm sim`."""
Q = typer.Option


def wan(
    command: Annotated[
        list[str] | None, typer.Argument(help="Command to run once for each peer, after --.")
    ] = None,
    peers: Annotated[int, Q(help="Number of peers.", min=2)] = 2,
    means: Annotated[
        str, Q(help="netns, proxy or loopback.  [default: netns where it works, else proxy]")
    ] = "",
    rate: Annotated[str, Q(help="Line rate of each direction: 100mbit; unlimited.")] = "unlimited",
    delay: Annotated[str, Q(help="One-way delay: 50ms.")] = "0",
    jitter: Annotated[str, Q(help="Variation of the delay, up and down: 5ms.")] = "0",
    loss: Annotated[str, Q(help="Share of packets lost: 1%.")] = "0",
    queue: Annotated[str, Q(help="Packets that would wait longer are dropped.")] = "50ms",
    seed: Annotated[int, Q(help="Seed of losses and jitter.")] = 0,
    loopback_addresses: Annotated[
        bool, Q("--loopback-addresses", help="Under netns: use 127.77.0.N, for plaintext peers.")
    ] = False,
    measure: Annotated[
        bool, Q("--check", help="Measure what each means gives here; needs no COMMAND.")
    ] = False,
    seconds: Annotated[float, Q(help="Seconds of each throughput test of --check.", min=0.5)] = 4.0,
    as_json: Annotated[bool, Q("--json", help="With --check: print the figures as JSON.")] = False,
) -> None:
    """Run real processes on this machine as if a wide-area network lay between them.

    COMMAND runs once for each peer. When all have ended, the network is removed.

    \b
    In the environment of each:
      LOWCOMM_PEER       its number, from 0; LOWCOMM_PEERS how many there are
      LOWCOMM_LISTEN     HOST:PORT to listen on
      LOWCOMM_ADVERTISE  where all others may dial it
      LOWCOMM_ADDRESSES  where it dials each peer: HOST:PORT,HOST:PORT,...

    \b
    The three means:
      netns     a namespace for each, a router between them: real TCP; root
      proxy     relayed TCP streams: anywhere
      loopback  one namespace, its loopback shaped by tbf: a rate only; root

    \b
    Examples:
      python -m sims.wan --peers 3 --rate 100mbit --delay 50ms -- ./peer.sh
      python -m sims.wan --loss 1% -- sh -c 'echo $LOWCOMM_LISTEN'
      python -m sims.wan --check --json
    """
    chosen = _means(means)
    if measure:
        if command:
            raise ConfigError("--check runs probes of its own: leave the command out")
        _check(chosen, seconds=seconds, as_json=as_json)
        return
    if not command:
        raise ConfigError("nothing to run: end with -- COMMAND, or give --check")
    line = WanLink(
        rate_bps=None if rate == "unlimited" else parse(rate, RATE, what="--rate"),
        delay_s=parse(delay, TIME, what="--delay"),
        jitter_s=parse(jitter, TIME, what="--jitter"),
        loss=parse(loss, SHARE, what="--loss"),
        queue_s=parse(queue, TIME, what="--queue"),
    )
    chosen = chosen or _best()
    own = loopback_addresses
    with Wan(line, peers=peers, means=chosen, seed=seed, loopback_addresses=own) as network:
        code = asyncio.run(_run(network.places, command))
        _tell(network)
    sys.exit(code)


def _means(text: str) -> Means | None:
    if not text:
        return None
    if text not in MEANS:
        raise ConfigError(f"--means {text!r}: give one of {', '.join(MEANS)}")
    return text


def _best() -> Means:
    why = why_not("netns")
    if why:
        sys.stderr.write(f"wan: using --means proxy, since netns does not work: {why}\n")
    return "proxy" if why else "netns"


async def _run(places: Sequence[Place], command: Sequence[str]) -> int:
    """Run the command of every peer until all have ended or a signal comes; returns the first
    status that is not 0."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(number: int) -> None:
        if not stopped.done():
            stopped.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    children: list[Child] = []
    try:
        for place in places:
            environment = {**os.environ, **place.environment}
            argv = dying_with_us(place.command(command))
            children.append(start_child(argv, env=environment))
        ended = asyncio.ensure_future(asyncio.wait([_waiting(child) for child in children]))
        await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            await _terminate(children)
            return SIGNALLED + stopped.result()
    finally:
        await asyncio.gather(*(child.stop() for child in children))
    codes = [child.returncode or 0 for child in children]
    return next((shell_status(code) for code in codes if code), 0)


def _waiting(child: Child) -> "asyncio.Task[int]":
    return asyncio.ensure_future(child.wait())


async def _terminate(children: Sequence[Child]) -> None:
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await asyncio.gather(*(child.wait() for child in children))


def _tell(network: Wan) -> None:
    """Print the counters of each link to stderr: stdout belongs to the command."""
    for (sender, receiver), link in network.counters().items():
        if not link.packets:
            continue
        which = f"{sender} -> {receiver}" if sender != receiver else "all"
        waited = f"{show(link.queue_mean_s, TIME)}, at most {show(link.queue_max_s, TIME)}"
        sys.stderr.write(
            f"wan: {which}: {link.bytes} bytes in {link.packets} packets, {link.lost} lost, "
            f"{link.overflowed} dropped by the queue, {link.cut} cut; mean wait {waited}\n"
        )
    late_max_s = network.usage().late_max_s
    if late_max_s:
        sys.stderr.write(f"wan: the latest delivery was {show(late_max_s, TIME)} late\n")


def _check(means: Means | None, *, seconds: float, as_json: bool) -> None:
    chosen = (means,) if means else MEANS
    report = check(
        chosen,
        seconds=seconds,
        on_measured=lambda result: _progress(row(asdict(result))) if not as_json else None,
    )
    print(json.dumps(report) if as_json else table(report))  # noqa: T201


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(line + "\n")
