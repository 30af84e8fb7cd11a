"""The commands `lowcomm token list` and `lowcomm audit`: the join tokens in the log of a run with
their nodes, and all that people asked the run for.

Each asks a node of the run that runs on this machine. Must NOT import anything slow: the command
line imports this module before it listens.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, cast

import typer

from lowcomm.cli.acts_command import ask_any, print_rows, utc

NUMBER_SHOWN = 8
"""Hex digits of a token's number in the table; `lowcomm revoke --token` takes them."""


def token_list(
    directory: Annotated[Path, typer.Argument(help="The directory of a run or one of its nodes.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each token.")
    ] = False,
) -> None:
    """List the run's join tokens, and the nodes that came by each.

    The table shows the signer of each: the root key, an operator by its key, or a voter. The run's
    log has no tokens of operators that no node has used yet. A node of the run has to run in
    DIRECTORY.

    \b
    Examples:
      lowcomm token list runs/first
      lowcomm token list runs/first/alpha --json
    """
    from peers.ipc import ListTokens

    tokens = ask_any(directory, ListTokens(), "tokens")
    if as_json:
        for token in tokens:
            print(json.dumps(token))  # noqa: T201
    else:
        print_table(tokens)


def print_table(tokens: Sequence[Mapping[str, object]]) -> None:
    """Print the tokens as a table for people."""
    columns = ("token", "signed by", "admits", "used", "good until", "nodes")
    empty = "the log has no tokens: the run is not encrypted"
    print_rows(columns, list(map(_token_cells, tokens)), empty=empty)


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
        print_rows(columns, list(map(_act_cells, acts)), empty=empty)


def _token_cells(token: Mapping[str, object]) -> list[str]:
    nodes = cast(list[Mapping[str, object]], token["nodes"])
    return [
        str(token["number"])[:NUMBER_SHOWN],
        _signer(str(token["issuer"])),
        "founder" if token["founder"] else f"{token['role']}s",
        f"{len(nodes)}/{token['uses']}",
        "revoked" if token["revoked"] else utc(int(str(token["expires"]))),
        ", ".join(map(_node, nodes)),
    ]


def _signer(issuer: str) -> str:
    """The root key, an operator by the first digits of its key, or a voter."""
    from protocols.state import operator_of

    named = f"operator {issuer[:NUMBER_SHOWN]}" if operator_of(issuer) else issuer
    return named or "root key"


def _node(node: Mapping[str, object]) -> str:
    state = "revoked" if node["revoked"] else "" if node["here"] else "gone"
    return f"{node['peer']} ({state})" if state else str(node["peer"])


def _act_cells(act: Mapping[str, object]) -> list[str]:
    time = utc(int(str(act["time"]))) if act["time"] else ""
    rest = [str(act[field]) for field in ("act", "subject", "by", "why")]
    return [str(act["index"]), time, *rest]
