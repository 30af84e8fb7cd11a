"""The commands `lowcomm launch` and `lowcomm stop`.

Must NOT import anything slow before a command runs: the command line imports this module before it
listens.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from lowcomm.config.explain_command import setting_names
from protocols.types import ConfigError

if TYPE_CHECKING:
    from lowcomm.launching.launch import LaunchOptions

HostsPath = Annotated[Path, typer.Argument(metavar="HOSTS.TOML", help="The hosts of the run.")]
SshConfig = Annotated[
    Path | None,
    typer.Option("--ssh-config", metavar="FILE", help="Use this in place of ~/.ssh/config."),
]


def launch(
    ctx: typer.Context,
    hosts: HostsPath = Path("hosts.toml"),
    attach: Annotated[
        bool, typer.Option("--attach", help="Start nothing: show what was started before.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="End when all nodes are started; do not show them.")
    ] = False,
    install: Annotated[
        str,
        typer.Option(
            "--install",
            metavar="REQUIREMENT",
            help="On hosts without this version of lowcomm, have pip install REQUIREMENT.",
        ),
    ] = "",
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a key of the run's file, e.g. run.outer_steps=10. Repeatable.",
            autocompletion=setting_names,
        ),
    ] = None,
    ssh_config: SshConfig = None,
) -> None:
    """Start a run on several hosts, and show it.

    HOSTS.TOML names the run's file and the hosts; the first one founds the run. All hosts are
    checked first. Nodes go on when this command or its connection ends, and are started again if
    they fail; Ctrl+C asks whether to detach or to stop them. The same command starts the nodes
    that do not run. ssh must reach the hosts without a password.

    \b
    HOSTS.TOML:
      run = "run.toml"
      hosts = [
        "gpu1 iface=eth1",
        "user@gpu2 ranks=8 device=cuda node.micro_batch=4",
        {host = "local", name = "here", port = 4711},
      ]
    Further keys: directory, python, restarts;
    of a host: name, advertise, ssh_port, python, set.

    \b
    Examples:
      lowcomm launch hosts.toml
      lowcomm launch hosts.toml --install lowcomm-0.1.0-py3-none-any.whl
      lowcomm launch hosts.toml --detach -- python train.py
      lowcomm launch --attach
      lowcomm stop
    """
    from lowcomm.launching.launch import LaunchOptions

    command: tuple[str, ...] = ctx.obj.command
    if attach and (detach or install or overrides or command):
        raise ConfigError("--attach starts nothing: leave the other options out")
    options = LaunchOptions(overrides=tuple(overrides or ()), command=command, install=install)
    _run_launch(hosts, ssh_config, None if attach else options, shows=not detach)


def stop(hosts: HostsPath = Path("hosts.toml"), ssh_config: SshConfig = None) -> None:
    """Let all nodes of a launch leave their run.

    They leave one after the other, the one that began the run last. Each writes a last
    checkpoint. `lowcomm launch` brings them back.

    \b
    Examples:
      lowcomm stop
      lowcomm stop hosts.toml
    """
    import asyncio

    from rich.console import Console

    from lowcomm.exit_codes import EXIT_FAILED
    from lowcomm.launching.hosts_file import read_launch

    wanted = read_launch(hosts)

    async def run() -> int:
        from lowcomm.launching.launch import HostConnections, stop_all

        async with HostConnections(ssh_config) as connections:
            all_ended = await stop_all(wanted, connections, Console())
        return 0 if all_ended else EXIT_FAILED

    sys.exit(asyncio.run(run()))


def _run_launch(
    file: Path, ssh_config: Path | None, options: "LaunchOptions | None", *, shows: bool
) -> NoReturn:
    """Start the nodes, unless `options` is None, and show them; exit with the status."""
    import asyncio

    from rich.console import Console

    from lowcomm.launching.hosts_file import read_launch
    from lowcomm.launching.launch import HostConnections, start_all
    from lowcomm.launching.watch import show

    wanted = read_launch(file, options.overrides if options else ())

    async def run() -> int:
        console = Console()
        async with HostConnections(ssh_config) as connections:
            since: Mapping[str, int] | None = {}
            if options is not None:
                since = await start_all(wanted, options, connections, console)
            if since is None or not shows:
                return 0
            return await show(wanted, connections, console, since=since)

    sys.exit(asyncio.run(run()))
