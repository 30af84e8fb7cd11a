"""An emulated wide-area network as its user sees it: places to run processes in, links to change.

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

from protocols.types.errors import ConfigError
from sims.wan.control import Helper, counters_from_json, links_to_json
from sims.wan.dialler import PEER, TOKEN
from sims.wan.link import PEERS_MAX, Counters, Link, Pair, WanError, all_pairs

Means = Literal["netns", "proxy", "loopback"]
"""How: a namespace for each peer and a router between them; relayed TCP streams, without root; one
namespace whose loopback, shaped by tbf, is the line that all share."""
MEANS: tuple[Means, ...] = get_args(Means)
PORT = 29500
"""For who listens on one port only; every peer has it to itself."""

_MODULES: Mapping[Means, str] = {
    "netns": "sims.wan.router",
    "proxy": "sims.wan.proxy",
    "loopback": "sims.wan.shared",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where one peer's processes run."""

    peer: int
    prefix: tuple[str, ...]
    """Before a command, it makes it run here; empty where no prefix is needed."""
    listen: str
    """HOST:PORT to listen on; under netns and loopback any other port of HOST is as good."""
    advertise: str
    """Where all others may dial it."""
    dialled: tuple[str, ...]
    """By peer: where this one dials each, itself included."""
    environment: Mapping[str, str]
    """For its processes, on top of what they need: all of the above."""

    def command(self, argv: Sequence[str]) -> list[str]:
        return [*self.prefix, *argv]


@dataclass(frozen=True, slots=True)
class Usage:
    """What the emulation itself has cost and missed."""

    cpu_s: float
    """Of the process in the middle, since it was started; tbf works in the kernel."""
    late_max_s: float
    """The router's latest delivery since this was asked last: a busy machine shows here."""


class Wan:
    """A network for so many peers; use as a context manager. What it made ends with it, also when
    its owner is killed."""

    def __init__(
        self,
        links: Link | Mapping[Pair, Link],
        *,
        peers: int,
        means: Means = "netns",
        seed: int = 0,
        loopback_addresses: bool = False,
    ) -> None:
        """`links`: one for all directions, or by (sender, receiver), where those left out are
        perfect. `seed`: of losses and jitter. `loopback_addresses`: under netns too, peers have
        addresses of 127.0.0.0/8; the other means have no others. Raises ConfigError."""
        if not 2 <= peers <= PEERS_MAX:
            raise ConfigError(f"a network of {peers} peers: give 2 to {PEERS_MAX}")
        if isinstance(links, Link):
            links = dict.fromkeys(all_pairs(peers), links)
        if strangers := set(links) - set(all_pairs(peers)):
            raise ConfigError(f"links of nobody among {peers} peers: {sorted(strangers)}")
        self._links = {pair: links.get(pair, Link()) for pair in all_pairs(peers)}
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
            self._helper.stop()

    @property
    def carrier_pid(self) -> int:
        """The process in the middle; without it there is no network."""
        return self._started.pid

    def link(self, sender: int, receiver: int) -> Link:
        """As it is now."""
        return self._links[sender, receiver]

    def change(self, sender: int, receiver: int, **fields: Any) -> None:
        """Change some fields of one direction, from now on. Raises ConfigError and WanError.

        A shared loopback has one line: whichever pair is named, it changes for all.
        """
        link = replace(self._links[sender, receiver], **fields)
        if self._means == "loopback":
            _require_shared({link})
        self._started.ask({"links": links_to_json({(sender, receiver): link})})
        pairs = all_pairs(self._peers) if self._means == "loopback" else [(sender, receiver)]
        self._links.update(dict.fromkeys(pairs, link))

    def cut(self, one: int, other: int) -> None:
        """Both directions go down."""
        self.change(one, other, up=False)
        self.change(other, one, up=False)

    def mend(self, one: int, other: int) -> None:
        """Both directions come back."""
        self.change(one, other, up=True)
        self.change(other, one, up=True)

    def counters(self) -> dict[Pair, Counters]:
        """By (sender, receiver); a shared loopback has one, (0, 0)."""
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
        # On a loopback that all share, each has an address of its own, and so any port too.
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


def _require_shared(links: set[Link]) -> None:
    """Raises ConfigError: tbf has a rate and a queue, and loopback has one of it."""
    if len(links) > 1:
        raise ConfigError("a shared loopback is one line: give one link for all directions")
    if any(link.delay_s or link.loss or not link.up for link in links):
        raise ConfigError("a shared loopback has a rate and a queue only: use netns or proxy")


def why_not(means: Means) -> str:
    """What this machine lacks for it, in one line; "" if it works. Tries it, for a moment."""
    try:
        with Wan(Link(rate_bps=1e9), peers=2, means=means):
            return ""
    except WanError as error:
        return str(error)
