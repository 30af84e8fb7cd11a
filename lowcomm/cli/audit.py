"""The command `lowcomm audit`: all that people asked a run for, as its log has it.

It asks a node of the run that runs on this machine. Must NOT import anything slow: the command line
imports this module before it listens.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from lowcomm.cli.acts_command import ask_any, print_rows, utc


def audit(
    directory: Annotated[Path, typer.Argument(help="The directory of a run or one of its nodes.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each act.")
    ] = False,
) -> None:
    """List all acts of people in the run's log.

    These are revocations, pauses, removed nodes, changed keys and operators, and tokens of voters.
    An act is by the operator's key that signed it, else by the voter at which it was asked for. The
    log keeps the newest 512 acts that are neither revocations nor tokens, and all that are in
    force. Times are by the clock of the machine at which a person asked, where they are known.
    Tokens that an operator signs are not in the log (`lowcomm token list` has those in use). A
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
        columns = ("entry", "time", "act", "subject", "by", "reason")
        empty = "the log has no act of an operator, and no token of a voter"
        print_rows(columns, list(map(_cells, acts)), empty=empty)


def _cells(act: Mapping[str, object]) -> list[str]:
    time = utc(int(str(act["time"]))) if act["time"] else ""
    rest = [str(act[field]) for field in ("act", "subject", "by", "why")]
    return [str(act["index"]), time, *rest]
