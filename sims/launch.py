"""Starts a run of several nodes on this machine, shows it, and sums it up at its end.

`lowcomm demo`, `lowcomm sim` and `lowcomm resume` of a run directory are callers of this. Must
NOT reach into a peer: it knows what their files and their status say.
"""

import asyncio
import contextlib
import json
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console

from lowcomm.config import RunConfig
from lowcomm.report import write_report
from lowcomm.summary import build_summary, write_summary
from lowcomm.timeline import Event, Follower
from lowcomm.view import LiveView, print_end
from protocols.errors import ConfigError, LowcommError
from sims.cluster import LOG, LocalCluster, LocalNode, read_plan, write_plan

LOOK_S = 0.25
LOG_LINES_SHOWN = 15
EXIT_INTERRUPTED = 130


class RunFailed(LowcommError):  # noqa: N818
    """Peers ended in a way that they should not. The text says which, and shows their words."""


@dataclass(slots=True)
class Watch:
    """One run under our eyes."""

    cluster: LocalCluster
    run: RunConfig
    on_event: Callable[[Event], None] = lambda _: None
    events: list[Event] = field(default_factory=list[Event])
    interrupted: bool = False


async def supervise(
    run_dir: Path,
    run: RunConfig,
    start: Callable[[Watch], Awaitable[None]],
    *,
    console: Console,
) -> int:
    """Start nodes, watch them until all have ended; returns the exit code.

    Ctrl+C stops every process within 5 s; what was committed is in a checkpoint by then.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    began = time.monotonic()
    async with LocalCluster(run_dir) as cluster:
        watch = Watch(cluster, run)
        with LiveView(console, run.name) as view:
            follower = Follower(run_dir)
            follower.read_all() if read_plan(run_dir) else None
            starting = asyncio.ensure_future(start(watch))
            try:
                while not stopped.is_set() and not (starting.done() and _ended(cluster)):
                    if starting.done():
                        starting.result()
                    events = follower.read()
                    watch.events += events
                    for event in events:
                        watch.on_event(event)
                    view.update(await cluster.statuses(), events)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):
                            await stopped.wait()
            finally:
                starting.cancel()
                watch.interrupted = stopped.is_set()
                await cluster.stop()
                view.update([], follower.read_all())
        _sum_up(watch, console, wall_s=time.monotonic() - began)
        failed = [n for n in cluster.nodes if n.child.returncode != 0 and not n.expendable]
        if watch.interrupted:
            console.print(f"interrupted; `lowcomm resume {run_dir}` goes on from the checkpoint")
            return EXIT_INTERRUPTED
        if failed:
            raise RunFailed(_last_words(failed))
        return 0


def _ended(cluster: LocalCluster) -> bool:
    """Nobody runs any more, or somebody who should run has failed."""
    failed = any(n.child.returncode not in (None, 0) and not n.expendable for n in cluster.nodes)
    return failed or not any(node.running for node in cluster.nodes)


def _sum_up(watch: Watch, console: Console, *, wall_s: float) -> None:
    run_dir = watch.cluster.run_dir
    summary = build_summary(run_dir, run=asdict(watch.run))
    summary["wall_s"] = wall_s
    paths = {"summary": write_summary(run_dir, summary), "report": write_report(run_dir, summary)}
    if summary.get("checkpoint"):
        paths["checkpoint"] = Path(str(summary["checkpoint"]))
    print_end(console, summary, paths)


def _last_words(failed: Sequence[LocalNode]) -> str:
    """What the failed daemons wrote last."""
    parts: list[str] = []
    for node in failed:
        path = node.directory / LOG
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        told = "\n    ".join(lines[-LOG_LINES_SHOWN:])
        parts.append(f"{node.name} ended with {node.child.returncode}; {path}:\n    {told}")
    return "\n".join(parts)


def fresh_run_dir(directory: Path | None, name: str) -> Path:
    """`directory`, or runs/<name>; an older run of that name there moves aside.

    Raises ConfigError when a given directory is not empty.
    """
    if directory is not None:
        if directory.exists() and any(directory.iterdir()):
            raise ConfigError(f"{directory} is not empty: give another one, or `lowcomm resume` it")
        return directory
    run_dir = Path("runs") / name
    if run_dir.exists():
        aside = run_dir.with_name(f"{name}-{int(run_dir.stat().st_mtime)}")
        shutil.rmtree(aside, ignore_errors=True)
        run_dir.rename(aside)
    return run_dir


async def resume_all(run_dir: Path, *, console: Console) -> int:
    """Start every node of a run directory again, the first one from its checkpoint."""
    from lowcomm.config import FileConfig, validate
    from lowcomm.identity import read_record

    names = read_plan(run_dir)
    if not names:
        raise ConfigError(f"{run_dir} was not made by `lowcomm sim` or `lowcomm demo`")
    record = read_record(run_dir / names[0])
    if record is None:
        raise ConfigError(f"{run_dir / names[0]} never started: start the run anew")
    config = validate(FileConfig, json.loads(record.config), where="node.json")
    assert isinstance(config, FileConfig)
    assert config.run is not None

    async def start(watch: Watch) -> None:
        cluster = watch.cluster
        first = cluster.start(names[0], ["resume", str(run_dir / names[0])])
        address = await cluster.address_of(first)
        for name in names[1:] if address else ():
            cluster.start(name, ["resume", str(run_dir / name), "--join", address])

    write_plan(run_dir, names)
    return await supervise(run_dir, config.run, start, console=console)
