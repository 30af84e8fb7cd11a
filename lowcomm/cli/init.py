"""`lowcomm init` and `lowcomm token`: who opens a run, and for whom.

Must NOT import anything slow before a command runs.
"""

from pathlib import Path
from typing import Annotated

import typer

Uses = Annotated[int, typer.Option("--uses", help="How many nodes a token lets in.")]
Hours = Annotated[float, typer.Option("--hours", help="For how long it does.")]


def init(
    directory: Annotated[Path, typer.Argument(help="The run's directory, a new one or yours.")],
    advertise: Annotated[
        str,
        typer.Option(
            "--advertise",
            metavar="HOST:PORT",
            help="Where others will dial the node that begins the run.  [default: as in run.toml]",
        ),
    ] = "",
    uses: Uses = 16,
    hours: Hours = 24.0,
) -> None:
    """Open a run: its authority and a first join token.

    The directory gets a certificate authority, which says who belongs to the run, and a run.toml to
    start from if it has none.

    \b
    Examples:
      lowcomm init runs/first
      lowcomm init runs/first --advertise gpu1.example.org:4711 --uses 30
    """
    from lowcomm.startup.join_tokens import RUN_FILE, check, new_token, open_run

    check(uses, hours)
    made = open_run(directory, advertise=advertise)
    word = new_token(directory, uses=uses, hours=hours, advertise=advertise)
    print(f"made in {directory}: {', '.join(made)}")  # noqa: T201
    print(f"a token, good for {uses} nodes within {hours:g} hours:\n{word}")  # noqa: T201
    print("next:")  # noqa: T201
    print(f"  lowcomm peer {directory / RUN_FILE} --new    # here")  # noqa: T201
    print("  lowcomm peer --join TOKEN    # on the others, with the token above")  # noqa: T201


def token(
    directory: Annotated[
        Path, typer.Argument(help="A run's directory, or that of a node that votes in it.")
    ],
    uses: Uses = 16,
    hours: Hours = 24.0,
    advertise: Annotated[
        str,
        typer.Option(
            "--advertise",
            metavar="HOST:PORT",
            help="Where to join.  [default: at the nodes whose directories these are]",
        ),
    ] = "",
) -> None:
    """Print another join token.

    Any machine of the run that has a voter's directory will do, also when the one that began the
    run is gone.

    \b
    Examples:
      lowcomm token runs/first
      lowcomm token runs/first/alpha --uses 1 --hours 1
    """
    from lowcomm.startup.join_tokens import new_token

    print(new_token(directory, uses=uses, hours=hours, advertise=advertise))  # noqa: T201
