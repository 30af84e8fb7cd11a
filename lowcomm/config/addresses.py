"""Derives from a node's configuration the address that it listens on and the one that others dial.

Must NOT import slow modules: it runs before the daemon listens.
"""

from dataclasses import replace

from lowcomm.config.schema import NodeConfig
from peers.sockets import (
    format_address,
    is_loopback,
    is_wildcard,
    parse_address,
    require_loopback,
    way_to,
)
from protocols.state import Token
from protocols.types import ConfigError

HERE = "127.0.0.1:0"
NOWHERE = "none"
"""The value of `node.listen` of a node that no other node can dial."""


def check_way(node: NodeConfig, token: Token | None, *, witness: bool | None = None) -> None:
    """Check the addresses of a node and of its token, and that both agree about encryption and
    role.

    `token`: None if the node joins no run; `witness`: None if the node is admitted already. Raises
    ConfigError. Unencrypted connections are allowed
    only inside this machine, between nodes that both set `node.insecure`.
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
            f"node.listen: {node.listen} means every address of this machine: set node.advertise "
            "to the one that other nodes dial"
        )
    if token is not None and token.secure == node.insecure:
        raise ConfigError(
            "--join: the token belongs to an encrypted run: leave node.insecure out"
            if token.secure
            else "--join: the token belongs to a run without encryption, on this machine only: "
            "to join it, add --set node.insecure=true"
        )
    if token is not None and token.secure and witness not in (None, token.witness):
        raise ConfigError(
            "--join: the token admits witnesses only: use it with `lowcomm witness`, or ask for "
            "another one (`lowcomm token DIRECTORY`)"
            if token.witness
            else "--join: the token admits nodes that train only: for a witness, ask for another "
            "one (`lowcomm token DIRECTORY --witness`)"
        )


def listen_at(node: NodeConfig, contact: str) -> str:
    """Return the HOST:PORT that the node listens on; "" if it does not listen.

    `contact`: HOST:PORT of a node of the run that this node joins, or "". Raises ConfigError.
    """
    if node.listen:
        return "" if node.listen == NOWHERE else node.listen
    if not contact or is_loopback(parse_address(contact, key="--join")[0]):
        return HERE
    return format_address(way_to(contact), 0)


def advertised(node: NodeConfig, listening: str, contact: str) -> str:
    """Return the HOST:PORT that other nodes dial if this one listens at `listening`; "" if it does
    not listen. `contact`: HOST:PORT of a node of the run that this node joins, or "". Raises
    ConfigError."""
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
            f"node.advertise: other nodes cannot dial {node.advertise}, since node.listen is "
            f'"{NOWHERE}": set node.listen to an address, or leave node.advertise out'
        )


def check_founder(address: str) -> None:
    """Raise ConfigError if no node can dial the node that begins a run, so that none could join.
    `address`: the address that it advertises."""
    if not address:
        raise ConfigError(
            f'node.listen: "{NOWHERE}" is only for a node that joins: begin the run on a node that '
            "others can dial"
        )
