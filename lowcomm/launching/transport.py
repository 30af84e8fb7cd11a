"""How `lowcomm launch` runs commands on a host; here for a host that is this machine.

Must NOT know what the commands do. ssh_transport.py is the other implementation.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from peers.processes import own_module
from protocols.types import LowcommError

HOST_SIDE = "lowcomm.launching.host_side"
LINE_BYTES_MAX = 4 << 20
"""A longer line of a host ends its stream: host_side.py writes far shorter ones."""
END_S = 5.0
LAST_CHARS = 1000


class HostError(LowcommError):
    """A host that cannot be reached, or on which a command failed. The text names the cause."""


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """The end of a command."""

    code: int
    """Exit status; negative: a signal."""
    out: bytes
    err: str


class Transport(Protocol):
    """The way to one host. Each method raises HostError if the host cannot be reached."""

    @property
    def address(self) -> str:
        """The host's own address at which this machine reaches it."""
        ...

    @property
    def python(self) -> str:
        """The Python there that has lowcomm."""
        ...

    async def execute(
        self, argv: Sequence[str], *, stdin: bytes = b"", within_s: float
    ) -> HostAnswer: ...

    def module(self, name: str) -> list[str]:
        """The command that runs a module of lowcomm there."""
        ...

    def lines(self, argv: Sequence[str]) -> AsyncGenerator[bytes, None]:
        """The lines that a command prints. Its standard input ends when the generator is closed."""
        ...

    async def close(self) -> None: ...


class LocalTransport:
    """This machine. What it starts has sessions of its own, so that a terminal's Ctrl+C does not
    reach it."""

    address = "127.0.0.1"

    def __init__(self, python: str = "") -> None:
        self.python = str(Path(python).expanduser()) if python else sys.executable

    async def execute(
        self, argv: Sequence[str], *, stdin: bytes = b"", within_s: float
    ) -> HostAnswer:
        process = await _started(argv)
        try:
            async with asyncio.timeout(within_s):
                out, err = await process.communicate(stdin)
        except TimeoutError:
            raise HostError(f"{argv[0]} has not ended within {within_s:g} s") from None
        finally:
            await _end(process)
        assert process.returncode is not None, "it has ended"
        return HostAnswer(process.returncode, out, err.decode(errors="replace"))

    def module(self, name: str) -> list[str]:
        return own_module(name, python=self.python)

    async def lines(self, argv: Sequence[str]) -> AsyncGenerator[bytes, None]:
        process = await _started(argv, stderr=asyncio.subprocess.DEVNULL)
        assert process.stdout is not None, "it is a pipe"
        try:
            async for line in process.stdout:
                yield line
        finally:
            await _end(process)

    async def close(self) -> None:
        pass


async def ask_host(
    transport: Transport, verb: str, directory: str, *more: str, stdin: bytes = b"", within_s: float
) -> dict[str, Any]:
    """Call a verb of host_side.py; returns its answer. Raises HostError, also for its errors."""
    argv = [*transport.module(HOST_SIDE), verb, directory, *more]
    answer = await transport.execute(argv, stdin=stdin, within_s=within_s)
    try:
        found: object = json.loads(answer.out)
    except ValueError:
        found = None
    if answer.code != 0 or not isinstance(found, dict):
        last = answer.err.strip()[-LAST_CHARS:]
        raise HostError(f"`lowcomm launch` cannot run there (exit status {answer.code}): {last}")
    result = cast(dict[str, Any], found)
    if "error" in result:
        raise HostError(str(result["error"]))
    return result


async def _started(
    argv: Sequence[str], *, stderr: int = asyncio.subprocess.PIPE
) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=pipe,
            stdout=pipe,
            stderr=stderr,
            start_new_session=True,
            limit=LINE_BYTES_MAX,
        )
    except OSError as error:
        raise HostError(f"{argv[0]} cannot be started: {error.strerror}") from error


async def _end(process: asyncio.subprocess.Process) -> None:
    """End its input, and kill it if that does not end it."""
    if process.returncode is not None:
        return
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
