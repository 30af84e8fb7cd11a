"""`[run.protocol]`: the protocol's times and limits, the same for all peers of a run.

Must NOT hold a value that one node may choose for itself: those are in `[node]`.
"""

from dataclasses import dataclass

from protocols.types.errors import ConfigError

HEARTBEATS_MIN = 3
"""No timeout is shorter than so many heartbeats."""
PAUSES = 3.0
"""A peer that has been silent for so many times its longest pause is not expected any more. TCP
doubles its wait with each loss of the same packet, so a line that loses packets rarely pauses for
more than twice as long as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolConfig:
    """All peers agree on these values: they are part of `[run]`, which the log contains."""

    heartbeat_interval_s: float = 0.2
    """Seconds between heartbeats: between the leader and each peer, among voters, and between a
    peer that waits for a result and the peer that makes it. Among more than 64 peers, as many times
    longer as there are more peers."""
    election_timeout_s: float = 2.0
    """Seconds. A voter that hears nothing from its leader for one to two election timeouts asks for
    an election. The timeout is three times the leader's longest pause in the last minutes, at least
    `election_timeout_min_s` and three heartbeats, at most this. A leader that no majority of the
    voters answers within this time steps down."""
    election_timeout_min_s: float = 0.6
    """Seconds. The shortest election timeout (see `election_timeout_s`)."""
    silence_timeout_s: float = 10.0
    """Seconds. A peer that sends nothing for the silence timeout is lost. The timeout is three
    times the peer's longest pause in the last minutes, at least `silence_timeout_min_s` and three
    heartbeats, at most this; it is this for the first 20 heartbeats. A closed connection is noticed
    at once."""
    silence_timeout_min_s: float = 1.0
    """Seconds. The shortest silence timeout (see `silence_timeout_s`)."""
    reconnect_grace_s: float = 0.25
    """Seconds that a peer has to reconnect, in the same incarnation, after its connection closed;
    then it is lost. The silence timeout if it closed the connection itself and lives."""
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
            "election_timeout_min_s",
            "silence_timeout_s",
            "silence_timeout_min_s",
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
        if self.silence_timeout_s < HEARTBEATS_MIN * self.heartbeat_interval_s:
            raise ConfigError(
                f"run.protocol.silence_timeout_s must be at least {HEARTBEATS_MIN} heartbeats "
                f"({HEARTBEATS_MIN * self.heartbeat_interval_s}), got {self.silence_timeout_s}"
            )
        if self.election_timeout_s < HEARTBEATS_MIN * self.heartbeat_interval_s:
            raise ConfigError(
                f"run.protocol.election_timeout_s must be at least {HEARTBEATS_MIN} heartbeats "
                f"({HEARTBEATS_MIN * self.heartbeat_interval_s}), got {self.election_timeout_s}"
            )
        if self.lonely_after_s <= 2 * self.election_timeout_s:
            raise ConfigError(
                f"run.protocol.lonely_after_s must be more than 2 election timeouts "
                f"({2 * self.election_timeout_s}), got {self.lonely_after_s}"
            )

    def election_timeout(self, pause_s: float) -> float:
        """The election timeout, seconds. `pause_s`: the longest pause of the leader; NEVER: it is
        not known yet."""
        return self._adapted(pause_s, self.election_timeout_min_s, self.election_timeout_s)

    def silence_timeout(self, pause_s: float) -> float:
        """The silence timeout, seconds. `pause_s`: the longest pause of the peer; NEVER: it is not
        known yet."""
        return self._adapted(pause_s, self.silence_timeout_min_s, self.silence_timeout_s)

    def _adapted(self, pause_s: float, least_s: float, most_s: float) -> float:
        least_s = max(least_s, HEARTBEATS_MIN * self.heartbeat_interval_s)
        return min(most_s, max(least_s, PAUSES * pause_s))
