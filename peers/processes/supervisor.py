"""Starts the ranks of an attempt, reports when one ends, kills the others.

Two ways: forked from a zygote that is kept across attempts, so that a restart costs no import; or a
user's own command (torchrun and the like). Must NOT decide whether to restart, and must NOT speak
with the ranks: that is `peers/ranks/rank_group.py`.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import socket
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from peers.processes.die_with_parent import CANNOT_RUN, EXIT_CANNOT_RUN
from peers.processes.last_words import LastWords, telling_line
from peers.processes.processes import (
    Child,
    kill_descendants,
    leaving_nothing,
    own_module,
    start_child,
    wait_ended,
)
from peers.processes.zygote import PACKET_BYTES_MAX
from protocols.types import ConfigError, LowcommError

PRELOAD_TIMEOUT_S = 300.0
"""Seconds. Importing torch from a cold network disk took minutes in the worst case."""
ANSWER_TIMEOUT_S = 10.0
"""Seconds. The zygote forks and kills within milliseconds; after this time it is replaced."""


_IMPORT_ERRORS = ("ImportError:", "ModuleNotFoundError:", "SyntaxError:")
"""Errors that every import of the same files repeats."""


class SpawnError(LowcommError):
    """The ranks could not be started."""


class NotRunnable(SpawnError):  # noqa: N818
    """The ranks cannot be started, in this attempt or in another one."""


@dataclass(frozen=True, slots=True)
class Exit:
    """A rank has ended, or all of them (`rank` None). A negative `returncode` is a signal."""

    rank: int | None
    returncode: int
    final: bool = False
    """No other attempt can follow: the node leaves its run."""
    lost: str = ""
    """Why ranks are out of reach, if they are; their processes end by themselves."""

    def __str__(self) -> str:
        if self.lost:
            return self.lost
        who = "the ranks' process" if self.rank is None else f"rank {self.rank}"
        if self.returncode < 0:
            return f"{who} was killed by signal {-self.returncode}"
        return f"{who} ended with code {self.returncode}"


class Spawner(Protocol):
    """Runs one attempt at a time."""

    @property
    def program(self) -> str:
        """The name of the program in a sentence."""
        ...

    async def start(self, envs: Sequence[Mapping[str, str]]) -> None:
        """Start one rank for each environment, which is added to ours. Raises SpawnError."""
        ...

    async def wait(self) -> Exit:
        """The next rank that has ended; each is told once. Raises ConfigError if the program that
        was given cannot be run."""
        ...

    async def last_line(self) -> str:
        """The line of this attempt's stderr that tells best why it ended; "" without any."""
        ...

    async def stop(self) -> None:
        """SIGKILL and reap all processes of this attempt. Idempotent."""
        ...

    async def close(self) -> None:
        """`stop`, and end processes that are kept between attempts. Idempotent."""
        ...


class ZygoteSpawner:
    """Forks ranks from a process that has imported `preload` and calls `target` in each."""

    def __init__(
        self, preload: Sequence[str], *, target: str, python: str = sys.executable
    ) -> None:
        """`target` is "module:function"; what it returns is the rank's exit status."""
        self._preload = tuple(preload)
        self._target = target
        self._python = python
        self._zygote: _ZygoteLink | None = None

    @property
    def program(self) -> str:
        return f"lowcomm's own program ({self._target})"

    async def start(self, envs: Sequence[Mapping[str, str]]) -> None:
        """Fork; the first time, and after the zygote's death, also import."""
        if self._zygote is None:
            self._zygote = _ZygoteLink(self._preload, target=self._target, python=self._python)
        await self._zygote.fork(envs)

    async def wait(self) -> Exit:
        """The next rank that has ended."""
        assert self._zygote is not None, "start first"
        return await self._zygote.next_exit()

    async def last_line(self) -> str:
        """The line of the ranks and the zygote, which share stderr."""
        return "" if self._zygote is None else await self._zygote.last_line()

    async def stop(self) -> None:
        """Kill the ranks, keep the zygote if it still obeys."""
        if self._zygote is not None and not await self._zygote.kill_ranks():
            await self.close()

    async def close(self) -> None:
        """Kill the ranks and the zygote."""
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            await zygote.close()


class _ZygoteLink:
    """The daemon's end of one zygote process: a callback of the loop, no task."""

    def __init__(self, preload: Sequence[str], *, target: str, python: str) -> None:
        self._answers: set[str] = set()
        self._exits: deque[Exit] = deque()  # At most one for each rank.
        self._dead = False
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [
            *own_module("peers.processes.zygote", python=python),
            "--fd",
            str(theirs.fileno()),
        ]
        command += ["--parent", str(os.getpid()), "--target", target]
        command += ["--preload", ",".join(preload)]
        # Numeric libraries start their threads when they are imported; a fork needs only one.
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        self._words = LastWords()
        try:
            self._child = start_child(
                command, env=environment, pass_fds=[theirs.fileno()], stderr=self._words.fd
            )
        except OSError as error:
            self._channel.close()
            raise NotRunnable(f"cannot start {python}: {error.strerror}") from error
        finally:
            theirs.close()
            self._words.started()
        self._channel.setblocking(False)
        self._loop.add_reader(self._channel, self._on_readable)

    async def fork(self, envs: Sequence[Mapping[str, str]]) -> None:
        """Raises SpawnError when the zygote is dead or does not answer."""
        await self._until("ready", timeout_s=PRELOAD_TIMEOUT_S)
        self._words.forget()
        self._send({"fork": [dict(env) for env in envs]})
        await self._until("forked", timeout_s=ANSWER_TIMEOUT_S)

    async def next_exit(self) -> Exit:
        """A rank's end, or the zygote's own (which is the end of all ranks)."""
        while not self._exits:
            if self._dead:
                return Exit(None, await self._child.wait())
            self._changed.clear()
            await self._changed.wait()
        return self._exits.popleft()

    async def last_line(self) -> str:
        return telling_line(await self._words.text())

    async def kill_ranks(self) -> bool:
        """False when the zygote does not do it: then it has to be closed."""
        if "ready" in self._answers:
            self._send({"kill": True})
            try:
                await self._until("killed", timeout_s=ANSWER_TIMEOUT_S)
            except SpawnError:
                return False
            self._exits.clear()
        return not self._dead

    async def close(self) -> None:
        """Also when cancelled: the ranks die with the zygote."""
        try:
            await self.kill_ranks()
        finally:
            self._loop.remove_reader(self._channel)
            self._channel.close()
            await self._child.stop()
            await self._words.end()

    async def _until(self, answer: str, *, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while answer not in self._answers:
                    if self._dead:
                        raise _not_started(await self._child.wait(), await self.last_line())
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise SpawnError(f"the zygote is not {answer} after {timeout_s} s") from error

    def _send(self, request: Mapping[str, object]) -> None:
        self._answers -= {"forked", "killed"}
        # A dead zygote is noticed where its answer is awaited.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.send(json.dumps(request).encode())

    def _on_readable(self) -> None:
        try:
            packet = self._channel.recv(PACKET_BYTES_MAX)
        except ConnectionResetError:
            packet = b""  # It died with a request unread.
        if not packet:
            self._dead = True
            self._loop.remove_reader(self._channel)
        else:
            message = cast("dict[str, Any]", json.loads(packet))
            self._answers.update(message)
            if "exited" in message:
                self._exits.append(Exit(message["exited"], message["returncode"]))
        self._changed.set()


def _not_started(returncode: int, line: str) -> SpawnError:
    """The error of a zygote that has ended."""
    kind = NotRunnable if line.startswith(_IMPORT_ERRORS) else SpawnError
    said = f": {line}" if line else ""
    return kind(f"its zygote ended with {returncode}{said}")


class CommandSpawner:
    """Runs one command for all ranks, such as ["torchrun", ...], and kills all it started.

    The command gets the variables that are the same for every rank. It runs below a reaper
    (reaper.py), which also ends its orphans, and all of them if this daemon is SIGKILLed.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = tuple(argv)
        self._child: Child | None = None
        self._words: LastWords | None = None

    @property
    def program(self) -> str:
        return f"the program `{shlex.join(self._argv)}`"

    async def start(self, envs: Sequence[Mapping[str, str]]) -> None:
        """Start the command."""
        first = envs[0]
        shared = {key: first[key] for key in first if all(env[key] == first[key] for env in envs)}
        self._words = LastWords()
        try:
            self._child = start_child(
                leaving_nothing(self._argv), env={**os.environ, **shared}, stderr=self._words.fd
            )
        except OSError as error:
            raise SpawnError(f"cannot start {self._argv[0]}: {error.strerror}") from error
        finally:
            self._words.started()

    async def wait(self) -> Exit:
        """The end of the command; told once."""
        assert self._child is not None, "start first"
        end = Exit(None, await self._child.wait())
        if end.returncode == EXIT_CANNOT_RUN:
            line = await self.last_line()
            if line.startswith(CANNOT_RUN):
                raise ConfigError(
                    f"{line}: write after -- a command that the shell finds, as in "
                    "`lowcomm peer run.toml --new -- python train.py`"
                )
        return end

    async def last_line(self) -> str:
        return "" if self._words is None else telling_line(await self._words.text())

    async def stop(self) -> None:
        """Kill the command and all its descendants."""
        if self._child is None:
            return
        child, self._child = self._child, None
        killed = kill_descendants(child.pid) if child.returncode is None else []
        try:
            await child.stop()
        finally:
            await wait_ended(killed)
        if self._words is not None:
            await self._words.end()

    async def close(self) -> None:
        """Nothing is kept between attempts."""
        await self.stop()


def rank_environments(
    attempt: int, *, ranks: int, port: int, socket_path: str
) -> list[dict[str, str]]:
    """The variables that torchrun would set for each rank, and the daemon's socket; and PET_...
    variables for torchrun itself, which else starts one rank and always takes the same port."""
    shared = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PET_NPROC_PER_NODE": str(ranks),
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(port),
        "LOWCOMM_SOCKET": socket_path,
        "LOWCOMM_ATTEMPT": str(attempt),
    }
    if "OMP_NUM_THREADS" not in os.environ:
        shared["OMP_NUM_THREADS"] = "1"  # As torchrun does: ranks share the cores.
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def free_port(port_range: tuple[int, int], *, avoid: int) -> int:
    """A port on which no process listens now; both ends of the range count.

    Another daemon may take it before our ranks do: then they fail, and the next attempt avoids it.
    Raises SpawnError if none is free.
    """
    low, high = port_range
    ports = high - low + 1
    first = secrets.randbelow(ports)
    for port in (low + (first + offset) % ports for offset in range(ports)):
        if port == avoid and ports > 1:
            continue
        with socket.socket() as probe:
            # As torch binds it: a port that only waits for old packets to expire is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise SpawnError(f"no free port from {low} to {high} ([node] port_range)")
