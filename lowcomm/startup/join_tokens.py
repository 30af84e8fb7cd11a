"""Makes a run's directory, its root key, and join tokens (`lowcomm init`, `lowcomm token`).

    RUNDIR/root-key.pem    the run's root key, the first operator's; it must stay secret, and here
    RUNDIR/run.toml        the configuration of the run
    RUNDIR/NODE/           one directory for each node

A token needs no message: the root key signs it, another operator's, or that of a node that votes.

Must NOT start anything, nor be imported before a command needs it, since its imports are slow.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from lowcomm.config.schema import NodeConfig, load_config
from lowcomm.startup.identity import in_use, nodes_below, read_record, recorded_config
from peers.security import ROOT_KEY, Key, OwnKey, TrustStore, check_format
from peers.security import new_token as signed_token
from peers.sockets import format_address, is_loopback, parse_address
from peers.storage import make_private
from protocols.state import ADDRESSES_MAX, USES_MAX, Token, encode_token
from protocols.types import ConfigError

RUN_FILE = "run.toml"
USES, HOURS = 16, 24.0
"""Defaults of a token: nodes that it admits, and hours for which it is valid."""
HOURS_MAX = 24.0 * 366
OTHER_KEY = "do this as its owner, or name an operator's key with --key FILE"
"""The remedy for a root key that is here and cannot be read."""
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
    and changes nothing, if the directory has a root key already."""
    directory, file = run_directory, run_directory / RUN_FILE
    check_format(directory)
    if (directory / ROOT_KEY).exists():
        raise ConfigError(
            f"{directory} has its root key already: `lowcomm token {directory}` prints a token"
        )
    _look(advertise)
    made = [f"{ROOT_KEY} (keep it to yourself)"]
    if file.exists():
        addresses_of_file(file, advertise)  # Raises before anything is made.
    try:
        make_private(directory)
        if not file.exists():
            file.write_text(_new_file(directory, advertise or FIRST_ADDRESS), encoding="utf-8")
            made.append(RUN_FILE)
        Key.make().save(directory / ROOT_KEY)
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
    directory: Path,
    *,
    uses: int = USES,
    hours: float = HOURS,
    advertise: str = "",
    witness: bool = False,
    signer: Path | None = None,
) -> str:
    """Make a token with the root key or the node in `directory`: the directory of a run, or of a
    node that votes in it; or with the operator's key in the file `signer`, and any node. Raises
    ConfigError."""
    check(uses, hours)
    check_format(directory)
    nodes = _nodes(directory)
    _look(advertise)
    if any(recorded_config(node).node.insecure for node in nodes):
        return encode_token(Token((advertise,) if advertise else _addresses(nodes)))
    stores = [store for node in nodes if (store := TrustStore.load(node)).peer]
    addresses, prints = _places(directory, nodes, stores, advertise)
    key, root, named = (
        _operator(directory, stores, signer) if signer else _issuer(directory, nodes, stores)
    )
    token = signed_token(
        key,
        root=root,
        uses=uses,
        hours=hours,
        addresses=addresses,
        prints=prints,
        witness=witness,
        named=named,
    )
    return encode_token(token)


def _issuer(
    directory: Path, nodes: Sequence[Path], stores: Sequence[TrustStore]
) -> tuple[Key, bytes, str]:
    """(the key that signs, public half of the root key, the voter with that key or ""). Raises
    ConfigError."""
    for place in (directory, *nodes):
        if (key := Key.load(place / ROOT_KEY, remedy=OTHER_KEY)) is not None:
            return key, key.public, ""
    voters = [store for store in stores if store.peer in store.voters]
    for store in voters:
        if store.voters_issue:
            return OwnKey(store.directory).key, bytes.fromhex(store.root), store.peer
    if voters:
        raise ConfigError(
            'this run takes tokens of its operator only (run.tokens = "operators"): make one where '
            f"its root key is ({ROOT_KEY}), or give --key FILE with an operator's"
        )
    raise ConfigError(
        f"{directory} has no key that can sign a token: give the directory of the run, or of a "
        "node that votes in it (`lowcomm init RUNDIR` makes one for a new run)"
    )


def _operator(directory: Path, stores: Sequence[TrustStore], file: Path) -> tuple[Key, bytes, str]:
    """(the operator's key in a file, public half of the root key, the operator or "" if it is the
    root key). Raises ConfigError."""
    key = Key.load(file, remedy="give another file with --key")
    of_run = Key.load(directory / ROOT_KEY, remedy=OTHER_KEY)
    if key is None:
        raise ConfigError(
            f"--key {file} does not exist: give the run's {ROOT_KEY}, or an operator's"
        )
    if of_run is None and not stores:
        raise ConfigError(f"{directory} has no node of the run: give the directory of one")
    root = of_run.hex if of_run is not None else stores[0].root
    if key.hex != root and not any(key.hex in store.operators for store in stores):
        raise ConfigError(
            f"--key {file} is the key of no operator of this run, as far as the nodes in "
            f"{directory} know: `lowcomm operator add` adds one"
        )
    return key, bytes.fromhex(root), "" if key.hex == root else key.hex


def _places(
    directory: Path, nodes: Sequence[Path], stores: Sequence[TrustStore], advertise: str
) -> tuple[tuple[str, ...], tuple[bytes, ...]]:
    """(addresses of peers, fingerprints of their keys): nodes here first, then other voters.
    Without a node here it is the one that will begin the run. Raises ConfigError."""
    if not nodes:
        return (advertise or addresses_of_file(directory / RUN_FILE, ""),), ()
    own = {store.directory: store.own_fingerprint for store in stores}
    if advertise:
        records = {node: read_record(node) for node in own}
        there = [
            own[node] for node, record in records.items() if record and record.address == advertise
        ]
        return (advertise,), tuple(dict.fromkeys((*there, *own.values())))[:ADDRESSES_MAX]
    found = [(address, own[node]) for node, address in _listening(nodes) if node in own]
    for store in stores:
        found += [(address, bytes.fromhex(known)) for address, known in store.voters.values()]
    places = dict(reversed(found))  # The first one of each address.
    chosen = [address for address in dict(found) if address][:ADDRESSES_MAX]
    return tuple(chosen), tuple(dict.fromkeys(places[address] for address in chosen))


def invite(directory: Path) -> None:
    """Print the commands with which others join a run that was begun without `lowcomm init`. The
    token is not printed: the output may go to a log."""
    print(  # noqa: T201
        f"others join with a token: `lowcomm token {directory} --out FILE` here, "
        "`lowcomm peer --join @FILE` there",
        flush=True,
    )


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
    places = [directory, *nodes_below(directory)]
    return [place for place in places if place.is_dir() and read_record(place) is not None]


def _listening(nodes: Sequence[Path]) -> list[tuple[Path, str]]:
    """The running nodes with their addresses; if none runs, all nodes. Raises ConfigError if none
    has listened yet."""
    running = [node for node in nodes if in_use(node)]
    records = [(node, read_record(node)) for node in running or nodes]
    found = [(node, record.address) for node, record in records if record and record.address]
    if not found:
        raise ConfigError(f"{nodes[0]} has not listened yet: start it first")
    return found


def _addresses(nodes: Sequence[Path]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(address for _, address in _listening(nodes)))[:ADDRESSES_MAX]
