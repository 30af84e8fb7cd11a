"""Who is connected, who was heard of when, whose silence is too long.

Must NOT decide what follows from a loss: that is the leader's.
"""

from protocols.config import ProtocolConfig
from protocols.ids import PeerId


class Liveness:
    """Times are those of `now` in the core's events."""

    def __init__(self, rules: ProtocolConfig) -> None:
        self.rules = rules
        self.patient = False
        """A follower waits longer for its leader to come back: it has nobody else."""
        self.up: set[PeerId] = set()
        self._heard: dict[PeerId, float] = {}
        self._down: dict[PeerId, tuple[float, str]] = {}
        """Since when a connection is gone, and why."""
        self._beat_at = float("inf")
        self._looked = float("-inf")

    def connected(self, peer: PeerId, now: float) -> None:
        self.up.add(peer)
        self._down.pop(peer, None)
        self._heard[peer] = now
        self._beat_at = min(self._beat_at, now + self.rules.heartbeat_interval_s)

    def disconnected(self, peer: PeerId, why: str, now: float) -> None:
        self.up.discard(peer)
        self._down.setdefault(peer, (now, why))

    def heard(self, peer: PeerId, now: float) -> None:
        if peer in self._heard:
            self._heard[peer] = now

    def gone(self, peer: PeerId) -> None:
        """Nobody watches it any more."""
        self.up.discard(peer)
        self._heard.pop(peer, None)
        self._down.pop(peer, None)

    def due_heartbeats(self, now: float) -> list[PeerId]:
        """To whom a heartbeat is due now."""
        if now < self._beat_at:
            return []
        self._beat_at = now + self.rules.heartbeat_interval_s
        return sorted(self.up)

    def lost(self, now: float) -> list[tuple[PeerId, str]]:
        """Peers that are lost from now on, each named once."""
        if self.up and now - self._looked > 2 * self.rules.heartbeat_interval_s:
            # We were stopped ourselves (SIGSTOP, a suspended machine): our silence, not theirs.
            self._heard = dict.fromkeys(self._heard, now)
        self._looked = now
        found = [
            (peer, why) for peer, (since, why) in self._down.items() if now >= since + self._grace_s
        ]
        for peer, _ in found:
            self.gone(peer)
        silent = [p for p in self.up if now >= self._heard[p] + self.rules.silence_timeout_s]
        for peer in silent:
            found.append((peer, f"silent for {now - self._heard[peer]:.1f} s"))
            self.gone(peer)
        return found

    def deadline(self) -> float:
        times = [self._beat_at] if self.up else []
        times += [since + self._grace_s for since, _ in self._down.values()]
        times += [self._heard[peer] + self.rules.silence_timeout_s for peer in self.up]
        return min(times, default=float("inf"))

    @property
    def _grace_s(self) -> float:
        return self.rules.silence_timeout_s if self.patient else self.rules.reconnect_grace_s
