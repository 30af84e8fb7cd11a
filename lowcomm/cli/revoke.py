"""The command `lowcomm revoke`: revokes a peer's certificate, or a join token.

It asks any node of the run that runs on this machine. Must NOT import anything slow: the command
line imports this module before it listens.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from lowcomm.cli.token_source import take_token
from protocols.types import ConfigError, LowcommError

if TYPE_CHECKING:
    from lowcomm.startup.identity import NodeRecord

PREFIX = "lc2-"
"""The beginning of a token (protocols/state/tokens.py)."""

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
            metavar="[PEER|@FILE]",
            help="The node to shut out, by name or id; or a token in a file.",
        ),
    ] = "",
    token: Annotated[
        str,
        typer.Option(
            "--token",
            metavar="NUMBER",
            help="Revoke the token of this number, of `lowcomm token list DIRECTORY`.",
        ),
    ] = "",
    nodes: Annotated[
        bool, typer.Option("--nodes", help="With a token, shut out the nodes that came by it too.")
    ] = False,
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

    No peer communicates with a revoked node any more, and its own tokens admit no node. A revoked
    token admits no node; nodes that it admitted before stay, unless --nodes is given. A revocation
    stays in the run's log, even if the run is rolled back.

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
      lowcomm revoke runs/demo/alpha --token 1f0c22aa --nodes
      lowcomm revoke runs/demo/alpha gamma --force
    """
    if bool(what) == bool(token):
        raise ConfigError("say what to revoke: a node, @FILE with a token, or --token NUMBER")
    subject = token or (take_token(what) if what.startswith("@") else what)
    is_token = bool(token) or what.startswith(("@", PREFIX))
    if nodes and not is_token:
        raise ConfigError("--nodes is about a token: give @FILE or --token NUMBER too")
    done, came = ask(directory, subject, why, force=force, token=is_token)
    if not nodes:
        print(done)  # noqa: T201
        return
    print("the token admits no more nodes")  # noqa: T201
    record = _running(directory)
    # This node can ask for the others only as long as it is in.
    for peer in sorted(came, key=lambda peer: peer == record.peer):
        print(ask(directory, peer, why, force=force, token=False)[0])  # noqa: T201


def _running(directory: Path) -> "NodeRecord":
    """The record of a node that runs. Raises ConfigError."""
    from lowcomm.startup.identity import read_record

    record = read_record(directory)
    if record is None or not Path(record.bus.removeprefix("ipc://")).exists():
        raise ConfigError(
            f"no node runs in {directory}: give the directory of a node that does (runs/NAME/NODE)"
        )
    return record


def ask(
    directory: Path, what: str, why: str, *, force: bool, token: bool
) -> tuple[str, Sequence[str]]:
    """Ask for the revocation and wait; return the confirmation, and the nodes that came by a token.

    Raises ConfigError if it is refused, and LowcommError if the run could not decide in time.
    """
    from peers.ipc import LinkError, Revoke, ask_daemon

    record = _running(directory)
    deadline, again = time.monotonic() + WAIT_S, False
    while time.monotonic() < deadline:
        try:
            question = Revoke(what=what, token=token, why=why, force=force, again=again)
            answer = ask_daemon(record.bus, question, timeout_s=AGAIN_S + WAIT_S / 4)
        except LinkError as error:
            raise LowcommError(f"{record.name} does not answer: {error}") from None
        if answer.get("error"):
            raise ConfigError(str(answer["error"]))
        if answer.get("done"):
            return str(answer["done"]), cast(list[str], answer["nodes"])
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
