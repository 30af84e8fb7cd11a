"""Who is connected, who was heard of when, whose silence is too long.

Must NOT decide what follows from a loss: that is the leader's.
"""

from dataclasses import dataclass

from protocols.config import ProtocolConfig
from protocols.ids import PeerId


@dataclass(frozen=True, slots=True)
class Loss:
    """A peer that nobody watches from now on."""

    peer: PeerId
    why: str
    silent: bool
    """Its connection is still there, and hangs."""


class Liveness:
    """Times are those of `now` in the core's events."""

    def __init__(self, rules: ProtocolConfig) -> None:
        self.rules = rules
        self.up: set[PeerId] = set()
        self._heard: dict[PeerId, float] = {}
        """When each of `up` spoke last."""
        self._down: dict[PeerId, tuple[float, str]] = {}
        """Since when a connection is gone, and why."""
        self._beat_at = float("inf")

    def connected(self, peer: PeerId, now: float) -> None:
        if not self.up:
            self._beat_at = now + self.rules.heartbeat_interval_s
        self.up.add(peer)
        self._down.pop(peer, None)
        self._heard[peer] = now

    def disconnected(self, peer: PeerId, why: str, now: float) -> None:
        self.up.discard(peer)
        self._heard.pop(peer, None)
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

    def lost(self, now: float) -> list[Loss]:
        """Peers that are lost from now on, each named once. Look before the heartbeats."""
        if now < self.deadline():
            return []
        if now > self.deadline() + 2 * self.rules.heartbeat_interval_s:
            # We are late: we were stopped ourselves (SIGSTOP, a suspended machine). That was our
            # silence, not theirs, and nobody could come back to us.
            self._heard = dict.fromkeys(self._heard, now)
            self._down = {peer: (now, why) for peer, (_, why) in self._down.items()}
        found = [
            Loss(peer, why, silent=False)
            for peer, (since, why) in self._down.items()
            if now >= since + self.rules.reconnect_grace_s
        ]
        found += [
            Loss(peer, f"silent for {now - heard:.1f} s", silent=True)
            for peer, heard in self._heard.items()
            if now >= heard + self.rules.silence_timeout_s
        ]
        for loss in found:
            self.gone(loss.peer)
        return found

    def deadline(self) -> float:
        deadline = self._beat_at if self.up else float("inf")
        if self._down:
            first, _ = min(self._down.values())
            deadline = min(deadline, first + self.rules.reconnect_grace_s)
        if self._heard:
            longest = min(self._heard.values())
            deadline = min(deadline, longest + self.rules.silence_timeout_s)
        return deadline
