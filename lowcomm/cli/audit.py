"""The command `lowcomm audit`: the revocations and issued tokens in the log of a run.

It asks a node of the run that runs on this machine. Must NOT import anything slow: the command line
imports this module before it listens.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from lowcomm.cli.acts_command import ask_any, print_rows


def audit(
    directory: Annotated[Path, typer.Argument(help="The directory of a run or one of its nodes.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each act.")
    ] = False,
) -> None:
    """List the revocations and the tokens of voters in the run's log.

    An act is by the run's root key if that signed it, else by the voter at which it was asked for.
    Tokens that the root key signs are not in the log (`lowcomm token list` has those in use). A
    node of the run has to run in DIRECTORY.

    \b
    Examples:
      lowcomm audit runs/first
      lowcomm audit runs/first/alpha --json
    """
    from peers.ipc import ListActs

    acts = ask_any(directory, ListActs(), "acts")
    if as_json:
        for act in acts:
            print(json.dumps(act))  # noqa: T201
    else:
        columns = ("entry", "act", "subject", "by", "at", "reason")
        empty = "the log has no revocation, and no token of a voter"
        print_rows(columns, list(map(_cells, acts)), empty=empty)


def _cells(act: Mapping[str, object]) -> list[str]:
    return [str(act[field]) for field in ("index", "act", "subject", "by", "at", "why")]
