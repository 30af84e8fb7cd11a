"""The counters of one daemon: bytes by peer and purpose, stalls, rates, and delays of its event
loop and of heartbeats.

Control is everything on control connections, and padding; payload and transfer are the bytes of
chunks without their heads; relay is everything in tunnels of other peers. Sent bytes count when the
kernel takes them, received bytes when a chunk is complete, so no peer has received more than the
other one sent. Must NOT touch a disk or a network, know arrays, or cost a noticeable time.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, Protocol

from protocols.messages import Chunk, Message, Padding, StateChunk
from protocols.types import PeerId

Purpose = Literal["payload", "transfer", "control", "relay"]
"""Contributions and results; states for joiners; everything else; tunnels of other peers."""
PURPOSES: tuple[Purpose, ...] = ("payload", "transfer", "control", "relay")
SAMPLE_S = 0.05
ROLL_S = 1.0
RATE_WINDOW_S = 10.0
LAG_WINDOW_S = 60.0
HEARTBEATS_MAX = 1 << 12
"""Remembered heartbeats: one minute of 32 peers at 0.5 s."""
GONE_KEPT_S = 600.0
"""Seconds after which a departed peer is added to GONE."""
PEERS_KEPT_MAX = 256
"""Departed peers with rows of their own; bounds what peers that come and go can cause."""
GONE = PeerId("")
"""The row of all peers without a row of their own."""


class CountedConnection(Protocol):
    """A connection, as far as it is counted."""

    @property
    def congested(self) -> bool:
        """There is more to send than the other end takes."""
        ...


class ControlConnection(CountedConnection, Protocol):
    sent_bytes: int
    received_bytes: int

    @property
    def round_trip_s(self) -> float | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTraffic:
    """The traffic with one peer since the daemon's start; rates are of the last RATE_WINDOW_S."""

    peer: PeerId
    sent: Mapping[Purpose, int]
    received: Mapping[Purpose, int]
    """Received bytes, refused ones included."""
    refused_bytes: int
    """Bytes of chunks that were dropped: stale, unwanted, or here already (I3)."""
    stalls: int
    stalled_s: float
    round_trip_s: float | None
    sent_per_s: float
    received_per_s: float


@dataclass(frozen=True, slots=True)
class Lag:
    """Delays in seconds, by default of the last LAG_WINDOW_S."""

    p50_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0


@dataclass(slots=True)
class _Counts:
    """The counts of one peer, over all of its connections."""

    sent: dict[Purpose, int] = field(default_factory=lambda: dict.fromkeys(PURPOSES, 0))
    received: dict[Purpose, int] = field(default_factory=lambda: dict.fromkeys(PURPOSES, 0))
    refused_bytes: int = 0
    stalls: int = 0
    stalled_s: float = 0.0
    stalled: bool = False
    control: ControlConnection | None = None
    bulk: CountedConnection | None = None
    seen: tuple[int, int] = (0, 0)
    """Bytes (sent, received) of the control connection that are in `sent` and `received`
    already."""
    heartbeat_at: float | None = None
    """When its last heartbeat came on this connection."""
    gone_since: float | None = None
    history: deque[tuple[float, int, int]] = field(default_factory=deque[tuple[float, int, int]])
    """(time, sent, received) samples, from before the window of the rates on."""

    def look(self, elapsed_s: float) -> None:
        """Sample whether the other end takes what is sent. `elapsed_s`: since the last sample."""
        stalled = self.control is not None and self.control.congested
        stalled = stalled or (self.bulk is not None and self.bulk.congested)
        if stalled:
            self.stalls += not self.stalled
            self.stalled_s += elapsed_s
        self.stalled = stalled

    def take_control(self) -> None:
        """Add the control connection's bytes since the last call."""
        if self.control is None:
            return
        now = (self.control.sent_bytes, self.control.received_bytes)
        self.sent["control"] += now[0] - self.seen[0]
        self.received["control"] += now[1] - self.seen[1]
        self.seen = now

    def roll(self, now: float) -> None:
        self.take_control()
        self.history.append((now, sum(self.sent.values()), sum(self.received.values())))
        while len(self.history) > 1 and self.history[1][0] <= now - RATE_WINDOW_S:
            self.history.popleft()

    def rates(self, now: float) -> tuple[float, float]:
        if not self.history or now <= self.history[0][0]:
            return 0.0, 0.0
        since, sent, received = self.history[0]
        gained = sum(self.sent.values()) - sent, sum(self.received.values()) - received
        return gained[0] / (now - since), gained[1] / (now - since)

    def add(self, other: "_Counts") -> None:
        for purpose in PURPOSES:
            self.sent[purpose] += other.sent[purpose]
            self.received[purpose] += other.received[purpose]
        self.refused_bytes += other.refused_bytes
        self.stalls += other.stalls
        self.stalled_s += other.stalled_s
        self.history.clear()  # The added traffic is not recent.


class Counters:
    """The counters of one daemon. Times are given by the caller and never fall."""

    def __init__(self) -> None:
        self._peers: dict[PeerId, _Counts] = {}
        self._late: deque[float] = deque(maxlen=round(LAG_WINDOW_S / SAMPLE_S))
        self._busy_late: deque[float] = deque(maxlen=round(LAG_WINDOW_S / SAMPLE_S))
        """Delays of samples before which payload moved."""
        self._payload_moved = False
        """Payload has moved since the last sample."""
        self._heartbeats: deque[tuple[float, float]] = deque(maxlen=HEARTBEATS_MAX)
        """(time, delay) of heartbeats."""
        self._sampled: float | None = None
        self._rolled = float("-inf")

    # Events ---------------------------------------------------------------------------------

    def follow(self, peer: PeerId, control: ControlConnection, bulk: CountedConnection) -> None:
        """The peer is connected: sample its connections until `unfollow`."""
        counts = self._of(peer)
        counts.control, counts.bulk, counts.seen = control, bulk, (0, 0)
        counts.gone_since, counts.heartbeat_at = None, None

    def unfollow(self, peer: PeerId) -> None:
        """The peer is disconnected."""
        counts = self._peers.get(peer)
        if counts is not None:
            counts.take_control()
            counts.control, counts.bulk, counts.stalled = None, None, False

    def count_sent(self, peer: PeerId, chunk: Message, size: int) -> None:
        purpose = _purpose(chunk)
        self._of(peer).sent[purpose] += size
        self._payload_moved |= purpose == "payload"

    def count_received(self, peer: PeerId, chunk: Chunk, size: int, *, kept: bool) -> None:
        """A chunk arrived; `kept`: it was not dropped."""
        counts, purpose = self._of(peer), _purpose(chunk)
        counts.received[purpose] += size
        self._payload_moved |= purpose == "payload"
        counts.refused_bytes += 0 if kept else size

    def relayed(self, source: PeerId, sink: PeerId, size: int) -> None:
        """Bytes went from one peer through this one to another."""
        self._peers.setdefault(source, _Counts()).received["relay"] += size
        self._peers.setdefault(sink, _Counts()).sent["relay"] += size

    def last_heartbeat(self, peer: PeerId, now: float) -> float:
        """The time of the heartbeat before the present one; `now` if it is the first one."""
        counts = self._of(peer)
        last, counts.heartbeat_at = counts.heartbeat_at, now
        return now if last is None else last

    def heartbeat(self, now: float, *, late_s: float) -> None:
        """A heartbeat of a watched peer came `late_s` later than one interval after the last one;
        that contains both event loops and the line."""
        self._heartbeats.append((now, late_s))

    def sample(self, now: float, *, late_s: float) -> None:
        """Take a sample, about every SAMPLE_S; `late_s`: its delay."""
        self._late.append(late_s)
        if self._payload_moved:
            self._busy_late.append(late_s)
            self._payload_moved = False
        elapsed_s = 0.0 if self._sampled is None else now - self._sampled
        self._sampled = now
        for counts in self._peers.values():
            counts.look(elapsed_s)
        if now - self._rolled >= ROLL_S:
            self._rolled = now
            for counts in self._peers.values():
                counts.roll(now)
            self._drop_gone(now)

    # Gauges ---------------------------------------------------------------------------------

    def traffic(self, now: float) -> list[PeerTraffic]:
        """The traffic by peer; GONE, if any, comes first."""
        return [self._told(peer, self._peers[peer], now) for peer in sorted(self._peers)]

    def lag(self) -> Lag:
        """Delays of the event loop."""
        return _lag_of(self._late)

    def busy_lag(self) -> Lag:
        """Delays of the event loop while payload moves: as many samples as LAG_WINDOW_S has, of
        those with payload."""
        return _lag_of(self._busy_late)

    def heartbeats(self, now: float) -> Lag:
        """Delays of heartbeats of other peers."""
        return _lag_of(late for at, late in self._heartbeats if at > now - LAG_WINDOW_S)

    def _of(self, peer: PeerId) -> _Counts:
        counts = self._peers.get(peer)
        if counts is None:
            counts = self._peers[peer] = _Counts()
        return counts

    def _told(self, peer: PeerId, counts: _Counts, now: float) -> PeerTraffic:
        counts.take_control()
        sent_per_s, received_per_s = counts.rates(now)
        return PeerTraffic(
            peer=peer,
            sent=dict(counts.sent),
            received=dict(counts.received),
            refused_bytes=counts.refused_bytes,
            stalls=counts.stalls,
            stalled_s=counts.stalled_s,
            round_trip_s=counts.control.round_trip_s if counts.control is not None else None,
            sent_per_s=sent_per_s,
            received_per_s=received_per_s,
        )

    def _drop_gone(self, now: float) -> None:
        """Drop rows of departed peers; their sums are added to GONE, since sums never fall."""
        gone: list[tuple[float, PeerId]] = []
        for peer, counts in self._peers.items():
            if counts.control is None and peer != GONE:
                counts.gone_since = now if counts.gone_since is None else counts.gone_since
                gone.append((counts.gone_since, peer))
        spare = max(0, len(self._peers) - PEERS_KEPT_MAX)
        late = sum(since <= now - GONE_KEPT_S for since, _ in gone)
        for _, peer in islice(sorted(gone), max(spare, late)):
            self._peers.setdefault(GONE, _Counts()).add(self._peers.pop(peer))


async def watch(counters: Counters) -> None:
    """Sample for ever. It reads its own clock, since the event loop's may be late while it is
    busy."""
    while True:
        due = time.monotonic() + SAMPLE_S
        await asyncio.sleep(SAMPLE_S)
        now = time.monotonic()
        counters.sample(now, late_s=max(0.0, now - due))


def _lag_of(found: Iterable[float]) -> Lag:
    late = sorted(found)
    if not late:
        return Lag()
    return Lag(late[len(late) // 2], late[int(0.99 * (len(late) - 1))], late[-1])


def _purpose(chunk: Message) -> Purpose:
    if isinstance(chunk, Padding):
        return "control"
    return "transfer" if isinstance(chunk, StateChunk) else "payload"
