"""Makes a run's directory, certificate authority and join tokens (`lowcomm init`, `lowcomm token`).

    RUNDIR/ca.pem, ca-key.pem    the run's certificate authority; the key must stay secret
    RUNDIR/run.toml              the configuration of the run
    RUNDIR/NODE/                 one directory for each node

Must NOT start anything, nor be imported before a command needs it, since its imports are slow.
"""

import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from lowcomm.config.schema import NodeConfig, load_config
from lowcomm.startup.identity import in_use, read_record, recorded_config
from peers.security import CA, CA_KEY, Authority
from peers.sockets import format_address, is_loopback, parse_address
from peers.storage import make_private
from protocols.state import ADDRESSES_MAX, NUMBER_BYTES, USES_MAX, Token, encode_token
from protocols.types import ConfigError

RUN_FILE = "run.toml"
USES, HOURS = 16, 24.0
"""Defaults of a token: nodes that it admits, and hours for which it is valid."""
HOURS_MAX = 24.0 * 366
FIRST_ADDRESS = "127.0.0.1:4711"
TEMPLATE = """\
# What all nodes agree on. Every key with its meaning: docs/configuration.md
[run]
name = "{name}"
peers_min = 2             # rounds begin when so many members are in
outer_steps = 100
[run.method]
name = "diloco"
inner_steps = 50          # H: steps between two exchanges

# The node that begins the run with this file.
[node]
listen = "{listen}"
advertise = "{advertise}"
"""


def open_run(run_directory: Path, *, advertise: str) -> list[str]:
    """Make the missing files of a new run, and return their names for a person. Raises ConfigError,
    and changes nothing, if the directory has an authority already."""
    directory, file = run_directory, run_directory / RUN_FILE
    if (directory / CA).exists():
        raise ConfigError(
            f"{directory} has its authority already: `lowcomm token {directory}` prints a token"
        )
    _look(advertise)
    made = [CA, f"{CA_KEY} (keep it to yourself)"]
    if file.exists():
        addresses_of_file(file, advertise)  # Raises before anything is made.
    try:
        make_private(directory)
        if not file.exists():
            file.write_text(_new_file(directory, advertise or FIRST_ADDRESS), encoding="utf-8")
            made.append(RUN_FILE)
        Authority.make(directory).save(directory)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be made: {error.strerror}") from error
    return made


def check(uses: int, hours: float) -> None:
    """Raise ConfigError if these cannot be values of a token."""
    if not 1 <= uses < USES_MAX:
        raise ConfigError(f"--uses must be from 1 to {USES_MAX - 1}, got {uses}")
    if not 0 < hours <= HOURS_MAX:
        raise ConfigError(f"--hours must be positive and at most {HOURS_MAX:g}, got {hours:g}")


def new_token(
    directory: Path, *, uses: int = USES, hours: float = HOURS, advertise: str = ""
) -> str:
    """Make a token with the authority in `directory`: the directory of a run, or of a node that
    votes in it. Raises ConfigError."""
    check(uses, hours)
    nodes = _nodes(directory)
    _look(advertise)
    if advertise:
        addresses: tuple[str, ...] = (advertise,)
    elif nodes:
        addresses = _addresses(nodes)
    else:
        addresses = (addresses_of_file(directory / RUN_FILE, ""),)
    if any(recorded_config(node).node.insecure for node in nodes):
        return encode_token(Token(addresses))
    for place in (directory, *nodes):
        authority = Authority.load(place)
        if authority is not None:
            return sealed_token(authority, addresses, uses=uses, hours=hours)
    raise ConfigError(
        f"{directory} has no authority's key: give the directory of the run, or of a node that "
        "votes in it (`lowcomm init RUNDIR` makes one for a new run)"
    )


def invite(directory: Path) -> None:
    """Print the commands with which others join a run that was begun without `lowcomm init`. The
    token is not printed: the output may go to a log."""
    print(  # noqa: T201
        f"others join with a token: `lowcomm token {directory} --out FILE` here, "
        "`lowcomm peer --join @FILE` there",
        flush=True,
    )


def sealed_token(
    authority: Authority, addresses: Sequence[str], *, uses: int = USES, hours: float = HOURS
) -> str:
    token = Token(
        tuple(addresses),
        authority.public,
        secrets.token_bytes(NUMBER_BYTES),
        uses,
        int(time.time() + hours * 3600),
    )
    return encode_token(token.sealed(authority.token_key))


def addresses_of_file(file: Path, advertise: str) -> str:
    """The address at which the node that founds a run with this file can be dialled. Raises
    ConfigError."""
    if advertise:
        return advertise
    node: NodeConfig = load_config(file).node
    address = node.advertise or node.listen
    if not address or not parse_address(address, key="node.listen")[1]:
        raise ConfigError(
            f"{file}: the node's address is not known before it starts: set a port in "
            "node.listen (or node.advertise), or give --advertise HOST:PORT"
        )
    return address


def _look(advertise: str) -> None:
    if advertise and not parse_address(advertise, key="--advertise")[1]:
        raise ConfigError("--advertise: give the port that other nodes dial, not 0")


def _new_file(directory: Path, advertise: str) -> str:
    host, port = parse_address(advertise, key="--advertise")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", directory.absolute().name).strip(".-")[:64] or "run"
    anywhere = "::" if ":" in host else "0.0.0.0"  # noqa: S104 (text of a file)
    listen = advertise if is_loopback(host) else format_address(anywhere, port)
    return TEMPLATE.format(name=name, listen=listen, advertise=advertise)


def _nodes(directory: Path) -> list[Path]:
    """The directories of nodes: this one, or those in a run's directory."""
    places = [directory, *(sorted(directory.iterdir()) if directory.is_dir() else ())]
    return [place for place in places if place.is_dir() and read_record(place) is not None]


def _addresses(nodes: Sequence[Path]) -> tuple[str, ...]:
    running = [node for node in nodes if in_use(node)]
    records = [read_record(node) for node in running or nodes]
    found = [record.address for record in records if record is not None and record.address]
    if not found:
        raise ConfigError(f"{nodes[0]} has not listened yet: start it first")
    return tuple(dict.fromkeys(found))[:ADDRESSES_MAX]
