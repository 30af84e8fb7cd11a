"""A link, and its counters. Must NOT know by which means the link is emulated."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from protocols.types import ConfigError, LowcommError

PEERS_MAX = 200
"""One byte of an address names a peer."""

Pair = tuple[int, int]
"""(sender, receiver): a link has one direction."""


class WanError(LowcommError):
    """This machine cannot emulate the network. The text says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WanLink:
    """One direction between two peers; by default without loss or delay."""

    rate_bps: float | None = None
    """Bits per second, headers of IP and TCP included; None: no limit."""
    delay_s: float = 0.0
    """One-way delay in seconds. A round trip takes the sum of both directions."""
    jitter_s: float = 0.0
    """The delay varies by at most so many seconds, up and down; packets keep their order."""
    loss: float = 0.0
    """The share of packets that are lost, each independently."""
    queue_s: float = 0.05
    """Packets that would wait for the line longer than so many seconds are dropped (drop-tail)."""
    up: bool = True
    """False: the link carries nothing, and packets under way are lost too."""

    def __post_init__(self) -> None:
        if self.rate_bps is not None and not 1e3 <= self.rate_bps <= 1e12:
            raise ConfigError(f"a rate of {self.rate_bps:g} bit/s: give 1kbit to 1000gbit")
        if not 0 <= self.jitter_s <= self.delay_s <= 60:
            raise ConfigError(
                f"a delay of {self.delay_s:g} s with a jitter of {self.jitter_s:g} s: the delay "
                "is at most 60 s, and the jitter at most the delay"
            )
        if not 0 <= self.loss <= 1:
            raise ConfigError(f"a loss of {self.loss:g}: give 0% to 100%")
        if not 0 < self.queue_s <= 60:
            raise ConfigError(f"a queue of {self.queue_s:g} s: give more than 0 and at most 60 s")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class LinkCounters:
    """Counters of one link since it was made. A packet is the unit that the line carries, at most
    an MTU."""

    packets: int = 0
    """Packets offered; all but the dropped ones arrive."""
    bytes: int = 0
    """Bytes offered, with their IP headers."""
    lost: int = 0
    """Packets lost by the link's loss."""
    overflowed: int = 0
    """Packets dropped because the queue was full."""
    cut: int = 0
    """Packets that were offered or under way while the link was down."""
    queue_mean_s: float = 0.0
    """Mean seconds that admitted packets waited for the line; those of one write count as one."""
    queue_max_s: float = 0.0

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls(**values)


def all_pairs(peers: int) -> list[Pair]:
    """Every direction between two of `peers` peers."""
    return [(one, other) for one in range(peers) for other in range(peers) if one != other]
