"""Timing and size rules that every peer of a run must share.

Must NOT hold anything that one node may choose for itself: that is `[node]`.
"""

from dataclasses import dataclass

from protocols.types.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolConfig:
    """Agreed by all peers; part of the run's digest."""

    heartbeat_interval_s: float = 0.5
    """The leader and everybody else, voters among each other, and who waits for a result and who
    makes it, let each other hear of them this often."""
    election_timeout_s: float = 2.0
    """A voter that hears nothing of its leader for once to twice this long asks for an election;
    a leader that no majority answers in this time steps down."""
    silence_timeout_s: float = 10.0
    """A peer that sends nothing for this long is lost. End of stream is noticed at once."""
    reconnect_grace_s: float = 0.25
    """After an end of stream, wait this long for the same incarnation before it is lost."""
    round_grace_s: float = 30.0
    """After `quorum` peers are ready for a round, wait at most this long for the others."""
    quorum: int = 1
    """So many peers, or all that are left, before that window opens (K of Decoupled DiLoCo,
    arXiv:2604.21428)."""
    reduction_timeout_s: float = 60.0
    """Start another attempt without the silent when a reduction takes longer."""
    transfer_timeout_s: float = 120.0
    """Ask for a fresh cut when nothing of a state has come for so long."""
    lonely_after_s: float = 60.0
    """One of exactly two voters that does not reach the other for this long goes on alone, in a
    branch of its own. A witness (`lowcomm witness`) makes this unnecessary."""

    def __post_init__(self) -> None:
        for name in (
            "heartbeat_interval_s",
            "election_timeout_s",
            "silence_timeout_s",
            "reconnect_grace_s",
            "round_grace_s",
            "reduction_timeout_s",
            "transfer_timeout_s",
            "lonely_after_s",
        ):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(
                    f"run.protocol.{name} must be positive and finite, got {getattr(self, name)}"
                )
        if self.quorum < 1:
            raise ConfigError(f"run.protocol.quorum must be positive, got {self.quorum}")
        if self.silence_timeout_s < 3 * self.heartbeat_interval_s:
            raise ConfigError(
                f"run.protocol.silence_timeout_s must be at least 3 heartbeats "
                f"({3 * self.heartbeat_interval_s}), got {self.silence_timeout_s}"
            )
        if self.election_timeout_s < 3 * self.heartbeat_interval_s:
            raise ConfigError(
                f"run.protocol.election_timeout_s must be at least 3 heartbeats "
                f"({3 * self.heartbeat_interval_s}), got {self.election_timeout_s}"
            )
        if self.lonely_after_s <= 2 * self.election_timeout_s:
            raise ConfigError(
                f"run.protocol.lonely_after_s must be more than 2 election timeouts "
                f"({2 * self.election_timeout_s}), got {self.lonely_after_s}"
            )
