"""A host that ssh reaches, without sshd: `python -m tests.cluster.ssh_server DIRECTORY`.

It listens on loopback, prints its port, and runs each command by the shell in DIRECTORY/home.
DIRECTORY/host_key is its key; DIRECTORY/authorized_keys has those of its users. Must NOT be used by
what is no test.
"""

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import asyncssh

BLOCK = 1 << 16
Process = asyncssh.SSHServerProcess[bytes]


def write_keys(directory: Path) -> Path:
    """Make the keys of a host and of its user; returns the user's own file for ssh, but for the
    port, which stands in it as PORT."""
    host, user = asyncssh.generate_private_key("ssh-ed25519"), directory / "user_key"
    own = asyncssh.generate_private_key("ssh-ed25519")
    (directory / "home").mkdir()
    host.write_private_key(str(directory / "host_key"))
    own.write_private_key(str(user))
    own.write_public_key(str(directory / "authorized_keys"))
    known, config = directory / "known_hosts", directory / "ssh_config"
    public = host.export_public_key().decode()
    known.write_text(f"[127.0.0.1]:* {public}", encoding="utf-8")
    config.write_text(
        f"Host gpu*\n  HostName 127.0.0.1\n  Port PORT\n  User {os.environ.get('USER', 'me')}\n"
        f"  IdentityFile {user}\n  UserKnownHostsFile {known}\n",
        encoding="utf-8",
    )
    return config


async def give(process: Process, into: asyncio.StreamWriter) -> None:
    """Copy what the client sends, and close `into` at its end."""
    with contextlib.suppress(OSError, asyncssh.Error):
        while data := await process.stdin.read(BLOCK):
            into.write(data)
            await into.drain()
    into.close()


async def copy(source: asyncio.StreamReader, into: "asyncssh.SSHWriter[bytes]") -> None:
    """Copy to the client until the end of the source, also if the client is gone."""
    while data := await source.read(BLOCK):
        with contextlib.suppress(OSError, asyncssh.Error):
            into.write(data)
            await into.drain()


async def serve(directory: Path) -> None:
    """Serve until this process is killed."""
    home = directory / "home"

    async def handle(process: Process) -> None:
        assert process.command is not None, "there is no shell to log in to"
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_shell(
            process.command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=home,
            env={**os.environ, "HOME": str(home)},
            start_new_session=True,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        # Its own redirection ends the connection if a client closes the channel first.
        giving = asyncio.create_task(give(process, child.stdin))
        await asyncio.gather(copy(child.stdout, process.stdout), copy(child.stderr, process.stderr))
        process.exit(await child.wait())
        giving.cancel()

    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[str(directory / "host_key")],
        authorized_client_keys=str(directory / "authorized_keys"),
        process_factory=handle,
        encoding=None,
    )
    print(server.get_port(), flush=True)  # noqa: T201 (for the test that started it)
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
