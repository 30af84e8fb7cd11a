"""The commands `lowcomm init` and `lowcomm token`: make a run's directory, and join tokens.

Must NOT import anything slow before a command runs.
"""

from pathlib import Path
from typing import Annotated

import typer

from protocols.types import ConfigError

Uses = Annotated[int, typer.Option("--uses", help="Number of nodes that the token admits.")]
Hours = Annotated[float, typer.Option("--hours", help="Hours for which the token is valid.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help="Write the token to this file, which only you can read."
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
) -> None:
    """Print another join token. `lowcomm token list DIRECTORY` lists those that were used.

    The run's root key signs it, if it is in DIRECTORY; otherwise a node that votes does, and the
    token is good as long as that node votes.

    \b
    Examples:
      lowcomm token runs/first
      lowcomm token runs/first/alpha --uses 1 --hours 1 --out token
      lowcomm token runs/first --witness
      lowcomm token list runs/first/alpha
    """
    from lowcomm.startup.join_tokens import new_token

    word = new_token(directory, uses=uses, hours=hours, advertise=advertise, witness=witness)
    _keep(word, out)
    if out is None:
        print(word)  # noqa: T201


def _keep(word: str, out: Path | None) -> None:
    """Write the token to the file, if there is one. Raises ConfigError."""
    from peers.storage import write_private

    if out is None:
        return
    try:
        write_private(out, f"{word}\n".encode())
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror}") from None
