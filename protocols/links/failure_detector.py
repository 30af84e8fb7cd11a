"""Failure detector: which peers are connected, and which of them have been silent for too long.

Closed connections of all peers are noticed, silence only of watched peers: heartbeats among all
peers would grow with the square of their number. Must NOT decide which peers are watched
(peer/connectivity.py), nor what follows from a loss (the leader).
"""

from collections.abc import Set

from protocols.types.clock import NEVER
from protocols.types.frozen import record
from protocols.types.ids import PeerId
from protocols.types.rules import ProtocolConfig


@record
class LostPeer:
    """A peer that is lost; it is not watched any more."""

    peer: PeerId
    why: str
    silent: bool
    """Its connection is still open, but silent."""


class FailureDetector:
    """All times are the `now` of the core's events, in seconds."""

    def __init__(self, rules: ProtocolConfig) -> None:
        self.rules = rules
        self.up: set[PeerId] = set()
        self.watched: frozenset[PeerId] = frozenset()
        """Watched peers: they get heartbeats and answer them, and their silence is a loss."""
        self._since: dict[PeerId, float] = {}
        """Since when each watched peer is watched."""
        self._heard: dict[PeerId, float] = {}
        """When each connected peer was heard last."""
        self._down: dict[PeerId, tuple[float, str]] = {}
        """By peer, when its connection was lost, and why."""
        self._beat_at = NEVER
        self._silence_at = NEVER
        """No silence is too long before this time; `heard` can only make it later."""

    def watch(self, peers: Set[PeerId], now: float) -> None:
        """Watch exactly these peers. The silence of new ones counts from now on."""
        fresh = peers - self.watched
        for peer in fresh & self._heard.keys():
            self._heard[peer] = now
        if fresh or len(peers) < len(self.watched):
            self.watched = frozenset(peers)
            self._since = {peer: self._since.get(peer, now) for peer in peers}
        self._look_ahead()

    def heard_since(self, peer: PeerId, since: float) -> bool:
        return self._heard.get(peer, since) > since

    def beat_due(self, now: float) -> bool:
        return now >= self._beat_at

    def connected(self, peer: PeerId, now: float) -> None:
        if not self.up:
            self._beat_at = now + self.rules.heartbeat_interval_s
        self.up.add(peer)
        self._down.pop(peer, None)
        self._heard[peer] = now
        self._look_ahead()

    def disconnected(self, peer: PeerId, why: str, now: float) -> None:
        self.up.discard(peer)
        self._heard.pop(peer, None)
        self._down.setdefault(peer, (now, why))

    def heard(self, peer: PeerId, now: float) -> None:
        if peer in self._heard:
            self._heard[peer] = now

    def late_s(self, peer: PeerId, last: float, now: float) -> float | None:
        """Seconds by which a heartbeat came later than one interval after the one at `last`; None
        if the peer is not watched."""
        since = self._since.get(peer)
        if since is None:
            return None
        return max(0.0, now - max(last, since) - self.rules.heartbeat_interval_s)

    def gone(self, peer: PeerId) -> None:
        """The peer is not watched any more."""
        self.up.discard(peer)
        self._heard.pop(peer, None)
        self._down.pop(peer, None)

    def due_heartbeats(self, now: float) -> list[PeerId]:
        """Watched peers to which a heartbeat is due."""
        if not self.beat_due(now):
            return []
        self._beat_at = now + self.rules.heartbeat_interval_s
        return sorted(self.up & self.watched)

    def lost(self, now: float) -> list[LostPeer]:
        """Peers that are lost from now on, each named once. Call this before due_heartbeats."""
        if now < self.deadline():
            return []
        if now > self.deadline() + 2 * self.rules.heartbeat_interval_s:
            # We are late: this process was stopped (SIGSTOP, a suspended machine). That silence was
            # ours, and no peer could reconnect meanwhile.
            self._heard = dict.fromkeys(self._heard, now)
            self._down = {peer: (now, why) for peer, (_, why) in self._down.items()}
            self._look_ahead()
        found = [
            LostPeer(peer, why, silent=False)
            for peer, (since, why) in self._down.items()
            if now >= since + self.rules.reconnect_grace_s
        ]
        if now >= self._silence_at:
            found += [
                LostPeer(peer, f"silent for {now - heard:.1f} s", silent=True)
                for peer, heard in self._heard.items()
                if peer in self.watched and now >= heard + self.rules.silence_timeout_s
            ]
        for loss in found:
            self.gone(loss.peer)
        if now >= self._silence_at:
            self._look_ahead()
        return found

    def deadline(self) -> float:
        deadline = min(self._beat_at, self._silence_at) if self.up else NEVER
        if self._down:
            first, _ = min(self._down.values())
            deadline = min(deadline, first + self.rules.reconnect_grace_s)
        return deadline

    def _look_ahead(self) -> None:
        """Set the time at which the longest silence of a watched peer becomes too long."""
        heard = [self._heard[peer] for peer in self.watched if peer in self._heard]
        self._silence_at = min(heard, default=NEVER) + self.rules.silence_timeout_s
