"""Failure detector: which peers are connected, and which of them have been silent for too long.

Closed connections of all peers are noticed, silence only of watched peers: heartbeats among all
peers would grow with the square of their number. How long a peer may be silent follows from its
longest pause lately, so a quiet line is given up within a second and a bad one is not lost by its
usual pauses. Must NOT decide which peers are watched (peer/connectivity.py), nor what follows from
a loss (the leader).
"""

from collections.abc import Set

from protocols.types.clock import NEVER
from protocols.types.frozen import record
from protocols.types.ids import PeerId
from protocols.types.rules import ProtocolConfig

CROWD = 64
"""Up to so many connected peers get heartbeats at the interval of the run; more get them as many
times more rarely as there are more, since the leader sends and handles all of them."""
BEATS_MIN = 20
"""A peer's longest pause is known after it was watched for so many heartbeats."""
MEMORY_S = 120.0
"""Seconds after which a pause is forgotten, at the earliest; at the latest after twice as long."""


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
        self._longest: dict[PeerId, float] = {}
        """The longest pause of each watched peer since the last turn ..."""
        self._longest_before: dict[PeerId, float] = {}
        """... and in the MEMORY_S before that."""
        self._turn_at = -NEVER
        """When `_longest` becomes `_longest_before`."""
        self._down: dict[PeerId, tuple[float, str]] = {}
        """By peer without a connection, until when it may reconnect, and why it has none."""
        self._beat_at = NEVER
        self._silence_at = NEVER
        """No silence is too long before this time; `heard` can only make it later."""

    @property
    def interval_s(self) -> float:
        """Seconds between heartbeats."""
        return self.rules.heartbeat_interval_s * max(1.0, len(self.up) / CROWD)

    def pause_s(self, peer: PeerId, now: float) -> float:
        """The longest pause between two messages of a watched peer lately, seconds; NEVER if it is
        not watched, or has not been for long."""
        if now < self._since.get(peer, NEVER) + BEATS_MIN * self.interval_s:
            return NEVER
        return max(self._longest.get(peer, 0.0), self._longest_before.get(peer, 0.0))

    def watch(self, peers: Set[PeerId], now: float) -> None:
        """Watch exactly these peers. The silence of new ones counts from now on."""
        fresh = peers - self.watched
        for peer in fresh & self._heard.keys():
            self._heard[peer] = now
        if fresh or len(peers) < len(self.watched):
            self.watched = frozenset(peers)
            self._since = {peer: self._since.get(peer, now) for peer in peers}
            self._longest = {peer: self._longest.get(peer, 0.0) for peer in peers}
        if now >= self._turn_at:
            self._turn_at = now + MEMORY_S
            self._longest_before, self._longest = self._longest, dict.fromkeys(peers, 0.0)
        self._look_ahead(now)

    def heard_since(self, peer: PeerId, since: float) -> bool:
        return self._heard.get(peer, since) > since

    def beat_due(self, now: float) -> bool:
        return now >= self._beat_at

    def connected(self, peer: PeerId, now: float) -> None:
        if not self.up:
            self._beat_at = now + self.interval_s
        self.up.add(peer)
        self._down.pop(peer, None)
        self._heard[peer] = now
        self._look_ahead(now)

    def disconnected(self, peer: PeerId, why: str, now: float, *, lives: bool = False) -> None:
        """`lives`: its process has not ended. Then it may be slow to reconnect: the path between us
        may be bad, or it did not hear us."""
        grace_s = self.rules.reconnect_grace_s
        if lives:
            pause_s = self.pause_s(peer, now)
            grace_s = self.rules.silence_timeout(pause_s if pause_s < NEVER else 0.0)
        self.up.discard(peer)
        self._heard.pop(peer, None)
        self._down.setdefault(peer, (now + grace_s, why))

    def heard(self, peer: PeerId, now: float) -> None:
        before = self._heard.get(peer)
        if before is None:
            return
        self._heard[peer] = now
        if now - before > self._longest.get(peer, NEVER) and not self._is_late(now):
            self._longest[peer] = now - before

    def late_s(self, peer: PeerId, last: float, now: float) -> float | None:
        """Seconds by which a heartbeat came later than one interval after the one at `last`; None
        if the peer is not watched."""
        since = self._since.get(peer)
        if since is None:
            return None
        return max(0.0, now - max(last, since) - self.interval_s)

    def gone(self, peer: PeerId) -> None:
        """The peer is not watched any more."""
        self.up.discard(peer)
        self._heard.pop(peer, None)
        self._down.pop(peer, None)

    def due_heartbeats(self, now: float) -> list[PeerId]:
        """Watched peers to which a heartbeat is due."""
        if not self.beat_due(now):
            return []
        self._beat_at = now + self.interval_s
        return sorted(self.up & self.watched)

    def lost(self, now: float) -> list[LostPeer]:
        """Peers that are lost from now on, each named once. Call this before due_heartbeats."""
        if now < self.deadline():
            return []
        if self._is_late(now):
            # That silence was ours, and no peer could reconnect meanwhile.
            self._heard = dict.fromkeys(self._heard, now)
            grace_s = self.rules.reconnect_grace_s
            self._down = {
                peer: (max(until, now + grace_s), why) for peer, (until, why) in self._down.items()
            }
            self._look_ahead(now)
        found = [
            LostPeer(peer, why, silent=False)
            for peer, (until, why) in self._down.items()
            if now >= until
        ]
        if now >= self._silence_at:
            found += [
                LostPeer(peer, f"silent for {now - heard:.1f} s", silent=True)
                for peer, heard in self._heard.items()
                if peer in self.watched and now >= heard + self._timeout_s(peer, now)
            ]
        for loss in found:
            self.gone(loss.peer)
        if now >= self._silence_at:
            self._look_ahead(now)
        return found

    def deadline(self) -> float:
        deadline = min(self._beat_at, self._silence_at) if self.up else NEVER
        if self._down:
            first, _ = min(self._down.values())
            deadline = min(deadline, first)
        return deadline

    def _timeout_s(self, peer: PeerId, now: float) -> float:
        return self.rules.silence_timeout(self.pause_s(peer, now))

    def _is_late(self, now: float) -> bool:
        """Were we stopped (SIGSTOP, a suspended machine), and are late to look?"""
        return now > self.deadline() + 2 * self.interval_s

    def _look_ahead(self, now: float) -> None:
        """Set the time at which the silence of a watched peer first becomes too long, if no message
        comes. It is set anew at each heartbeat. Now at the earliest: a shorter timeout, since the
        peer's pauses are known, is no pause of this node."""
        heard = self._heard
        first = min(
            (heard[peer] + self._timeout_s(peer, now) for peer in self.watched if peer in heard),
            default=NEVER,
        )
        self._silence_at = max(now, first)
