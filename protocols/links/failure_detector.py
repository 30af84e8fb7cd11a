"""Who is connected, who was heard of when, whose silence is too long.

Ends of streams are noticed of everybody, silence only of those whom somebody named: heartbeats to
everybody would grow with the square of the run. Must NOT decide whom we need
(peer/connectivity.py), nor what follows from a loss: that is the leader's.
"""

from collections.abc import Set

from protocols.types.clock import NEVER
from protocols.types.frozen import record
from protocols.types.ids import PeerId
from protocols.types.rules import ProtocolConfig


@record
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
        self.watched: frozenset[PeerId] = frozenset()
        """Whose silence is a loss; they get heartbeats, and answer them."""
        self._since: dict[PeerId, float] = {}
        """Since when, by each of `watched`."""
        self._heard: dict[PeerId, float] = {}
        """When each of `up` spoke last."""
        self._down: dict[PeerId, tuple[float, str]] = {}
        """Since when a connection is gone, and why."""
        self._beat_at = NEVER
        self._silence_at = NEVER
        """Nobody's silence is too long before this: `heard` only moves it away."""

    def watch(self, peers: Set[PeerId], now: float) -> None:
        """These from now on: the silence of who is new among them begins now."""
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
        """How much longer than the interval its heartbeat took to come after the one at `last`;
        None: its silence does not concern us."""
        since = self._since.get(peer)
        if since is None:
            return None
        return max(0.0, now - max(last, since) - self.rules.heartbeat_interval_s)

    def gone(self, peer: PeerId) -> None:
        """Nobody watches it any more."""
        self.up.discard(peer)
        self._heard.pop(peer, None)
        self._down.pop(peer, None)

    def due_heartbeats(self, now: float) -> list[PeerId]:
        """To whom a heartbeat is due now."""
        if not self.beat_due(now):
            return []
        self._beat_at = now + self.rules.heartbeat_interval_s
        return sorted(self.up & self.watched)

    def lost(self, now: float) -> list[Loss]:
        """Peers that are lost from now on, each named once. Look before the heartbeats."""
        if now < self.deadline():
            return []
        if now > self.deadline() + 2 * self.rules.heartbeat_interval_s:
            # We are late: we were stopped ourselves (SIGSTOP, a suspended machine). That was our
            # silence, not theirs, and nobody could come back to us.
            self._heard = dict.fromkeys(self._heard, now)
            self._down = {peer: (now, why) for peer, (_, why) in self._down.items()}
            self._look_ahead()
        found = [
            Loss(peer, why, silent=False)
            for peer, (since, why) in self._down.items()
            if now >= since + self.rules.reconnect_grace_s
        ]
        if now >= self._silence_at:
            found += [
                Loss(peer, f"silent for {now - heard:.1f} s", silent=True)
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
        """When the silence of the one that was not heard of for longest would be too long."""
        heard = [self._heard[peer] for peer in self.watched if peer in self._heard]
        self._silence_at = min(heard, default=NEVER) + self.rules.silence_timeout_s
