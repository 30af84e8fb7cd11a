"""Tunes open bulk connections by the kernel's figures: rate limits, padding, more connections.

A connection that overruns its line is slowed down. A new connection over a long line sends padding
before there is payload: bbr begins with ten packets a round trip and doubles that until the line is
full, which takes a second at 100 Mbit/s and 100 ms, and remembers the rate while idle. Must NOT
dial.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping

from peers.connections.session import Session
from peers.sockets.options import pace
from peers.sockets.rate_limit import SAMPLE_S
from peers.sockets.tcp_info import LOOK_S, RTT_MIN_S, Flow, flow_of, line_of, wants_more
from protocols.types import PeerId

IDLE_S = 0.1
"""A connection that was busy for less than so many seconds of a second may send padding."""
PADDING_BYTES_MIN, PADDING_BYTES_MAX = 64 << 10, 16 << 20
"""Bytes of padding. Less is not worth it; the most is 1.3 s of 100 Mbit/s: bbr knows such a line
after 4 MB or more."""


class BulkTuning:
    """The tuning of one mesh's connections."""

    def __init__(
        self,
        sessions: Mapping[PeerId, Session],
        padding_bytes: Callable[[PeerId], int],
        widen: Callable[[Session], None],
    ) -> None:
        """`padding_bytes(peer)`: bytes that are worth sending to find out the rate of a line;
        `widen`: called if another connection of a pair would carry more."""
        self._sessions = sessions
        self._padding_bytes = padding_bytes
        self._widen = widen
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}

    def start(self) -> None:
        """Begin, once there is a connection. Idempotent."""
        if not self._timers:
            self._sample()
            self._look()

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def _sample(self) -> None:
        self._again(SAMPLE_S, self._sample)
        keep_pace(self._sessions.values(), asyncio.get_running_loop().time())

    def _look(self) -> None:
        self._again(LOOK_S, self._look)
        for session in look(self._sessions.values(), self._padding_bytes):
            self._widen(session)

    def _again(self, after_s: float, what: Callable[[], None]) -> None:
        self._timers[what] = asyncio.get_running_loop().call_later(after_s, what)


def keep_pace(sessions: Iterable[Session], now: float) -> None:
    """Slow down connections that overrun their lines."""
    for session in sessions:
        for bulk, watched in session.bulks.items():
            with contextlib.suppress(OSError):  # It has ended, or this kernel has no figures.
                bytes_per_s = watched.throttle.sample(flow_of(bulk.connection), now)
                if bytes_per_s is not None:
                    pace(bulk.connection, bytes_per_s)


def look(sessions: Iterable[Session], padding_bytes: Callable[[PeerId], int]) -> list[Session]:
    """Send padding where it is worth it. Returns the sessions for which another connection would
    carry more."""
    slow: list[Session] = []
    cold: list[Session] = []
    idle = True
    for session in sessions:
        try:
            flows = {bulk: flow_of(bulk.connection) for bulk in session.bulks}
        except OSError:
            continue  # One of them has ended, or this kernel has no figures.
        news = [flow.since(session.bulks[bulk].flow) for bulk, flow in flows.items()]
        for bulk, flow in flows.items():
            session.bulks[bulk].flow = flow
        session.line = line_of(news, session.line)
        if wants_more(news):
            slow.append(session)
        idle = idle and sum(flow.busy_s for flow in news) < IDLE_S
        if _is_cold(session, news):
            cold.append(session)
    for session in cold if idle else ():
        size_bytes = min(padding_bytes(session.hello.peer), PADDING_BYTES_MAX)
        if size_bytes >= PADDING_BYTES_MIN:
            next(iter(session.bulks)).warm(size_bytes)
    return slow


def _is_cold(session: Session, news: list[Flow]) -> bool:
    """Is the rate of its line unknown, with a congestion control that would remember it?"""
    new = len(news) == 1 and not any(bulk.outgoing.warm_up.requested for bulk in session.bulks)
    long = all(flow.rtt_s >= RTT_MIN_S and not flow.fears_loss for flow in news)
    # Padding through a relay would cost a third peer.
    return new and long and not session.control.through
