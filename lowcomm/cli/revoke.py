"""`lowcomm revoke`: a person's word that a peer's certificate, or a join token, counts no more.

Asked at any node of the run that runs on this machine. Must NOT import anything slow: the command
line does, before it listens.
"""

import time
from pathlib import Path
from typing import Annotated

import typer

from protocols.types.errors import ConfigError, LowcommError

WAIT_S = 20.0
"""Until the log holds it: an election fits in."""
AGAIN_S = 0.2


def revoke(
    directory: Annotated[Path, typer.Argument(help="A node of the run that runs here.")],
    what: Annotated[
        str,
        typer.Argument(
            metavar="PEER|TOKEN", help="Whom to shut out, by name or id; or a join token."
        ),
    ],
    why: Annotated[
        str, typer.Option("--why", help="For the others, and for who is shut out.")
    ] = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also if no majority of the voters that remain can be reached."
        ),
    ] = False,
) -> None:
    """Take a node's certificate back: it is out of the run. Or a join token: it lets nobody in.

    Nobody speaks with the node any more; who came with the token before stays. This is in the run's
    log for good, whatever the run goes back to. A node that has ever voted has the key that
    certificates are made with: if it is in wrong hands, begin another run.

    The run takes a node's vote away first. It refuses to, and changes nothing, where no majority of
    the voters that remain can be reached, for it could decide nothing more. --force writes the
    revocation all the same: it holds as soon as a majority of those voters is there. If they are
    gone for good, stop the nodes that remain, run `lowcomm recover --force` on the best of them,
    and start it with `lowcomm resume`.

    \b
    Examples:
      lowcomm revoke runs/demo/alpha gamma
      lowcomm revoke runs/demo/alpha gamma.1f0c22aa --why "the laptop was stolen"
      lowcomm revoke runs/demo/alpha TOKEN --why "it was in a public chat"
      lowcomm revoke runs/demo/alpha gamma --force
    """
    print(ask(directory, what, why, force=force))  # noqa: T201


def ask(directory: Path, what: str, why: str, *, force: bool) -> str:
    """What became of it.

    Raises ConfigError if it is refused, and LowcommError if the run could not decide in time.
    """
    from lowcomm.startup.identity import read_record
    from peers.ipc.command_bus import Revoke, ask_daemon
    from peers.ipc.msgpack_records import LinkError

    record = read_record(directory)
    if record is None or not Path(record.bus.removeprefix("ipc://")).exists():
        raise ConfigError(
            f"{directory}: no node of the run runs there: give the directory of one that does "
            "(runs/NAME/NODE)"
        )
    deadline, again = time.monotonic() + WAIT_S, False
    while time.monotonic() < deadline:
        try:
            question = Revoke(what=what, why=why, force=force, again=again)
            answer = ask_daemon(record.bus, question, timeout_s=AGAIN_S + WAIT_S / 4)
        except LinkError as error:
            raise LowcommError(f"{record.name} does not answer: {error}") from None
        if answer.get("error"):
            raise ConfigError(str(answer["error"]))
        if answer.get("done"):
            return str(answer["done"])
        again = True
        time.sleep(AGAIN_S)
    if force:
        raise LowcommError(
            f"the run could not commit it within {WAIT_S:g} s, and decides nothing else before: it "
            "holds when a majority of the voters that remain is there. If they are gone for good, "
            "stop the nodes that remain, run `lowcomm recover --force DIRECTORY` on one of them, "
            "then `lowcomm resume DIRECTORY`"
        )
    raise LowcommError(
        f"the run could not decide within {WAIT_S:g} s (a majority of its voters has to be there): "
        "it does so when it can, unless this node ends"
    )
