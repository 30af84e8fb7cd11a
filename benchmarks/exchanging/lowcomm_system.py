"""lowcomm as a system: real daemons with their log and links, and ranks without a model.

Must NOT use anything of a daemon beyond its files and its status.
"""

import importlib.metadata
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.codecs import RESULT_CODECS
from benchmarks.exchanging.systems import ExchangeOrder, Side, System, SystemPeer, new_gate, opened
from benchmarks.exchanging.worker import Marks
from lowcomm.codecs import codec
from lowcomm.config import load_config
from lowcomm.methods import GATHER, GATHERED
from lowcomm.reports import EVENTS
from lowcomm.startup import ask
from sims.cluster import LOG, LocalCluster, LocalNode
from sims.leader_loss import write_config

ASK_TIMEOUT_S = 2.0
ROUNDS_MAX = 1_000_000
"""The benchmark ends before the run does."""
LATENESS = (
    "lag_p99_s",
    "lag_max_s",
    "busy_lag_p99_s",
    "heartbeat_late_p99_s",
    "heartbeat_late_max_s",
)
"""Keys of a daemon's status, and fields of Marks."""
NODE_SETTINGS = (
    "node.checkpoint_every_rounds=1000000",  # The other systems keep no checkpoint either.
    "node.hang_timeout_s=86400.0",  # Ranks wait at the gate, and do not hang.
)
SETTINGS = (
    'run.name="exchange"',
    "run.method.inner_steps=1",
    # The outer parameters move by minus the mean.
    "run.method.outer_lr=1.0",
    "run.method.outer_momentum=0.0",
    "run.method.feedback_decay=0.0",  # No exchange's error is carried to the next.
    *NODE_SETTINGS,
)


def system(only: str = "", *, overrides: Sequence[str] = ()) -> System:
    """lowcomm as a system. `only`: the codec to send, whichever codec the others are asked for.
    `overrides`: for all daemons, as `--set` takes them."""
    return System(
        name=f"lowcomm-{only}" if only else "lowcomm",
        version=importlib.metadata.version("lowcomm"),
        start=partial(_start, overrides=overrides),
        codec=(lambda _: _codec(only)) if only else _codec,
        payload_bytes=_payload_bytes,
        copies=7,  # 4.6 measured (fp32, 4 peers, daemon and rank together); gathers take more.
        base_bytes=120 << 20,
        note="real daemons and log, commit included; TCP, encrypted if asked for",
    )


def in_the_clear() -> System:
    """lowcomm without encryption, to show the cost of encryption beside the encrypted one."""

    def start(order: ExchangeOrder) -> AbstractAsyncContextManager[Side]:
        return _start(replace(order, encrypted=False), overrides=())

    return replace(system(), name="lowcomm-clear", start=start, note="the same, not encrypted")


def unchecked() -> System:
    """lowcomm without owner checks, to show their cost beside the checked one."""
    return replace(
        system(overrides=("run.protocol.check_owners=false",)),
        name="lowcomm-unchecked",
        note="the same, without owner checks",
    )


def settings(name: str, *, encrypted: bool = False, congestion: str = "") -> list[str]:
    """The settings of the run beyond `write_config`; `name`: the codec."""
    result = RESULT_CODECS.get(name, "bf16")
    if name in GATHERED:
        result = GATHER  # The default, as in runs.
    codecs = (f'run.method.contribution_codec="{name}"', f'run.method.result_codec="{result}"')
    node = (f'node.congestion="{congestion}"', f"node.insecure={str(not encrypted).lower()}")
    return [*SETTINGS, *codecs, *node]


class Journals:
    """Reads the events that the daemons wrote since the last call."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._files = [directory / EVENTS for directory in directories]
        self._offsets = [0] * len(self._files)

    def complete(self, marks: Sequence[Marks]) -> tuple[Marks, ...]:
        """Add to each node's marks its contributors and its data path of the last round, and its
        lateness."""
        return tuple(
            with_lag(with_events(mark, self._new(node)), ask(directory, timeout_s=ASK_TIMEOUT_S))
            for node, (mark, directory) in enumerate(zip(marks, self._directories, strict=True))
        )

    def _new(self, node: int) -> list[dict[str, Any]]:
        with self._files[node].open("rb") as file:
            file.seek(self._offsets[node])
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[node] += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def with_events(marks: Marks, events: Sequence[dict[str, Any]]) -> Marks:
    """Add the events that the rank's daemon wrote since the previous exchange to its marks."""
    for event in events:
        if event["kind"] == "commit":
            marks = replace(marks, contributors=len(event["roster"]))
        if event["kind"] == "reduced":
            marks = replace(marks, data_path_s=float(event["seconds"]))
    return marks


def with_lag(marks: Marks, status: Mapping[str, Any] | None) -> Marks:
    """Add the lateness of the daemon's loop and of others' heartbeats, by its status, to the
    marks."""
    if status is None:
        return marks
    return replace(marks, **{key: float(status[key]) for key in LATENESS})


def _payload_bytes(name: str, elements: int) -> int | None:
    if name in GATHERED:
        return None
    result = RESULT_CODECS.get(name, "bf16")
    return codec(name).encoded_bytes(elements) + codec(result).encoded_bytes(elements)


def _codec(name: str) -> str:
    overrides = settings(name)
    load_config(None, overrides)  # Raises ConfigError, which names the known codecs.
    return name


@asynccontextmanager
async def _start(order: ExchangeOrder, *, overrides: Sequence[str]) -> AsyncGenerator[Side]:
    config = write_config(order.directory, peers=order.peers, rounds=ROUNDS_MAX)
    async with AsyncExitStack() as stack:
        gate = await stack.enter_async_context(new_gate(order, "lowcomm"))
        cluster = await stack.enter_async_context(LocalCluster(order.directory / "run"))
        congestion = order.network.congestion_control
        chosen = settings(order.codec, encrypted=order.encrypted, congestion=congestion)
        places = {f"p{place.peer}": place for place in order.network.places}

        def start(name: str, token: str) -> LocalNode:
            place = places[name]
            task = json.dumps(asdict(order.task(place.peer)))
            return cluster.start_peer(
                name,
                config,
                join=token,
                overrides=[*chosen, *overrides],
                command=[order.python, "-m", "benchmarks.exchanging.lowcomm_rank", task],
                place=place if place.prefix else None,
            )

        nodes = await cluster.start_all(list(places), start)
        journals = Journals([node.directory for node in nodes])
        peers = tuple(
            SystemPeer(node.child, node.directory / LOG, is_daemon=True) for node in nodes
        )
        side = Side(gate, peers, journals.complete)
        await opened(side)
        yield side
