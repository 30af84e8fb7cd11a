"""The command line. Commands of sims/ are found through the entry-point group lowcomm.commands.

Every error that a person can correct is one line: the effect, the cause, and what to do. The exit
status is 2 for configuration and 3 for a refusal. Must NOT import torch, nor any slow module before
a command needs it.
"""

import os
import sys
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, Protocol

import typer
from typer.core import TyperCommand, TyperGroup

from lowcomm.cli import init, log_lists, own_node, recover, revoke, steer
from lowcomm.cli.token_source import take_token, warn_if_exposed
from lowcomm.config.explain_command import explain, setting_names
from lowcomm.exit_codes import EXIT_CONFIG, EXIT_FAILED, EXIT_REFUSED
from lowcomm.exports.export_command import export
from lowcomm.exports.generate_command import generate
from lowcomm.launching.command import launch, stop
from lowcomm.planning.command import plan
from peers.processes import TOKEN_VARIABLE, AdoptedProgram, adopted_program
from protocols.types import ConfigError, LowcommError, RefusedError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from lowcomm.config.schema import FileConfig
    from lowcomm.startup.identity import NodeRecord
    from lowcomm.startup.start_options import StartOptions
    from peers.sockets import BoundSocket
    from protocols.state import Token

    class Life(Protocol):
        """The daemon of a node or of a witness."""

        @property
        def rejoins_at(self) -> str: ...

        async def run(self) -> int: ...


TOKENIZER = """Make a tokenizer.json of text files.

\b
Examples:
  lowcomm tokenizer train books/ --vocab 8192
"""
CONFIGURATION = """Explain the keys of a configuration.

\b
Examples:
  lowcomm config explain run.method.inner_steps
"""
COMMANDS = "lowcomm.commands"
RESUME = "lowcomm.resume"
"""Entry-point group of a function that starts all nodes of a run directory again."""
RUNS = Path("runs")
TAKES_PROGRAM = (["peer"], ["sim"], ["ranks"], ["launch"])
"""First words of the commands that take a training program, after `--`."""
ROOT_KEY = "root-key.pem"
"""A directory with this file is a run's directory that `lowcomm init` made."""
JOINED, WITNESSED = "joined", "witnessed"
"""Names that stand for the run's in the path of a joiner or witness, which do not know it yet."""


@dataclass(frozen=True, slots=True)
class GivenProgram:
    """The training program of a command."""

    command: tuple[str, ...]
    """Its command line, that after `--`; empty: the built-in one."""
    adopted: AdoptedProgram | None
    """It has started this process itself."""


class Commands(TyperGroup):
    """The commands of this module, and those that entry points of other packages name."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # pyright: ignore
        announced = [entry.name for entry in entry_points(group=COMMANDS)]
        return sorted({*super().list_commands(ctx), *announced})  # pyright: ignore

    def resolve_command(  # pyright: ignore
        self, ctx: typer.Context, args: list[str]
    ) -> tuple[str | None, TyperCommand | None, list[str]]:
        """`lowcomm token list DIRECTORY` is a command of its own."""
        if args[:2] == ["token", "list"] and len(args) > 2:
            args = ["token-list", *args[2:]]
        return super().resolve_command(ctx, args)  # pyright: ignore

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
    """A typer application with plain-text help ("[run]" is not markup) and Python's tracebacks."""
    return typer.Typer(
        cls=cls,
        no_args_is_help=cls is not None,
        pretty_exceptions_enable=False,
        add_completion=cls is Commands,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


app = _plain_typer(Commands)
app.command()(init.init)
app.command()(init.token)
app.command("token-list", hidden=True)(log_lists.token_list)

tokenizer = _plain_typer(TyperGroup)
configuration = _plain_typer(TyperGroup)

ConfigFile = Annotated[
    Path | None,
    typer.Argument(help="TOML with [run] and [node]. A joiner may leave [run] out."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a configuration key, e.g. node.ranks=2. Repeatable.",
        autocompletion=setting_names,
    ),
]
Join = Annotated[
    str,
    typer.Option(
        "--join",
        metavar="@FILE",
        help="Join the run of the token in this file; @-: on standard input. Without the "
        f"option, the token is that of {TOKEN_VARIABLE}.",
    ),
]


def main() -> None:
    """Run the program `lowcomm`."""
    command: list[str] = []
    if sys.argv[1:2] in TAKES_PROGRAM and "--" in sys.argv:
        at = sys.argv.index("--")
        sys.argv, command = sys.argv[:at], sys.argv[at + 1 :]
    program = adopted_program()
    try:
        app(prog_name="lowcomm", obj=GivenProgram(tuple(command), program))
    except (LowcommError, OSError) as error:
        code = exit_code(error)
        if program is None or not program.answer({"error": str(error), "code": code}):
            print(f"lowcomm: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(code)


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
    new: Annotated[
        bool, typer.Option("--new", help="Start a new run, which other nodes join.")
    ] = False,
    join: Join = "",
    overrides: Overrides = None,
    fault: Annotated[
        str,
        typer.Option(
            "--fault",
            metavar="WHAT",
            help="Fail on purpose: with kill@round=R,chunk=C the daemon sends itself SIGKILL after "
            "chunk C (contributions and results, from 1) of round R; with lie@round=R,percent=P it "
            "falsifies P percent of each result that it makes in round R.",
        ),
    ] = "",
) -> None:
    """Run this node's peer daemon: start a run, or join one.

    Ctrl+C leaves the run; the other nodes go on. The same command goes on where the node stopped:
    a supervisor can repeat it. The command after -- is a training program of your own.

    \b
    Examples:
      lowcomm peer run.toml --new
      lowcomm peer --join @token --set node.name=beta --set node.ranks=2
      lowcomm peer run.toml --new --set node.ranks=2 -- torchrun train.py
    """
    from lowcomm.config.schema import load_config
    from lowcomm.startup.identity import node_name
    from lowcomm.startup.start_options import StartOptions
    from peers.fault_injection import parse_fault

    program: GivenProgram = ctx.obj
    word = take_token(join)
    if (new and join) or not (new or word):
        raise ConfigError(
            f"say either --new (start a run), or --join @FILE or {TOKEN_VARIABLE} (join that run)"
        )
    adopted = program.adopted
    loaded = load_config(config, overrides or (), ranks=adopted.ranks if adopted else None)
    if new and loaded.run is None:
        raise ConfigError(
            "--new needs a [run], which says what to train: give a configuration file that has "
            "one, or --set run.seed=0 for the defaults"
        )
    if adopted is not None:
        _check_ranks(loaded.node.ranks, adopted.ranks)
    opened = config.parent if config and (config.parent / ROOT_KEY).exists() else None
    run = opened or RUNS / (loaded.run.name if loaded.run else JOINED)
    directory = _home_of(loaded, run / node_name(loaded.node.name))
    begun = _begun(directory)
    way = (begun.join if begun else "") if new else word
    address, token = _way_in(way, loaded, typed=not new, witness=False)
    warn_if_exposed(join)
    start = StartOptions(
        kind="again" if begun else "new" if new else "join",
        address=address,
        token=token,
        run_directory=opened,
        command=program.command,
        adopted=adopted,
        fault=parse_fault(fault) if fault else None,
    )
    _run_daemon(loaded, directory, start)


def _home_of(config: "FileConfig", default: Path) -> Path:
    """The node's directory: `node.directory`, which may begin with "~", or this one."""
    return Path(os.path.expanduser(config.node.directory or default))


def _check_ranks(ranks: int, processes: int) -> None:
    """Raise ConfigError if a program that starts its node itself has another number of processes
    than the node ranks."""
    if ranks != processes:
        raise ConfigError(
            f"node.ranks is {ranks}, but the program that starts this node itself runs "
            f"{processes} process{'es' * (processes > 1)} (LOCAL_WORLD_SIZE): leave node.ranks "
            f"out, or use `torchrun --nproc-per-node {ranks}`"
        )


def _begun(directory: Path) -> "NodeRecord | None":
    """The record of the node in this directory, if it has taken part in a run. Ends the process if
    that run is finished."""
    from lowcomm.startup.identity import record_of_run

    begun = record_of_run(directory)
    if begun is not None:
        _end_if_finished(directory, begun)
    return begun


def _end_if_finished(directory: Path, record: "NodeRecord") -> None:
    from lowcomm.cli.status import finished

    if over := finished([directory]):
        print(f"{record.name} {over}")  # noqa: T201
        sys.exit()


@app.command()
def resume(
    directory: Annotated[Path, typer.Argument(help="The directory of a run or one of its nodes.")],
    join: Join = "",
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a key of [node], e.g. node.ranks=1; or train a finished run on, up to "
            "run.outer_steps=N. Repeatable.",
            autocompletion=setting_names,
        ),
    ] = None,
    peers: Annotated[
        int | None, typer.Option("--peers", help="Number of nodes, of a run's directory.", min=1)
    ] = None,
    ranks: Annotated[
        str,
        typer.Option("--ranks", help="Ranks of each node of a run's directory, e.g. 1,3."),
    ] = "",
) -> None:
    """Go on from the newest checkpoint in DIRECTORY.

    If DIRECTORY is that of a run of `lowcomm sim` or `lowcomm demo`, start all its nodes again on
    this machine, or the first --peers of them; more join as new ones. If it is that of one node,
    start that node: it joins the other nodes again. If no node has kept the state in memory, all
    nodes go on from the newest checkpoint of any of them.

    A token is only needed if the nodes of the run have other addresses now.

    A finished run goes on with --set run.outer_steps=N, from one node with its last checkpoint, and
    at the last learning rate; the other nodes join that node with --join.

    \b
    Examples:
      lowcomm resume runs/demo
      lowcomm resume runs/demo --set run.outer_steps=200
      lowcomm resume runs/demo --ranks 1,3
      lowcomm resume runs/demo/beta --join @token --set node.ranks=1
    """
    from lowcomm.config.schema import is_run_key, with_node_keys
    from lowcomm.startup.identity import check_resumable, read_record, recorded_config
    from lowcomm.startup.start_options import StartOptions

    word = take_token(join)
    own = [setting for setting in overrides or () if not is_run_key(setting)]
    of_run = [setting for setting in overrides or () if is_run_key(setting)]
    # Called when all that was typed is known to be valid: it changes the log.
    train_on = partial(recover.train_on, directory, of_run)
    record = read_record(directory)
    if record is None:
        _resume_all(directory, peers=peers, ranks=ranks, overrides=own, train_on=train_on)
        return
    if peers is not None or ranks:
        raise ConfigError(
            f"--peers and --ranks are for a run's directory, and {directory} is that of one node: "
            "say --set node.ranks=1"
        )
    config = with_node_keys(recorded_config(directory), own)
    address, token = _way_in(word or record.join, config, typed=bool(word))
    train_on()
    if not word:
        _end_if_finished(directory, record)
    check_resumable(directory, record, way=bool(word or record.join))
    warn_if_exposed(join)
    if record.witness:
        _run_witness(config, directory, address=address, token=token)
    start = StartOptions(kind="again", address=address, token=token, command=record.command)
    _run_daemon(config, directory, start)


def _resume_all(
    directory: Path,
    *,
    peers: int | None,
    ranks: str,
    overrides: list[str],
    train_on: "Callable[[], None]",
) -> None:
    """Start the nodes of a run's directory again, by the package that starts several."""
    from lowcomm.config.schema import with_node_keys
    from lowcomm.startup.identity import node_directories, recorded_config

    for path in node_directories(directory):  # Raises when there is none.
        with_node_keys(recorded_config(path), overrides)
    for entry in entry_points(group=RESUME):
        entry.load()(directory, peers=peers, ranks=ranks, overrides=overrides, train_on=train_on)
        return
    raise ConfigError(f"{directory} is a run's directory: give that of one of its nodes")


@app.command()
def witness(
    join: Join = "",
    overrides: Overrides = None,
) -> None:
    """Vote in a run, and train nothing.

    If one of two nodes is lost, the other one has no majority: it waits, then goes on alone in a
    branch of its own. With a witness on a third machine, the run goes on if either node is lost. A
    witness needs no GPU, no data and little memory, and ends with the run.

    \b
    Examples:
      lowcomm witness --join @token
      lowcomm witness --join @token --set node.name=watch
    """
    from lowcomm.config.schema import load_config
    from lowcomm.startup.identity import node_name

    loaded, word = load_config(None, overrides or ()), take_token(join)
    if not word:
        raise ConfigError(f"give the token of the run, with --join @FILE or {TOKEN_VARIABLE}")
    address, token = _way_in(word, loaded, witness=True)
    warn_if_exposed(join)
    directory = _home_of(loaded, RUNS / WITNESSED / node_name(loaded.node.name))
    _run_witness(loaded, directory, address=address, token=token)


app.command()(plan)
app.command()(launch)
app.command()(stop)
app.command()(recover.recover)
app.command()(revoke.revoke)
app.command()(log_lists.audit)
app.command()(own_node.leave)
app.command()(own_node.checkpoint)
app.command()(own_node.ranks)
app.command()(export)
app.command()(generate)
app.command()(steer.pause)
app.command("continue")(steer.go_on)
app.command()(steer.kick)
app.command("set")(steer.set_value)
app.add_typer(steer.operator, name="operator", help=steer.OPERATORS)
app.add_typer(tokenizer, name="tokenizer", help=TOKENIZER)
app.add_typer(configuration, name="config", help=CONFIGURATION)
configuration.command()(explain)


@tokenizer.command()
def train(
    files: Annotated[
        list[Path],
        typer.Argument(help="Text files, JSON lines, both also as .gz, and folders of them."),
    ],
    vocab: Annotated[
        int, typer.Option("--vocab", metavar="N", help="Number of tokens, at least 257.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path("tokenizer.json"),
    text_key: Annotated[
        str, typer.Option("--text-key", metavar="KEY", help="Key of the text in JSON lines.")
    ] = "text",
) -> None:
    """Train a byte-level BPE tokenizer on FILES, and write its tokenizer.json.

    All nodes of a run need a copy of the file (node.tokenizer). The command shows its progress on a
    terminal. It needs the package tokenizers: pip install 'lowcomm[tokenizers]'.

    \b
    Examples:
      lowcomm tokenizer train books/ --vocab 8192
      lowcomm tokenizer train a.txt web.jsonl.gz --vocab 32768 --out big.json
      lowcomm peer run.toml --new --set node.tokenizer=tokenizer.json
    """
    from lowcomm.data.corpus import read_texts
    from lowcomm.data.tokenizer import train_bpe

    made = train_bpe(read_texts(files, text_key=text_key), vocab_size=vocab, out=out)
    print(f"{out}: {made.vocab_size} tokens, digest {made.fingerprint[:8]}")  # noqa: T201


@app.command()
def status(
    directory: Annotated[Path, typer.Argument(help="The directory of a run or one of its nodes.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each node.")
    ] = False,
) -> None:
    """Show what running daemons do and which peers they await.

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


def _way_in(
    join: str, config: "FileConfig", *, typed: bool = True, witness: bool | None = None
) -> tuple[str, "Token | None"]:
    """(address of a peer of the run, token to join with or None). Raises ConfigError.

    `typed`: a person typed `join`, so it is a token. If it comes from node.json, it may be an
    address: that at which this node was admitted. `witness`: the role of a node that joins.
    """
    from lowcomm.config.addresses import check_way
    from protocols.state import PREFIX, decode_token

    token = decode_token(join) if join and (typed or join.startswith(PREFIX)) else None
    check_way(config.node, token, witness=witness)
    return token.addresses[0] if token else join, token


def _run_daemon(config: "FileConfig", directory: Path, start: "StartOptions") -> NoReturn:
    """Run a node's daemon; exit with its code."""

    def make(listening: "BoundSocket", rejoins_at: str) -> "Life":
        from lowcomm.daemon.daemon import Daemon
        from lowcomm.startup.start_options import StartOptions

        again = StartOptions(kind="join", address=rejoins_at, command=start.command)
        how = again if rejoins_at else start
        return Daemon(config, directory=directory, start=how, listening=listening)

    _live(make, directory, config, contact=start.address, rejoins=start.adopted is None)


def _run_witness(
    config: "FileConfig", directory: Path, *, address: str, token: "Token | None"
) -> NoReturn:
    """Run a witness; exit with its code."""

    def make(listening: "BoundSocket", rejoins_at: str) -> "Life":
        from lowcomm.daemon.witness import WitnessDaemon

        where, how = rejoins_at or address, None if rejoins_at else token
        return WitnessDaemon(
            config, directory=directory, address=where, token=how, listening=listening
        )

    _live(make, directory, config, contact=address)


def _live(
    make: "Callable[[BoundSocket, str], Life]",
    directory: Path,
    config: "FileConfig",
    *,
    contact: str,
    rejoins: bool = True,
) -> NoReturn:
    """Run the daemon of `make(socket, address at which to join again or "")`, and a new one as long
    as it has to join again (if it `rejoins`); then exit with its code."""
    import asyncio

    from lowcomm.config.addresses import listen_at
    from lowcomm.startup.identity import read_record
    from peers.sockets import listen

    code, rejoins_at = 0, ""
    while True:
        record = read_record(directory)
        before = record.address if record is not None else ""
        # Peers may dial while the rest is imported.
        listening = listen(listen_at(config.node, contact), before=before)

        async def life(
            listening: "BoundSocket" = listening, at: str = rejoins_at
        ) -> tuple[int, str]:
            daemon = make(listening, at)
            return await daemon.run(), daemon.rejoins_at

        with closing(listening), asyncio.Runner(loop_factory=_loop_factory()) as runner:
            code, rejoins_at = runner.run(life())
        if rejoins_at and not rejoins:
            raise LowcommError("this node's branch of the run was given up: join the run again")
        if not rejoins_at:
            sys.exit(code)
        # Its branch of the run was given up: it joins as a new peer with an empty log.
        from lowcomm.startup.startup import set_aside

        set_aside(directory)


def _loop_factory() -> "Callable[[], AbstractEventLoop]":
    """The factory of uvloop's event loop if it is installed; else of asyncio's."""
    import asyncio

    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
