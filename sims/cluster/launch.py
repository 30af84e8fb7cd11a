"""Starts a run of several nodes on this machine, shows it, and writes its summary at the end.

`lowcomm demo`, `lowcomm sim` and `lowcomm resume` of a run directory (resumption.py) call this.
Must NOT reach into a peer: it knows only their files and their status.
"""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console

from lowcomm.config import RunConfig
from lowcomm.exit_codes import EXIT_INTERRUPTED, EXIT_TERMINATED
from lowcomm.reports import (
    Event,
    Follower,
    LiveView,
    Summary,
    build_summary,
    print_end,
    write_report,
    write_summary,
)
from lowcomm.startup import in_use
from peers.processes import SIGNALLED
from peers.storage import make_private
from protocols.types import ConfigError, LowcommError
from sims.cluster.local_cluster import LOG, LocalCluster, LocalNode

LOOK_S = 0.25
LOG_LINES_SHOWN = 15
UNABLE = (1, 2, 3)
"""Exit codes of a daemon that is broken, misconfigured or refused: the run will never be as
requested. After any other end of one peer, the others go on."""


class RunFailed(LowcommError):  # noqa: N818
    """Peers ended in an unexpected way. The text names them, and quotes their last log lines."""


@dataclass(slots=True)
class Watch:
    """One run that is shown live."""

    cluster: LocalCluster
    follower: Follower
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a signal ends the run: SIGINT (Ctrl+C) or SIGTERM."""
    signalled: int = 0
    """Number of the first signal; 0: none."""
    on_event: Callable[[Event], None] = lambda _: None

    def note_signal(self, number: int) -> None:
        """Note a signal. The first one decides the exit status."""
        self.signalled = self.signalled or number
        self.stopped.set()


async def supervise(
    run_dir: Path,
    run: RunConfig,
    start: Callable[[Watch], Awaitable[None]],
    *,
    console: Console,
) -> int:
    """Start nodes, and watch them until all have ended; returns the exit code.

    Ctrl+C stops every process within 5 s; by then, all committed state is in a checkpoint. Raises
    RunFailed, and the errors that `start` raises.
    """
    watch = Watch(LocalCluster(run_dir), Follower(run_dir))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, watch.note_signal, number)
    watch.follower.read_all()  # Events of earlier incarnations are not shown.
    with LiveView(console, run.name) as view:
        async with watch.cluster:
            starting = asyncio.ensure_future(start(watch))
            try:
                await _follow(watch, view, starting)
            finally:
                starting.cancel()  # Before the nodes are stopped: it would start more.
                await asyncio.gather(starting, return_exceptions=True)
        view.update([], watch.follower.read_all())
    summary = build_summary(run_dir, run=asdict(run))
    _tell_end(run_dir, summary, console)
    if watch.stopped.is_set():
        how = f"`lowcomm resume {run_dir}` goes on from round {summary.checkpoint_round}"
        if summary.checkpoint is None:
            how = "nothing was committed yet, so there is nothing to resume"
        console.print(f"interrupted: {how}", markup=False, highlight=False, soft_wrap=True)
        return SIGNALLED + watch.signalled
    if failed := _failed(watch.cluster.nodes):
        raise RunFailed(_last_words(failed))
    return 0


async def _follow(watch: Watch, view: LiveView, starting: "asyncio.Future[None]") -> None:
    """Show the run until it is interrupted, all nodes have ended, or one of them is UNABLE."""
    cluster, over = watch.cluster, False
    while not (over or watch.stopped.is_set()):
        if starting.done():
            starting.result()
        unable = any(node.child.returncode in UNABLE for node in cluster.nodes)
        idle = not any(node.running for node in cluster.nodes)
        over = unable or (idle and bool(cluster.nodes or starting.done()))
        events = watch.follower.read()
        for event in events:
            watch.on_event(event)
        view.update(await cluster.statuses(), events)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if over else LOOK_S):
                await watch.stopped.wait()


def _tell_end(run_dir: Path, summary: Summary, console: Console) -> None:
    paths = {"summary": write_summary(run_dir, summary), "report": write_report(run_dir, summary)}
    if summary.checkpoint:
        paths["checkpoint"] = Path(summary.checkpoint)
    print_end(console, summary, paths)


def _failed(nodes: Sequence[LocalNode]) -> list[LocalNode]:
    """The nodes that ended with an error. A killed node is a loss that a run survives, if any node
    does."""
    left = (0, EXIT_INTERRUPTED, EXIT_TERMINATED)  # A user may end one of them, too.
    errors = [node for node in nodes if not node.killed and node.child.returncode not in left]
    if not errors and all(node.killed for node in nodes):
        return list(nodes)
    return errors


def _last_words(failed: Sequence[LocalNode]) -> str:
    """The last log lines of the failed daemons."""
    parts: list[str] = []
    for node in failed:
        path = node.directory / LOG
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        told = "\n    ".join(lines[-LOG_LINES_SHOWN:])
        parts.append(f"{node.name} ended with {node.child.returncode}; {path}:\n    {told}")
    return "\n".join(parts)


def fresh_run_dir(directory: Path | None, name: str) -> Path:
    """Make `directory`, or runs/<name>; an older run of that name there moves aside.

    Raises ConfigError if a given directory is not empty, if the older run still goes on, or if the
    directory cannot be made.
    """
    run_dir = directory or Path("runs") / name
    try:
        if run_dir.exists() and any(run_dir.iterdir()):
            if directory is not None:
                raise ConfigError(
                    f"--directory {directory} is not empty: give another one, or continue what "
                    f"is in it with `lowcomm resume {directory}`"
                )
            require_idle(run_dir, "stop it, or give --directory")
            run_dir.rename(_name_aside(run_dir))
        make_private(run_dir)
    except OSError as error:
        raise ConfigError(
            f"{run_dir} cannot be made: {error.strerror}; give another --directory"
        ) from error
    return run_dir


def _name_aside(run_dir: Path) -> Path:
    """The first free name of runs/<name>-1, runs/<name>-2, ..."""
    number = 1
    while (aside := run_dir.with_name(f"{run_dir.name}-{number}")).exists():
        number += 1
    return aside


def require_idle(run_dir: Path, remedy: str) -> None:
    """Raises ConfigError if a daemon of the run directory is running."""
    for path in run_dir.iterdir():
        if in_use(path):
            raise ConfigError(f"{run_dir} belongs to a run that still goes on: {remedy}")
