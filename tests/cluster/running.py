"""Starts `lowcomm` commands as a person would, reads what they leave, and always ends them.

Must NOT judge anything: the tests do.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lowcomm.reports.events import Commit, Event
from lowcomm.reports.timeline import Follower
from lowcomm.startup.join_tokens import new_token
from peers.processes.adopted import TOKEN_VARIABLE
from peers.processes.processes import dying_with_us, kill_group
from sims.cluster.process_tree import descendants

LOOK_S = 0.02
FOUND_MAX = 32
"""Directories whose events are kept."""
MARK = "LOWCOMM_TEST"
"""tests/conftest.py sets it anew for each test, and every process of the test inherits it."""
EMPTY_LOOP_S = 0.20
"""10 million turns of an empty loop on the machine of docs/measurements.md, in CPU seconds."""
LIBRARIES = "import asyncio, cryptography.x509, numpy, ssl, time; print(time.process_time())"
"""What no daemon starts without."""
RUN = """
[run]
name = "tiny"
seed = 1
peers_min = {peers}
outer_steps = {rounds}
[run.model]
layers = 2
hidden_size = {hidden}
intermediate_size = {intermediate}
[run.data]
source = "files"
window = 64
batch = 4
held_out_below = 64
eval_windows = 8
[run.method]
{method}
[node]
corpus = {corpus}
checkpoint_every_rounds = 10
"""

E = TypeVar("E", bound=Event)
T = TypeVar("T")


def write_config(
    directory: Path,
    *,
    peers: int,
    rounds: int,
    inner: int = 5,
    hidden: int = 64,
    method: str = "",
) -> Path:
    """A run of a tiny model, on a corpus that takes no time to read. `method`: the whole table, in
    place of DiLoCo every `inner` steps."""
    corpus = directory / "text"
    corpus.mkdir(exist_ok=True)
    for number in range(16):
        lines = (f"def f{n}(x):\n    return x * {n * number} + {n ^ number}\n" for n in range(60))
        (corpus / f"{number}.py").write_text("".join(lines), encoding="utf-8")
    path = directory / "run.toml"
    quoted = json.dumps(str(corpus))
    text = RUN.format(
        peers=peers,
        rounds=rounds,
        hidden=hidden,
        intermediate=43 * hidden // 16,
        method=method or f"inner_steps = {inner}",
        corpus=quoted,
    )
    path.write_text(text, encoding="utf-8")
    return path


@dataclass
class Found:
    """What was read of the event files of one directory."""

    follower: Follower
    files: dict[Path, int] = field(default_factory=dict[Path, int])
    """Their inodes."""
    events: list[Event] = field(default_factory=list[Event])
    """By time."""


_FOUND: dict[Path, Found] = {}
"""By directory."""
_READING = threading.Lock()
"""Tests look from several threads."""


@dataclass
class Command:
    """A running command, in its own session as under a shell of its own."""

    popen: "subprocess.Popen[bytes]"
    out_path: Path
    err_path: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def out(self) -> str:
        return self.out_path.read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        return self.err_path.read_text(encoding="utf-8")

    def wait(self, *, within_s: float) -> int:
        return self.popen.wait(within_s)

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)


class Shell:
    """Starts commands in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.commands: list[Command] = []

    def start(self, *arguments: str, before: str = "") -> Command:
        """`lowcomm ARGUMENTS`; `before` is Python that runs in its process first. A token after
        --join goes into the environment, as that of a careful user."""
        environment = {**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
        if "--join" in arguments:
            at = arguments.index("--join")
            environment[TOKEN_VARIABLE] = arguments[at + 1]
            arguments = arguments[:at] + arguments[at + 2 :]
        program = f"{before}\nfrom lowcomm.cli.main import main\nmain()"
        return self.launch([sys.executable, "-c", program, *arguments], environment)

    def launch(self, command: Sequence[str], environment: Mapping[str, str]) -> Command:
        """Start any command, in a session of its own, with its output in files."""
        argv = dying_with_us(command)
        number = len(self.commands)
        out, err = self.directory / f"{number}.out", self.directory / f"{number}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            popen = subprocess.Popen(
                argv,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                env=environment,
            )
        self.commands.append(Command(popen, out, err))
        return self.commands[-1]

    def run(self, *arguments: str, within_s: float = 30, before: str = "") -> Command:
        """The command, once it has ended."""
        command = self.start(*arguments, before=before)
        command.wait(within_s=within_s)
        return command

    def peer(self, name: str, *arguments: str) -> Command:
        """`lowcomm peer ARGUMENTS` in the directory `name`."""
        directory = json.dumps(str(self.directory / name))
        own = ["--set", f"node.name={name}", "--set", f"node.directory={directory}"]
        return self.start("peer", *arguments, *own)

    def kill(self, directory: Path) -> None:
        """SIGKILL the daemon of a node's directory."""
        pid = int(record(directory)["pid"])
        assert pid in marked_processes()  # Ours, and not a number from somewhere.
        os.kill(pid, signal.SIGKILL)


S = TypeVar("S", bound=Shell)


@contextmanager
def ending(shell: S) -> Generator[S]:
    """Whatever it started is killed at the end, and what that started dies with it."""
    try:
        yield shell
    finally:
        for command in shell.commands:
            if command.popen.poll() is None:
                kill_group(command.pid)
            command.popen.wait(10)


def new_shell(directory: Path) -> AbstractContextManager[Shell]:
    """One that ends."""
    return ending(Shell(directory))


def until(look: Callable[[], T], *, within_s: float, what: str) -> T:
    """The first true answer; an AssertionError when there is none in time."""
    deadline = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"after {within_s} s: not {what}"
        time.sleep(LOOK_S)


def listens(directory: Path, *, within_s: float = 20) -> str:
    """The address of the daemon of a node's directory."""

    def look() -> str:
        return str(record(directory).get("address", ""))

    return until(look, within_s=within_s, what=f"{directory.name} listening")


def token_of(directory: Path, *, uses: int = 16, witness: bool = False) -> str:
    """With which to join the daemon of a node's directory, once it listens."""
    listens(directory)
    return new_token(directory, uses=uses, witness=witness)


def record(directory: Path) -> dict[str, Any]:
    path = directory / "node.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def of(kind: type[E], directory: Path) -> list[E]:
    """Events of one kind, of a node or of all nodes of a run, by time."""
    return [event for event in events_of(directory) if isinstance(event, kind)]


def events_of(directory: Path) -> Sequence[Event]:
    """All events of a node or of a run, by time. The lines that an earlier call has read are not
    read again: tests look many times a second, and to decode everything each time would take a core
    from the nodes."""
    with _READING:
        return _read_events(directory)


def _read_events(directory: Path) -> Sequence[Event]:
    files = (*directory.glob("events.jsonl"), *directory.glob("*/events.jsonl"))
    now = {path: path.stat().st_ino for path in files}
    found = _FOUND.get(directory)
    if found is None or not found.files.items() <= now.items():  # Or another run has this place.
        if len(_FOUND) >= FOUND_MAX:
            _FOUND.clear()
        found = _FOUND[directory] = Found(Follower(directory))
    found.files = now
    found.events += found.follower.read_all()
    found.events.sort(key=lambda event: event.t)
    return tuple(found.events)


def commits(directory: Path) -> list[int]:
    """The rounds that a node has applied."""
    return [event.round for event in of(Commit, directory)]


def digests_of(directory: Path) -> dict[tuple[int, int], str]:
    """By fragment and round, the digest of a node's state after each commit."""
    return {(event.fragment, event.round): event.state_digest for event in of(Commit, directory)}


def commits_until(directory: Path, round_: int, *, within_s: float = 30) -> None:
    until(
        lambda: max(commits(directory), default=0) >= round_,
        within_s=within_s,
        what=f"{directory.name} committing round {round_}",
    )


def most_until_listening_s() -> float:
    """CPU seconds, on this machine and now: with torch it would be more."""
    return 8 * float(subprocess.check_output([sys.executable, "-c", LIBRARIES], text=True))


def slowness() -> float:
    """How many times slower than the machine of docs/measurements.md this one is now, from 1 on:
    its bars in seconds hold times this. Machines differ by three, also one from hour to hour."""
    began = time.process_time()
    for _ in range(10_000_000):
        pass
    return max(1.0, (time.process_time() - began) / EMPTY_LOOP_S)


def marked_processes() -> dict[int, str]:
    """Pid and command line of all that this test has started and that still runs."""
    entry = f"{MARK}={os.environ[MARK]}".encode()
    found: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if entry in (process / "environ").read_bytes().split(b"\0"):
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(process.name)] = line.decode(errors="replace")
        except OSError:
            continue
    return found


def leaves(pid: int) -> list[int]:
    """The descendants of a process that have no children: ranks, without what has started them."""
    return [each for each in descendants(pid) if not descendants(each)]


def alive(pids: Sequence[int] | set[int]) -> set[int]:
    """Those that still run: a zombie has ended."""
    running: set[int] = set()
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        if stat.rpartition(")")[2].split()[0] not in "ZX":
            running.add(pid)
    return running
