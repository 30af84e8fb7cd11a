"""The network of each system's peers.

Each system has one of its own, so that its bytes can be counted and its properties chosen. Must NOT
change anything of the machine's own network.
"""

import contextlib
import subprocess
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from protocols.types import ConfigError
from sims.wan import Means, Place, Wan, WanLink, all_pairs, why_not

ALGORITHMS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
ALGORITHM = "/proc/sys/net/ipv4/tcp_congestion_control"
TOOL_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Properties of the network; the default is this machine's loopback."""

    rate_bps: float | None = None
    rtt_s: float = 0.0
    loss: float = 0.0
    slow_bps: float | None = None
    """Rate of the last peer's lines in bits a second, if each direction has its own line."""
    congestion: str = ""
    """TCP congestion control of all sockets; "" leaves it as it is."""

    @property
    def shared_rate_bps(self) -> float | None:
        """Rate of the line that all peers share, in bits a second; None if there is no such
        line."""
        return None if self.routed else self.rate_bps

    @property
    def routed(self) -> bool:
        """Whether each peer has a namespace of its own, and each direction its own line."""
        return bool(self.rtt_s or self.loss)

    @property
    def plain(self) -> bool:
        """Whether the machine's own loopback has these properties."""
        return not (self.routed or self.rate_bps or self.congestion)

    def check(self) -> None:
        """Raise ConfigError if this machine cannot have these conditions, or they contradict each
        other."""
        known = ALGORITHMS.read_text(encoding="ascii").split()
        if self.congestion and self.congestion not in known:
            raise ConfigError(f"--congestion {self.congestion}: this kernel has {', '.join(known)}")
        if self.slow_bps and not self.routed:
            raise ConfigError("--slow: without --rtt all peers share one line: set --rtt as well")


@dataclass(frozen=True, slots=True)
class SystemNetwork:
    """The network of one system."""

    places: tuple[Place, ...]
    device: str
    """Name of the device with the peers' addresses."""
    congestion_control: str
    """Congestion control for all sockets; "" leaves it to the system."""
    own: bool
    """Whether no other process sends in it: then its devices count the bytes of the system."""

    def namespaces(self) -> tuple[Place, ...]:
        """One place in each namespace."""
        return tuple({place.prefix: place for place in self.places}.values())

    def congestion(self) -> tuple[str, ...]:
        """Algorithms of the sockets that are open now, sorted; () if they are not known."""
        if not self.own:
            return ()
        words: set[str] = set()
        for place in self.namespaces():
            words |= set(_output(place.command(["ss", "-tinH", "state", "established"])).split())
        return tuple(sorted(words & set(ALGORITHMS.read_text(encoding="ascii").split())))


def default_congestion() -> str:
    """The algorithm of sockets of this machine that do not choose one."""
    return Path(ALGORITHM).read_text(encoding="ascii").strip()


@contextlib.contextmanager
def network(conditions: Conditions, peers: int) -> Generator[SystemNetwork]:
    """Set up a network. Raises WanError if this machine cannot provide the conditions."""
    if conditions.plain and why_not("loopback"):
        places = tuple(Place(peer, (), "127.0.0.1:0", "", (), {}) for peer in range(peers))
        yield SystemNetwork(places, "lo", "", own=False)
        return
    means: Means = "netns" if conditions.routed else "loopback"
    link = WanLink(rate_bps=conditions.rate_bps, delay_s=conditions.rtt_s / 2, loss=conditions.loss)
    links = dict.fromkeys(all_pairs(peers), link)
    if conditions.slow_bps:
        slow = replace(link, rate_bps=conditions.slow_bps)
        links |= {pair: slow for pair in links if peers - 1 in pair}
    with Wan(links, peers=peers, means=means) as wan:
        found = SystemNetwork(
            wan.places, "wan" if conditions.routed else "lo", conditions.congestion, own=True
        )
        if conditions.congestion:
            for place in found.namespaces():
                _set_congestion(place, conditions.congestion)
        yield found


def _set_congestion(place: Place, algorithm: str) -> None:
    """Set the algorithm for the place's routes: root may not change the namespace's setting
    everywhere."""
    ip = place.command(["ip", "-4", "route"])
    for route in _output([*ip, "show", "table", "all"]).splitlines():
        if not route.startswith("broadcast"):
            _output([*ip, "change", *route.split(), "congctl", algorithm])


def _output(command: Sequence[str]) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=True
    ).stdout
