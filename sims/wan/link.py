"""What a link is, and what is counted on it. Must NOT know by which means it is emulated."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from protocols.types.errors import ConfigError, LowcommError

PEERS_MAX = 200
"""One byte of an address names a peer."""

Pair = tuple[int, int]
"""(who sends, who receives): a link has one direction."""


class WanError(LowcommError):
    """This machine cannot emulate what was asked. The text says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One direction between two peers; the default loses nothing and takes no time."""

    rate_bps: float | None = None
    """Bits per second, headers of IP and TCP included; None: as fast as the machine goes."""
    delay_s: float = 0.0
    """One way. A round trip takes the sum of both directions."""
    jitter_s: float = 0.0
    """The delay varies by at most this much, up and down; never out of order."""
    loss: float = 0.0
    """The share of packets that is lost, each by itself."""
    queue_s: float = 0.05
    """Packets that would wait longer than this for the line are dropped (drop-tail)."""
    up: bool = True
    """A link that is down carries nothing, what was under way included."""

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
class Counters:
    """Of one link since it was made. A packet is what the line carries at once, at most an MTU."""

    packets: int = 0
    """Offered; all but the dropped ones arrive."""
    bytes: int = 0
    """Offered, with their IP headers."""
    lost: int = 0
    """Packets that the link's loss took."""
    overflowed: int = 0
    """Packets that the queue had no room for."""
    cut: int = 0
    """Packets that were offered or under way while the link was down."""
    queue_mean_s: float = 0.0
    """How long admitted packets waited for the line; those of one write count as one."""
    queue_max_s: float = 0.0

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls(**values)


def all_pairs(peers: int) -> list[Pair]:
    """Every direction between two of so many peers."""
    return [(one, other) for one in range(peers) for other in range(peers) if one != other]
