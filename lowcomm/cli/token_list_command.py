"""The command `lowcomm token list`: the join tokens in the log of a run, and their nodes.

It asks a node of the run that runs on this machine. Must NOT import anything slow: the command line
imports this module before it listens.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, cast

import typer

from lowcomm.cli.acts_command import ask_any, print_rows

NUMBER_SHOWN = 8
"""Hex digits of a token's number in the table; `lowcomm revoke --token` takes them."""


def token_list(
    directory: Annotated[Path, typer.Argument(help="The directory of a run or one of its nodes.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each token.")
    ] = False,
) -> None:
    """List the run's join tokens, and the nodes that came by each.

    The run's log has no tokens of the root key that no node has used yet. A node of the run has to
    run in DIRECTORY.

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
    columns = ("token", "issued by", "admits", "used", "good until", "nodes")
    empty = "the log has no tokens: the run is not encrypted"
    print_rows(columns, list(map(_cells, tokens)), empty=empty)


def _cells(token: Mapping[str, object]) -> list[str]:
    nodes = cast(list[Mapping[str, object]], token["nodes"])
    return [
        str(token["number"])[:NUMBER_SHOWN],
        str(token["issuer"] or "root key"),
        "founder" if token["founder"] else f"{token['role']}s",
        f"{len(nodes)}/{token['uses']}",
        "revoked" if token["revoked"] else _at(int(str(token["expires"]))),
        ", ".join(map(_node, nodes)),
    ]


def _at(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _node(node: Mapping[str, object]) -> str:
    state = "revoked" if node["revoked"] else "" if node["here"] else "gone"
    return f"{node['peer']} ({state})" if state else str(node["peer"])
