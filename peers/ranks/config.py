"""The configuration of a node's ranks. Must NOT create anything."""

from dataclasses import dataclass, field

from peers.ranks.attempt import HangLimits
from protocols.types import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksConfig:
    """The part of `[node]` about ranks."""

    ranks: int
    directory: str = ""
    """A fresh 0700 directory for the sockets is made inside this one. Empty takes the user's
    runtime directory or, if that is not usable, the temporary one."""
    port_range: tuple[int, int] = (20000, 29999)
    """MASTER_PORT of each attempt is a free port of this range; both ends count."""
    hang_limits: HangLimits = field(default_factory=HangLimits)
    """A rank that trains is hung if its step counter stands still for this long."""
    adopted: bool = False
    """The ranks' program has started the daemon: it is killed only if it hangs, is not started
    again, and its node does not wait for its end. The end of one rank is that of the program."""
    restarts_max: int = 5
    """Give up after this many restarts in a row that brought no contribution, or none of use."""

    def __post_init__(self) -> None:
        low, high = self.port_range
        if self.ranks < 1:
            raise ConfigError(f"ranks must be positive, got {self.ranks}")
        if not 1 <= low <= high <= 65535:
            raise ConfigError(f"port_range must be within 1 and 65535, got {self.port_range}")
        limits = self.hang_limits
        longest = (limits.hang_timeout_s, limits.attach_timeout_s, limits.first_step_timeout_s)
        if min(longest) <= 0 or self.restarts_max < 0:
            raise ConfigError(
                "the limits of hangs must be positive and restarts_max not negative, "
                f"got {longest} and {self.restarts_max}"
            )
