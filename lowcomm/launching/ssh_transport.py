"""A host over ssh, by asyncssh.

The user's ~/.ssh/config, agent and known_hosts count, as for ssh itself. Must NOT be imported
before a host needs it, accept an unknown host key, or ask for a password.
"""

import asyncio
import shlex
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import asyncssh

from lowcomm.launching.hosts_file import HostConfig
from lowcomm.launching.transport import HostAnswer, HostError

CONNECT_S = 20.0
ALIVE_S = 10.0
"""A connection without an answer for three times so long is lost."""


class SshTransport:
    """One connection, over which all commands of a host go; made by `connect`."""

    def __init__(self, connection: asyncssh.SSHClientConnection, host: HostConfig) -> None:
        self._connection = connection
        self._host = host
        peer = connection.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self.python = in_home(host.python)

    async def execute(
        self, argv: Sequence[str], *, stdin: bytes = b"", within_s: float
    ) -> HostAnswer:
        try:
            async with asyncio.timeout(within_s):
                ended = await self._connection.run(
                    shlex.join(argv), input=stdin, encoding=None, check=False
                )
        except TimeoutError:
            raise HostError(f"{argv[0]} has not ended within {within_s:g} s") from None
        except (asyncssh.Error, OSError) as error:
            raise HostError(explained(error, self._host)) from error
        code = ended.returncode
        out, err = _bytes(ended.stdout), _bytes(ended.stderr)
        return HostAnswer(-1 if code is None else code, out, err.decode(errors="replace"))

    def module(self, name: str) -> list[str]:
        return [self.python, "-P", "-m", name]

    async def lines(self, argv: Sequence[str]) -> AsyncGenerator[bytes, None]:
        try:
            async with self._connection.create_process(
                shlex.join(argv), encoding=None, stderr=asyncssh.DEVNULL
            ) as process:
                async for line in process.stdout:
                    yield line
        except (asyncssh.Error, OSError) as error:
            raise HostError(explained(error, self._host)) from error

    async def close(self) -> None:
        self._connection.close()
        await self._connection.wait_closed()


async def connect(host: HostConfig, config: Path | None) -> SshTransport:
    """Connect to a host. `config`: a file to use in place of ~/.ssh/config. Raises HostError."""
    user, _, place = host.host.rpartition("@")
    try:
        connection = await asyncssh.connect(
            place,
            port=host.ssh_port or (),
            username=user or (),
            config=[str(config)] if config else (),
            keepalive_interval=ALIVE_S,
            connect_timeout=CONNECT_S,
            login_timeout=CONNECT_S,
        )
    except (asyncssh.Error, OSError, ValueError) as error:
        raise HostError(explained(error, host)) from error
    return SshTransport(connection, host)


def explained(error: Exception, host: HostConfig) -> str:
    """The cause and a remedy, for an error of asyncssh or of a socket."""
    to = host.host + (f" -p {host.ssh_port}" if host.ssh_port else "")
    match error:
        case asyncssh.HostKeyNotVerifiable():
            return f"its host key is not in known_hosts: compare it once with `ssh {to}`"
        case asyncssh.PermissionDenied():
            return f"it takes no key of yours: `ssh {to}` must work without a password"
        case TimeoutError():
            return f"no answer to ssh within {CONNECT_S:g} s: try `ssh {to}`"
        case asyncssh.Error():
            return f"the ssh connection failed: {error.reason or type(error).__name__}"
        case OSError():
            return f"ssh cannot connect: {error.strerror or error}: try `ssh {to}`"
        case _:
            return f"ssh cannot connect: {error}"


def in_home(path: str) -> str:
    """A path from the home directory, in which ssh starts commands: the shell that gets it quoted
    would not replace the tilde."""
    return path.removeprefix("~/")


def _bytes(data: object) -> bytes:
    return data if isinstance(data, bytes) else b""
