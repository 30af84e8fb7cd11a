"""Where a node listens and what it tells others to dial, from what a person typed.

Must NOT import anything slow: it is asked before the daemon listens.
"""

from dataclasses import replace

from lowcomm.config.schema import NodeConfig
from peers.sockets.address import (
    format_address,
    is_loopback,
    is_wildcard,
    parse_address,
    require_loopback,
)
from peers.sockets.listener import way_to
from protocols.state.tokens import Token
from protocols.types.errors import ConfigError

HERE = "127.0.0.1:0"
NOWHERE = "none"
"""As `node.listen`: nobody can dial this node."""


def check_way(node: NodeConfig, token: Token | None) -> None:
    """May this node speak as it says, with whom it says? `token`: how it joins.

    Raises ConfigError. Nothing goes in the clear but inside this machine, between nodes that both
    say so.
    """
    look = require_loopback if node.insecure else parse_address
    if node.listen == NOWHERE:
        _check_hidden(node)
        node = replace(node, listen="")
    for key, address in (("node.listen", node.listen), ("node.advertise", node.advertise)):
        if address:
            look(address, key=key)
    for address in token.addresses if token is not None else ():
        look(address, key="--join")
    if node.metrics:
        parse_address(node.metrics, key="node.metrics")
    listen = parse_address(node.listen, key="node.listen")[0] if node.listen else ""
    if is_wildcard(listen) and not node.advertise and token is None:
        raise ConfigError(
            f"node.listen: {node.listen} is every address of this machine: say which one others "
            "shall dial, with node.advertise"
        )
    if token is not None and token.secure == node.insecure:
        raise ConfigError(
            "--join: the token is of an encrypted run: leave node.insecure out"
            if token.secure
            else "--join: the token is of a run without encryption, on this machine only: to "
            "join it all the same, --set node.insecure=true"
        )


def listen_at(node: NodeConfig, contact: str) -> str:
    """What to listen on; "": nothing. `contact`: where the run is, if we join one.

    Raises ConfigError.
    """
    if node.listen:
        return "" if node.listen == NOWHERE else node.listen
    if not contact or is_loopback(parse_address(contact, key="--join")[0]):
        return HERE
    return format_address(way_to(contact), 0)


def advertised(node: NodeConfig, listening: str, contact: str) -> str:
    """What others shall dial, when we listen at `listening`; "": nobody can. `contact`: where
    the run is, if we join one. Raises ConfigError."""
    if not listening:
        return ""
    host, port = parse_address(listening, key="node.listen")
    if node.advertise:
        said, at = parse_address(node.advertise, key="node.advertise")
        return format_address(said, at or port)
    if not (is_wildcard(host) and contact):
        return listening
    return format_address(way_to(contact), port)


def _check_hidden(node: NodeConfig) -> None:
    if node.advertise:
        raise ConfigError(
            f"node.advertise: others cannot dial {node.advertise} while node.listen is "
            f'"{NOWHERE}": give the address that this node listens on, or leave advertise out'
        )


def check_founder(address: str) -> None:
    """Who begins a run is whom others ask to join. Raises ConfigError."""
    if not address:
        raise ConfigError(
            f'node.listen: "{NOWHERE}" is for who joins: begin the run on a node that others can '
            "dial"
        )
