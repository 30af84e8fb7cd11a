"""The command `lowcomm revoke`: revokes a peer's certificate, or a join token.

It asks any node of the run that runs on this machine. Must NOT import anything slow: the command
line imports this module before it listens.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import typer

from lowcomm.cli.acts import WAIT_S, ask_run, running
from lowcomm.cli.token_source import take_token
from protocols.types import ConfigError, LowcommError

PREFIX = "lc2-"
"""The beginning of a token (protocols/state/tokens.py)."""


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
    record = running(directory)
    # This node can ask for the others only as long as it is in.
    for peer in sorted(came, key=lambda peer: peer == record.peer):
        print(ask(directory, peer, why, force=force, token=False)[0])  # noqa: T201


def ask(
    directory: Path, what: str, why: str, *, force: bool, token: bool
) -> tuple[str, Sequence[str]]:
    """Ask for the revocation and wait; return the confirmation, and the nodes that came by a token.

    Raises ConfigError if it is refused, and LowcommError if the run could not decide in time.
    """
    from peers.ipc import Revoke

    answer = ask_run(
        running(directory),
        lambda again: Revoke(what=what, token=token, why=why, force=force, again=again),
    )
    if answer is not None:
        return str(answer["done"]), cast(list[str], answer["nodes"])
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
