"""`[run.protocol]`: the protocol's times and limits, the same for all peers of a run.

Must NOT hold a value that one node may choose for itself: those are in `[node]`.
"""

from dataclasses import dataclass

from protocols.types.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolConfig:
    """All peers agree on these values: they are part of `[run]`, which the log contains."""

    heartbeat_interval_s: float = 0.5
    """Seconds between heartbeats: between the leader and each peer, among voters, and between a
    peer that waits for a result and the peer that makes it."""
    election_timeout_s: float = 2.0
    """Seconds. A voter that hears nothing from its leader for one to two times this long asks for
    an election. A leader that no majority of the voters answers within this time steps down."""
    silence_timeout_s: float = 10.0
    """Seconds. A peer that sends nothing for this long is lost. A closed connection is noticed at
    once."""
    reconnect_grace_s: float = 0.25
    """Seconds that a peer has to reconnect, in the same incarnation, after its connection closed;
    then it is lost."""
    round_grace_s: float = 30.0
    """Seconds. Once `quorum` peers have contributed to a round, wait at most this long for the
    others."""
    quorum: int = 1
    """Contributions, or those of all live peers, before `round_grace_s` begins (K of Decoupled
    DiLoCo, arXiv:2604.21428)."""
    reduction_timeout_s: float = 60.0
    """Seconds. If a reduction takes longer, start another attempt without the silent peers."""
    transfer_timeout_s: float = 120.0
    """Seconds. If no cell of a state arrives for this long, a joiner asks for a new cut."""
    lonely_after_s: float = 60.0
    """Seconds. If one of exactly two voters does not reach the other for this long, it goes on
    alone in a branch of its own. With a witness (`lowcomm witness`) this is not needed."""
    check_owners: bool = True
    """From three contributions on, compute a secret sample of each result again from the
    contributors' own bytes before the result may be committed. Not in gossip and stepwise runs."""

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
