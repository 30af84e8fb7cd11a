"""The metrics endpoint: a daemon's figures for Prometheus, over HTTP.

The event loop reads the figures and answers; another thread makes the text. It answers only `GET
/metrics`, for a few clients at a time. Must NOT be imported by a daemon that serves no metrics (the
library costs more than a tenth of a daemon's start), nor tell a secret: anyone that reaches the
address may ask.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from peers.metrics.counters import PURPOSES, Lag, PeerTraffic

REQUEST_BYTES_MAX = 8 << 10
ASKERS_MAX = 16
ASKER_TIMEOUT_S = 5.0
"""Seconds from the connection to the end of the answer."""
PAGE_S = 1.0
"""Seconds for which the same text is served, so that requests cannot keep the daemon busy."""
PATH = "/metrics"
GONE_NAME = "gone"
"""The label of all departed peers."""
SENT = "Bytes sent to this peer; control: messages on control connections, and padding."
RECEIVED = "Bytes received from this peer; control: messages on control connections, and padding."
REFUSED = "Bytes received and dropped: stale, unwanted or duplicate."
STALLS = "Number of times that a connection could not send, since the other side did not read."
STALLED = "Seconds during which a connection could not send, since the other side did not read."
ROUND_TRIP = "Round-trip time to this peer in seconds, measured by the kernel."
LAG = "Seconds by which the daemon's event loop was late, in the last minute."
HEARTBEATS = "Seconds by which heartbeats of other peers were late, in the last minute."
DISCARDED = "Payloads dropped: of no open round, unwanted or damaged."


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All figures at one moment."""

    labels: Mapping[str, str]
    """Labels of all figures: run and method."""
    traffic: Iterable[PeerTraffic]
    lag: Lag
    """Delays of the daemon's event loop."""
    heartbeats: Lag
    """Delays of heartbeats of other peers."""
    discarded: int
    """Number of dropped payloads."""
    gauges: Mapping[str, tuple[str, float]]
    """{name without `lowcomm_`: (description, value)}"""


def render(figures: Figures) -> bytes:
    """The text in the format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(_Collector(figures))
    return generate_latest(registry)


@asynccontextmanager
async def served(bound: socket.socket, figures: Callable[[], Figures]) -> AsyncGenerator[None]:
    """Answer on a socket that `bind` made, until the context ends."""
    askers: set[_Asker] = set()
    loop = asyncio.get_running_loop()
    page = _Page(figures)
    server = await loop.create_server(lambda: _Asker(askers, page), sock=bound)
    try:
        yield
    finally:
        server.close()
        for asker in list(askers):
            asker.abort()
        await server.wait_closed()


class _Collector:
    """The object that the library asks for metrics."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        told = self._figures
        traffic = [(each.peer or GONE_NAME, each) for each in told.traffic]
        total, now = CounterMetricFamily, GaugeMetricFamily
        by_purpose, by_peer = ("peer", "purpose"), ("peer",)
        sent = [((peer, p), each.sent[p]) for peer, each in traffic for p in PURPOSES]
        received = [((peer, p), each.received[p]) for peer, each in traffic for p in PURPOSES]
        refused = [((peer,), each.refused_bytes) for peer, each in traffic]
        stalls = [((peer,), each.stalls) for peer, each in traffic]
        stalled = [((peer,), each.stalled_s) for peer, each in traffic]
        trips = [((peer,), x.round_trip_s) for peer, x in traffic if x.round_trip_s is not None]
        yield self._family(total, "sent_bytes", SENT, by_purpose, sent)
        yield self._family(total, "received_bytes", RECEIVED, by_purpose, received)
        yield self._family(total, "refused_bytes", REFUSED, by_peer, refused)
        yield self._family(total, "stalls", STALLS, by_peer, stalls)
        yield self._family(total, "stalled_seconds", STALLED, by_peer, stalled)
        yield self._family(now, "round_trip_seconds", ROUND_TRIP, by_peer, trips)
        for name, what, lag in (
            ("loop_lag_seconds", LAG, told.lag),
            ("heartbeat_late_seconds", HEARTBEATS, told.heartbeats),
        ):
            late = [(("0.5",), lag.p50_s), (("0.99",), lag.p99_s), (("1",), lag.max_s)]
            yield self._family(now, name, what, ("quantile",), late)
        discarded = [((), told.discarded)]
        yield self._family(total, "discarded_payloads", DISCARDED, (), discarded)
        for name, (what, value) in told.gauges.items():
            yield self._family(now, name, what, (), [((), value)])

    def _family(
        self,
        kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        what: str,
        labels: Sequence[str],
        rows: Iterable[tuple[Sequence[str], float]],
    ) -> Metric:
        """A metric; `rows`: (values of `labels`, figure)."""
        common = self._figures.labels
        family = kind(f"lowcomm_{name}", what, labels=[*common, *labels])
        for values, figure in rows:
            family.add_metric([*common.values(), *values], figure)
        return family


class _Page:
    """The newest text. It takes 10 ms to make with a hundred peers."""

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures
        self._text: asyncio.Future[bytes] | None = None
        self._since = 0.0

    def text(self) -> asyncio.Future[bytes]:
        loop = asyncio.get_running_loop()
        if self._text is None or (self._text.done() and loop.time() - self._since >= PAGE_S):
            self._since = loop.time()
            self._text = loop.run_in_executor(None, render, self._figures())
        return self._text


class _Asker(asyncio.Protocol):
    """One connection: a request, an answer, and its end."""

    def __init__(self, askers: "set[_Asker]", page: _Page) -> None:
        self._askers = askers
        self._page = page
        self._request = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport does not inherit from it.
        self._transport = cast(asyncio.Transport, transport)
        if len(self._askers) >= ASKERS_MAX:
            self.abort()
            return
        self._askers.add(self)
        self._timer = asyncio.get_running_loop().call_later(ASKER_TIMEOUT_S, self.abort)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._request += data
        if b"\r\n\r\n" in self._request:
            transport.pause_reading()
            self._answer(self._request.split(b"\r\n", 1)[0])
        elif len(self._request) > REQUEST_BYTES_MAX:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._askers.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _answer(self, line: bytes) -> None:
        """Answer a request with this first line."""
        method, _, rest = line.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method != b"GET":
            self._respond(_response("405 Method Not Allowed", b"GET only\n", "text/plain"))
        elif path != PATH.encode():
            self._respond(_response("404 Not Found", f"only {PATH}\n".encode(), "text/plain"))
        else:
            self._page.text().add_done_callback(self._tell)

    def _tell(self, text: asyncio.Future[bytes]) -> None:
        self._respond(_response("200 OK", text.result(), CONTENT_TYPE_PLAIN_0_0_4))

    def _respond(self, response: bytes) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(response)
            transport.close()


def _response(status: str, body: bytes, kind: str) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
