"""The command line. Commands of sims/ are found through the entry-point group lowcomm.commands.

Every error that a person can mend is one line: what, why, what to do; 2 for configuration, 3 for
a refusal. Must NOT import torch, nor anything heavy before a command needs it.
"""

import sys
from contextlib import closing
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, Protocol

import typer
from typer.core import TyperCommand, TyperGroup

from lowcomm.cli import init, recover, revoke
from lowcomm.exit_codes import EXIT_CONFIG, EXIT_FAILED, EXIT_REFUSED
from protocols.types.errors import ConfigError, LowcommError, RefusedError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from lowcomm.config.schema import FileConfig
    from lowcomm.startup.start_options import Start
    from peers.sockets.listener import Listening
    from protocols.state.tokens import Token

    class Life(Protocol):
        """A daemon: a node's, or a witness's."""

        rejoins_at: str

        async def run(self) -> int: ...


COMMANDS = "lowcomm.commands"
RESUME = "lowcomm.resume"
"""Starts all nodes of a run directory again: whoever can start several has it."""
RUNS = Path("runs")
AUTHORITY = "ca.pem"
"""Where it is, `lowcomm init` made a run's directory."""
JOINED, WITNESSED = "joined", "witnessed"
"""The run's name in the path of a joiner or a witness: it learns the real one too late."""


class Commands(TyperGroup):
    """Our own commands, and those that other packages of the distribution announce."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # pyright: ignore
        announced = [entry.name for entry in entry_points(group=COMMANDS)]
        return sorted({*super().list_commands(ctx), *announced})  # pyright: ignore

    def get_command(  # pyright: ignore
        self, ctx: typer.Context, cmd_name: str
    ) -> TyperCommand | None:
        own = super().get_command(ctx, cmd_name)  # pyright: ignore
        if own is not None:
            return own  # pyright: ignore
        for entry in entry_points(group=COMMANDS, name=cmd_name):
            alone = _plain_typer()
            alone.command(name=cmd_name)(entry.load())
            return typer.main.get_command(alone)  # pyright: ignore
        return None


def _plain_typer(cls: type[TyperGroup] | None = None) -> typer.Typer:
    """Help as plain text, in which "[run]" is no markup, and no tracebacks of its own."""
    return typer.Typer(
        cls=cls,
        no_args_is_help=cls is not None,
        pretty_exceptions_enable=False,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


app = _plain_typer(Commands)
app.command()(init.init)
app.command()(init.token)

ConfigFile = Annotated[
    Path | None, typer.Argument(help="TOML with [run] and [node]. A joiner may leave [run] out.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="As in the file, e.g. node.ranks=2. Repeat."),
]


def main() -> None:
    """The program `lowcomm`."""
    command: list[str] = []
    if sys.argv[1:2] == ["peer"] and "--" in sys.argv:
        at = sys.argv.index("--")
        sys.argv, command = sys.argv[:at], sys.argv[at + 1 :]
    try:
        app(prog_name="lowcomm", obj=tuple(command))
    except (LowcommError, OSError) as error:
        print(f"lowcomm: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(exit_code(error))


def exit_code(error: LowcommError | OSError) -> int:
    if isinstance(error, ConfigError):
        return EXIT_CONFIG
    return EXIT_REFUSED if isinstance(error, RefusedError) else EXIT_FAILED


@app.callback(invoke_without_command=True)
def lowcomm(
    ctx: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.")
    ] = False,
) -> None:
    """Train one model on many nodes joined by slow, unreliable links.

    \b
    Try it: lowcomm demo
    """
    if show_version:
        print(version("lowcomm"))  # noqa: T201
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())  # noqa: T201


@app.command()
def peer(
    ctx: typer.Context,
    config: ConfigFile = None,
    new: Annotated[bool, typer.Option("--new", help="Start a run; others join us.")] = False,
    join: Annotated[
        str, typer.Option("--join", metavar="TOKEN", help="Join the run that the token is of.")
    ] = "",
    overrides: Overrides = None,
    fault: Annotated[
        str,
        typer.Option(
            "--fault",
            metavar="WHAT",
            help="Fail on purpose: kill@round=R,chunk=C sends itself SIGKILL when chunk C "
            "(contributions and results, from 1) of round R has left.",
        ),
    ] = "",
) -> None:
    """Run this node's peer daemon: start a run, or join one.

    Ctrl+C leaves the run; the others go on. After -- comes a training program of your own.

    \b
    Examples:
      lowcomm peer run.toml --new
      lowcomm peer --join TOKEN --set node.name=beta --set node.ranks=2
      lowcomm peer run.toml --new -- torchrun --nproc-per-node 2 train.py
    """
    from lowcomm.config.schema import load_config
    from lowcomm.startup.identity import node_name
    from lowcomm.startup.start_options import Start
    from peers.fault_injection import parse_fault

    if new == bool(join):
        raise ConfigError("say either --new (start a run) or --join TOKEN (join that run)")
    loaded = load_config(config, overrides or ())
    if new and loaded.run is None:
        raise ConfigError(
            "--new needs a [run], which says what to train: give a configuration file that has "
            "one, or --set run.seed=0 for the defaults"
        )
    address, token = _way_in(join, loaded)
    opened = config.parent if config and (config.parent / AUTHORITY).exists() else None
    run = opened or RUNS / (loaded.run.name if loaded.run else JOINED)
    directory = Path(loaded.node.directory or run / node_name(loaded.node.name))
    start = Start(
        kind="new" if new else "join",
        address=address,
        token=token,
        run_directory=opened,
        command=ctx.obj,
        fault=parse_fault(fault) if fault else None,
    )
    _run_daemon(loaded, directory, start)


@app.command()
def resume(
    directory: Annotated[Path, typer.Argument(help="A run directory, or one node's in it.")],
    join: Annotated[
        str,
        typer.Option("--join", metavar="TOKEN", help="Where the run is now, if not where it was."),
    ] = "",
) -> None:
    """Go on from the newest checkpoint in DIRECTORY.

    The directory of a run of `lowcomm sim` or `lowcomm demo` starts all its nodes again on this
    machine. The directory of one node starts that node: it joins the others again, and if nobody
    kept the state in memory, all of them go on from the newest checkpoint that one of them has.

    \b
    Examples:
      lowcomm resume runs/demo
      lowcomm resume runs/demo/beta --join TOKEN
    """
    from lowcomm.cli.status import finished, node_directories
    from lowcomm.startup.identity import check_resumable, read_record, recorded_config
    from lowcomm.startup.start_options import Start

    record = read_record(directory)
    if record is None:
        node_directories(directory)  # Raises when there is none.
        for entry in entry_points(group=RESUME):
            entry.load()(directory)
            return
        raise ConfigError(f"{directory} is a run's directory: give that of a node in it")
    if over := finished([directory]):
        print(f"{record.name} {over}")  # noqa: T201
        return
    check_resumable(directory, record, way=bool(join or record.join))
    config = recorded_config(directory)
    address, token = _way_in(join or record.join, config, typed=bool(join))
    if record.witness:
        _run_witness(config, directory, address=address, token=token)
    start = Start(kind="again", address=address, token=token, command=record.command)
    _run_daemon(config, directory, start)


@app.command()
def witness(
    join: Annotated[str, typer.Option("--join", metavar="TOKEN", help="A token of the run.")],
    overrides: Overrides = None,
) -> None:
    """Vote in a run, and train nothing.

    Of two nodes neither is a majority: when one is gone, the other waits, and then goes on alone in
    a branch of its own. With a witness on a third machine, either one may die and the run goes on.
    It needs no GPU, no data and next to no memory, and ends with the run.

    \b
    Examples:
      lowcomm witness --join TOKEN
      lowcomm witness --join TOKEN --set node.name=watch
    """
    from lowcomm.config.schema import load_config
    from lowcomm.startup.identity import node_name

    loaded = load_config(None, overrides or ())
    address, token = _way_in(join, loaded)
    name = node_name(loaded.node.name)
    directory = Path(loaded.node.directory or RUNS / WITNESSED / name)
    _run_witness(loaded, directory, address=address, token=token)


app.command()(recover.recover)
app.command()(revoke.revoke)


@app.command()
def status(
    directory: Annotated[Path, typer.Argument(help="A run directory, or one node's in it.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a node.")] = False,
) -> None:
    """Ask running daemons what they do, and whom they wait for.

    \b
    Examples:
      lowcomm status runs/demo
      lowcomm status runs/demo/alpha --json
    """
    import json

    from lowcomm.cli.status import ask_all, print_tables

    answers = ask_all(directory)
    if as_json:
        for answer in answers:
            print(json.dumps(answer))  # noqa: T201
    else:
        print_tables(answers)


def _way_in(join: str, config: "FileConfig", *, typed: bool = True) -> tuple[str, "Token | None"]:
    """Where the run is, and the token that lets us in. Raises ConfigError.

    What was not typed may be an address: where this node joined anew, with the certificate it had.
    """
    from lowcomm.config.addresses import check_way
    from protocols.state.tokens import PREFIX, decode_token

    token = decode_token(join) if join and (typed or join.startswith(PREFIX)) else None
    check_way(config.node, token)
    return token.addresses[0] if token else join, token


def _run_daemon(config: "FileConfig", directory: Path, start: "Start") -> NoReturn:
    """Until the daemon ends; exits with its code."""

    def make(listening: "Listening", rejoins_at: str) -> "Life":
        from lowcomm.daemon.daemon import Daemon
        from lowcomm.startup.start_options import Start

        again = Start(kind="join", address=rejoins_at, command=start.command)
        how = again if rejoins_at else start
        return Daemon(config, directory=directory, start=how, listening=listening)

    _live(make, directory, config, contact=start.address)


def _run_witness(
    config: "FileConfig", directory: Path, *, address: str, token: "Token | None"
) -> NoReturn:
    """Until the run ends; exits with the witness's code."""

    def make(listening: "Listening", rejoins_at: str) -> "Life":
        from lowcomm.daemon.witness import WitnessDaemon

        where, how = rejoins_at or address, None if rejoins_at else token
        return WitnessDaemon(
            config, directory=directory, address=where, token=how, listening=listening
        )

    _live(make, directory, config, contact=address)


def _live(
    make: "Callable[[Listening, str], Life]",
    directory: Path,
    config: "FileConfig",
    *,
    contact: str,
) -> NoReturn:
    """Run what `make(socket, where to join anew)` gives, again while it has to join anew."""
    import asyncio

    from lowcomm.config.addresses import listen_at
    from peers.sockets.listener import listen

    code, rejoins_at = 0, ""
    while True:
        # Others may dial while we load the rest.
        listening = listen(listen_at(config.node, contact))

        async def life(listening: "Listening" = listening, at: str = rejoins_at) -> tuple[int, str]:
            daemon = make(listening, at)
            return await daemon.run(), daemon.rejoins_at

        with closing(listening), asyncio.Runner(loop_factory=_loop_factory()) as runner:
            code, rejoins_at = runner.run(life())
        if not rejoins_at:
            sys.exit(code)
        # Its branch of the run was given up: it comes as another peer, with an empty log.
        from lowcomm.startup.startup import set_aside

        set_aside(directory)


def _loop_factory() -> "Callable[[], AbstractEventLoop]":
    """uvloop where it is installed, asyncio's own loop elsewhere."""
    import asyncio

    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
