"""The command `lowcomm recover`: what a person reads and says before a node goes on alone.

Must NOT decide who survives (a person does), nor how (recover_forced.py,
recover_from_checkpoint.py).
"""

from pathlib import Path
from typing import Annotated

import typer

from protocols.types.errors import ConfigError


def recover(
    directory: Annotated[Path, typer.Argument(help="A run directory, or one node's in it.")],
    force: Annotated[
        bool, typer.Option("--force", help="Do it; else only say what is lost.")
    ] = False,
    from_checkpoint: Annotated[
        bool,
        typer.Option(
            "--from-checkpoint",
            help="The node's log cannot be read: begin another at its newest checkpoint.",
        ),
    ] = False,
) -> None:
    """Go on without a majority, or without a readable log.

    Do this only if they will not come back: a majority that still runs somewhere goes on without
    this node, and when the two meet, the one with fewer committed tokens is given up. Of several
    nodes in DIRECTORY the one with most committed tokens in its newest checkpoint is taken.

    A log that cannot be read is put aside by --from-checkpoint. Where other nodes voted too, it
    needs --force as well: while a majority of them runs, join it from another directory instead.

    \b
    Examples:
      lowcomm recover runs/demo/beta
      lowcomm recover --force runs/demo/beta && lowcomm resume runs/demo/beta
      lowcomm recover --from-checkpoint runs/demo/beta
    """
    if from_checkpoint:
        _begin_anew(directory, force=force)
        return
    from lowcomm.cli.recover_forced import recovery

    with recovery(directory) as plan:
        print("\n".join(plan.lines()))  # noqa: T201
        if not force:
            raise ConfigError(
                "nothing is changed; if the others are gone for good, say it with --force"
            )
        plan.write()
    print(f"done; start it with: lowcomm resume {plan.directory}")  # noqa: T201


def _begin_anew(directory: Path, *, force: bool) -> None:
    from lowcomm.cli.recover_from_checkpoint import beginning_anew

    with beginning_anew(directory) as plan:
        print("\n".join(plan.lines()))  # noqa: T201
        if plan.others and not force:
            raise ConfigError(
                f"nothing is changed; other nodes vote too ({', '.join(plan.others)}): if they are "
                "gone for good, say it with --force"
            )
        plan.write()
    print(f"done; start it with: lowcomm resume {plan.directory}")  # noqa: T201
