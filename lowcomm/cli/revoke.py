"""The command `lowcomm revoke`: revokes a peer's certificate, or a join token.

It asks any node of the run that runs on this machine. Must NOT import anything slow: the command
line imports this module before it listens.
"""

import time
from pathlib import Path
from typing import Annotated

import typer

from lowcomm.cli.token_source import take_token
from protocols.types import ConfigError, LowcommError

WAIT_S = 20.0
"""Seconds to wait until the log holds the revocation; long enough for an election."""
AGAIN_S = 0.2


def revoke(
    directory: Annotated[
        Path, typer.Argument(help="The directory of a node that runs on this machine.")
    ],
    what: Annotated[
        str,
        typer.Argument(
            metavar="PEER|@FILE",
            help="The node to shut out, by name or id; or a token in a file.",
        ),
    ],
    why: Annotated[
        str, typer.Option("--why", help="The reason, shown to all nodes and to the revoked one.")
    ] = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Revoke even if no majority of the remaining voters can be reached."
        ),
    ] = False,
) -> None:
    """Revoke a node's certificate or a join token.

    No peer communicates with a revoked node any more. A revoked token admits no node; nodes that it
    admitted before stay. A revocation stays in the run's log, even if the run is rolled back. A
    node that has ever voted has the key with which certificates are made: if an attacker may have
    that node, begin another run.

    Before a node is revoked, the run ends its vote. If no majority of the remaining voters can be
    reached, the run refuses and changes nothing, since it could decide nothing afterwards. --force
    logs the revocation nevertheless: it takes effect once a majority of those voters is connected.
    If they are gone for good, stop the remaining nodes, run `lowcomm recover --force` on the best
    of them, and start it with `lowcomm resume`.

    \b
    Examples:
      lowcomm revoke runs/demo/alpha gamma
      lowcomm revoke runs/demo/alpha gamma.1f0c22aa --why "the laptop was stolen"
      lowcomm revoke runs/demo/alpha @token --why "it was in a public chat"
      lowcomm revoke runs/demo/alpha gamma --force
    """
    subject = take_token(what) if what.startswith("@") else what
    print(ask(directory, subject, why, force=force))  # noqa: T201


def ask(directory: Path, what: str, why: str, *, force: bool) -> str:
    """Ask for the revocation and wait; return the confirmation.

    Raises ConfigError if it is refused, and LowcommError if the run could not decide in time.
    """
    from lowcomm.startup.identity import read_record
    from peers.ipc import LinkError, Revoke, ask_daemon

    record = read_record(directory)
    if record is None or not Path(record.bus.removeprefix("ipc://")).exists():
        raise ConfigError(
            f"no node runs in {directory}: give the directory of a node that does (runs/NAME/NODE)"
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
            f"the run could not commit the revocation within {WAIT_S:g} s, and decides nothing "
            "else before: it takes effect once a majority of the remaining voters is connected. If "
            "they are gone for good, stop the remaining nodes, run `lowcomm recover --force "
            "DIRECTORY` on one of them, then `lowcomm resume DIRECTORY`"
        )
    raise LowcommError(
        f"the run could not decide within {WAIT_S:g} s, which needs a majority of its voters: it "
        "will decide once it has one, if this node keeps running"
    )
