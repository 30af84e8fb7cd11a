"""The command `lowcomm recover`: shows what is lost, and with --force lets a node go on alone.

Must NOT decide which node goes on (a person does), nor change the node's files itself
(recover_forced.py, recover_from_checkpoint.py).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from protocols.types import ConfigError


def recover(
    directory: Annotated[Path, typer.Argument(help="The directory of a run or one of its nodes.")],
    force: Annotated[
        bool, typer.Option("--force", help="Recover. Without this, only show what is lost.")
    ] = False,
    from_checkpoint: Annotated[
        bool,
        typer.Option(
            "--from-checkpoint",
            help="If the node's log cannot be read, begin another one at its newest checkpoint.",
        ),
    ] = False,
) -> None:
    """Go on without a majority, or without a readable log.

    Do this only if the other voters will not come back. If a majority of them still runs, it goes
    on without this node; when the two branches meet, the one with fewer committed tokens is given
    up. If DIRECTORY has several nodes, the
    node that has the newest checkpoint with most committed tokens is taken.

    If a log cannot be read, --from-checkpoint puts it aside. If other nodes voted too, --force is
    needed as well: while a majority of them runs, join it from another directory instead.

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
                "nothing is changed; if the other voters are gone for good, add --force"
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
                "gone for good, add --force"
            )
        plan.write()
    print(f"done; start it with: lowcomm resume {plan.directory}")  # noqa: T201


def train_on(directory: Path, settings: Sequence[str]) -> None:
    """Let a finished run go on: the best node in the directory alone, up to the number of outer
    steps that `settings` names, if any. Raises ConfigError."""
    import time

    from lowcomm.cli.recover_forced import OUTER_STEPS, recovery

    if not settings:
        return
    key, _, value = settings[0].partition("=")
    if len(settings) > 1 or key.strip() != OUTER_STEPS:
        raise ConfigError(
            f"--set {' '.join(settings)}: only {OUTER_STEPS}=N can change when a run is resumed, "
            "and only of a finished run; `lowcomm set` changes a running one"
        )
    with recovery(directory) as plan:
        plan.prolong(value.strip(), unix_s=int(time.time()))
    print(f"{plan.directory} trains on, up to outer step {value.strip()}")  # noqa: T201
