"""An emulated wide-area network: places to run processes in, and links to change.

    with Wan(Link(rate_bps=1e8, delay_s=0.05), peers=3, means="netns") as wan:
        for place in wan.places:
            start(place.command(["my-peer"]), env={**os.environ, **place.environment})
        wan.change(0, 1, up=False)

Must NOT start or end the processes of the peers.
"""

import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

from protocols.types import ConfigError
from sims.wan.control import Helper, counters_from_json, links_to_json
from sims.wan.dialler import PEER, TOKEN
from sims.wan.link import PEERS_MAX, LinkCounters, Pair, WanError, WanLink, all_pairs

Means = Literal["netns", "proxy", "loopback"]
"""The means of emulation. netns: a namespace for each peer, and a router between them. proxy:
relayed TCP streams, without root. loopback: one namespace with a loopback that is shaped by tbf and
is the line that all peers share."""
MEANS: tuple[Means, ...] = get_args(Means)
PORT = 29500
"""For programs that listen on one port only; every peer has it for itself."""

_MODULES: Mapping[Means, str] = {
    "netns": "sims.wan.router",
    "proxy": "sims.wan.proxy",
    "loopback": "sims.wan.shared",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A place where one peer's processes run."""

    peer: int
    prefix: tuple[str, ...]
    """Put before a command, it makes the command run here; empty where no prefix is needed."""
    listen: str
    """HOST:PORT to listen on; under netns and loopback any other port of HOST works too."""
    advertise: str
    """The address that all other peers may dial."""
    dialled: tuple[str, ...]
    """By peer: the address at which this peer dials it, itself included."""
    environment: Mapping[str, str]
    """Variables for this peer's processes with all of the above, to add to their own."""

    def command(self, argv: Sequence[str]) -> list[str]:
        return [*self.prefix, *argv]


@dataclass(frozen=True, slots=True)
class Usage:
    """Cost and delay of the emulation itself."""

    cpu_s: float
    """CPU seconds of the process in the middle since its start; 0 for tbf, which works in the
    kernel."""
    late_max_s: float
    """Seconds by which the router's latest delivery since the last request was late: it shows a
    busy machine."""


class Wan:
    """A network for so many peers; use it as a context manager. All that it made ends with it, even
    if its owner is killed."""

    def __init__(
        self,
        links: WanLink | Mapping[Pair, WanLink],
        *,
        peers: int,
        means: Means = "netns",
        seed: int = 0,
        loopback_addresses: bool = False,
    ) -> None:
        """`links`: one for all directions, or by (sender, receiver), with perfect links for missing
        pairs. `seed`: of losses and jitter. `loopback_addresses`: give peers addresses of
        127.0.0.0/8 under netns too; the other means have no others. Raises ConfigError."""
        if not 2 <= peers <= PEERS_MAX:
            raise ConfigError(f"a network of {peers} peers: give 2 to {PEERS_MAX}")
        if isinstance(links, WanLink):
            links = dict.fromkeys(all_pairs(peers), links)
        if strangers := set(links) - set(all_pairs(peers)):
            raise ConfigError(f"there are {peers} peers, so no links {sorted(strangers)}")
        self._links = {pair: links.get(pair, WanLink()) for pair in all_pairs(peers)}
        if means == "loopback":
            _require_shared(set(self._links.values()))
        self._peers = peers
        self._means: Means = means
        self._seed = seed
        self._loopback_addresses = loopback_addresses
        self._token = secrets.token_hex(8)
        self._helper: Helper | None = None
        self.places: tuple[Place, ...] = ()

    def __enter__(self) -> Self:
        """Raises WanError with one line that says what this machine lacks."""
        config = {
            "peers": self._peers,
            "links": links_to_json(self._links),
            "seed": self._seed,
            "token": self._token,
            "loopback_addresses": self._loopback_addresses,
        }
        self._helper = Helper(_MODULES[self._means], config)
        started = self._helper.started
        make = self._proxied if self._means == "proxy" else self._inside
        self.places = tuple(make(peer, started) for peer in range(self._peers))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._helper is not None:
            self._helper.end_process()

    @property
    def carrier_pid(self) -> int:
        """Process id of the process in the middle, without which there is no network."""
        return self._started.pid

    def link(self, sender: int, receiver: int) -> WanLink:
        """The present state of one direction."""
        return self._links[sender, receiver]

    def change(self, sender: int, receiver: int, **fields: Any) -> None:
        """Change some fields of one direction, from now on. Raises ConfigError and WanError.

        A shared loopback has one line: a change of any pair changes it for all.
        """
        link = replace(self._links[sender, receiver], **fields)
        if self._means == "loopback":
            _require_shared({link})
        self._started.ask({"links": links_to_json({(sender, receiver): link})})
        pairs = all_pairs(self._peers) if self._means == "loopback" else [(sender, receiver)]
        self._links.update(dict.fromkeys(pairs, link))

    def cut(self, one: int, other: int) -> None:
        """Take both directions down."""
        self.change(one, other, up=False)
        self.change(other, one, up=False)

    def mend(self, one: int, other: int) -> None:
        """Bring both directions up again."""
        self.change(one, other, up=True)
        self.change(other, one, up=True)

    def counters(self) -> dict[Pair, LinkCounters]:
        """Counters by (sender, receiver); a shared loopback has one entry, (0, 0)."""
        return counters_from_json(self._started.ask({"counters": True})["counters"])

    def usage(self) -> Usage:
        answer = self._started.ask({"counters": True})
        return Usage(answer["cpu_s"], answer["late_max_s"])

    @property
    def _started(self) -> Helper:
        if self._helper is None:
            raise WanError("the network is not open: use `with Wan(...) as wan:`")
        return self._helper

    def _inside(self, peer: int, started: Mapping[str, Any]) -> Place:
        enter = str(Path(__file__).with_name("enter.py"))
        prefix = (sys.executable, "-I", "-S", enter, str(started["namespaces"][peer]))
        # On a shared loopback each peer has its own address, and so all ports of it.
        addresses = tuple(f"{host}:{PORT}" for host in started["hosts"])
        return self._place(peer, prefix, addresses[peer], addresses[peer], addresses)

    def _proxied(self, peer: int, started: Mapping[str, Any]) -> Place:
        listen, advertise = started["listen"][peer], started["advertise"][peer]
        at = {
            receiver: address for sender, receiver, address in started["dialled"] if sender == peer
        }
        dialled = tuple(at.get(other, listen) for other in range(self._peers))
        return self._place(peer, (), listen, advertise, dialled)

    def _place(
        self,
        peer: int,
        prefix: tuple[str, ...],
        listen: str,
        advertise: str,
        dialled: tuple[str, ...],
    ) -> Place:
        environment = {
            PEER: str(peer),
            TOKEN: self._token,
            "LOWCOMM_PEERS": str(self._peers),
            "LOWCOMM_LISTEN": listen,
            "LOWCOMM_ADVERTISE": advertise,
            "LOWCOMM_ADDRESSES": ",".join(dialled),
        }
        return Place(peer, prefix, listen, advertise, dialled, environment)


def _require_shared(links: set[WanLink]) -> None:
    """Raises ConfigError unless tbf can do it: it has a rate and a queue, and the loopback has one
    line."""
    if len(links) > 1:
        raise ConfigError("a shared loopback is one line: give one link for all directions")
    if any(link.delay_s or link.loss or not link.up for link in links):
        raise ConfigError("a shared loopback has a rate and a queue only: use netns or proxy")


def why_not(means: Means) -> str:
    """The reason in one line why this means does not work on this machine; "" if it works. Tries it
    for a moment."""
    try:
        with Wan(WanLink(rate_bps=1e9), peers=2, means=means):
            return ""
    except WanError as error:
        return str(error)
