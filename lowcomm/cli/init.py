"""The commands `lowcomm init` and `lowcomm token`: make a run's directory, and join tokens.

Must NOT import anything slow before a command runs.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from lowcomm.cli.acts_command import ask_run, running
from protocols.types import ConfigError, LowcommError

ISSUE_S = 10.0
"""Seconds to wait until the log has a token."""
Uses = Annotated[int, typer.Option("--uses", help="Number of nodes that the token admits.")]
Hours = Annotated[float, typer.Option("--hours", help="Hours for which the token is valid.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help="Write the token to this file, which only you can read."
    ),
]
TokenKey = Annotated[
    Path | None,
    typer.Option(
        "--key", metavar="FILE", help="An operator's key.  [default: root-key.pem in DIRECTORY]"
    ),
]


def init(
    directory: Annotated[
        Path, typer.Argument(help="The run's directory; it is made if it does not exist.")
    ],
    advertise: Annotated[
        str,
        typer.Option(
            "--advertise",
            metavar="HOST:PORT",
            help="The address of the node that begins the run.  [default: as in run.toml]",
        ),
    ] = "",
    uses: Uses = 16,
    hours: Hours = 24.0,
    out: Out = None,
) -> None:
    """Make the root key and first token of a run.

    The root key signs the run's tokens and never leaves the directory. If the directory has no
    run.toml, it gets one to start from.

    \b
    Examples:
      lowcomm init runs/first
      lowcomm init runs/first --advertise gpu1.example.org:4711 --out token
    """
    from lowcomm.startup.join_tokens import RUN_FILE, check, new_token, open_run

    check(uses, hours)
    _check_out(out)
    made = open_run(directory, advertise=advertise)
    word = new_token(directory, uses=uses, hours=hours, advertise=advertise)
    print(f"made in {directory}: {', '.join(made)}")  # noqa: T201
    where = f"\n{word}" if out is None else f" {out}"
    _keep(word, out)
    print(f"a join token for {uses} nodes, valid for {hours:g} hours:{where}")  # noqa: T201
    print("next:")  # noqa: T201
    print(f"  lowcomm peer {directory / RUN_FILE} --new    # here")  # noqa: T201
    print("  lowcomm peer --join @FILE    # on the other nodes; FILE: the token")  # noqa: T201


def token(
    directory: Annotated[
        Path, typer.Argument(help="The directory of a run, or of a node that votes in it.")
    ],
    uses: Uses = 16,
    hours: Hours = 24.0,
    advertise: Annotated[
        str,
        typer.Option(
            "--advertise",
            metavar="HOST:PORT",
            help="The address in the token.  [default: those of the nodes in DIRECTORY]",
        ),
    ] = "",
    witness: Annotated[
        bool, typer.Option("--witness", help="Admit witnesses, and no nodes that train.")
    ] = False,
    out: Out = None,
    key: TokenKey = None,
) -> None:
    """Print another join token. `lowcomm token list DIRECTORY` lists those in the log.

    The operator's key in --key FILE signs it, with any node in DIRECTORY; without the option the
    run's root key, if it is in DIRECTORY; otherwise a node that votes does. If that node runs, the
    run's log gets the token, which then counts until it expires, whatever becomes of the node; else
    the token counts as long as the node votes. An operator's token counts as long as the key is one
    of an operator; nodes that it admitted before stay.

    \b
    Examples:
      lowcomm token runs/first
      lowcomm token runs/joined/beta --key alice.pem --out token
      lowcomm token runs/first/alpha --uses 1 --hours 1 --out token
      lowcomm token runs/first --witness
      lowcomm token list runs/first/alpha
    """
    from lowcomm.startup.join_tokens import new_token

    _check_out(out)
    word = new_token(
        directory, uses=uses, hours=hours, advertise=advertise, witness=witness, signer=key
    )
    if why := issue(directory, word):
        told = f"this token counts as long as its issuer votes: {why}"
        print(told, file=sys.stderr)  # noqa: T201
    _keep(word, out)
    if out is None:
        print(word)  # noqa: T201


def issue(directory: Path, word: str) -> str:
    """Have the run log a new token of a voter in `directory`, so that it counts whatever becomes of
    its issuer. Returns why that did not succeed; "" if it did, or if an operator has signed the
    token."""
    from lowcomm.startup.identity import node_directories
    from peers.ipc import IssueToken
    from peers.security import TrustStore
    from protocols.state import decode_token, operator_of

    token = decode_token(word)
    if not token.issuer or operator_of(token.issuer):
        return ""
    nodes = (x for x in node_directories(directory) if TrustStore.load(x).peer == token.issuer)
    try:
        record = running(next(nodes, directory))
        answer = ask_run(record, lambda again: IssueToken(word=word, again=again), wait_s=ISSUE_S)
    except LowcommError as error:
        return str(error)
    return "" if answer is not None else f"the run did not log it within {ISSUE_S:g} s"


def _check_out(out: Path | None) -> None:
    """Raise ConfigError if a token cannot be kept there: its file is replaced as a whole, and in
    place of a device or pipe a file would lie."""
    if out is None:
        return
    if out.exists() and not out.is_file():
        raise ConfigError(
            f"--out {out} is no regular file: give the name of one; without --out the token is "
            "printed"
        )
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out} cannot be written: {out.parent} is no directory: make it")


def _keep(word: str, out: Path | None) -> None:
    """Write the token to the file, if there is one; a link stays. Raises ConfigError."""
    from peers.storage import write_private

    if out is None:
        return
    try:
        write_private(out.resolve(), f"{word}\n".encode())
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror}") from None
