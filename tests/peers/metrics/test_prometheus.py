"""The endpoint on a real socket: what Prometheus gets, and what nobody can do to it."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from peers.metrics import prometheus
from peers.metrics.counters import GONE, Lag, PeerTraffic, Purpose
from peers.metrics.prometheus import ASKERS_MAX, REQUEST_BYTES_MAX, Figures, render, served
from peers.sockets.listener import bind
from protocols.types.ids import PeerId

GET = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"
ALPHA = PeerId("alpha.1")
SENT: Mapping[Purpose, int] = {"payload": 1, "transfer": 2, "control": 3, "relay": 7}
RECEIVED: Mapping[Purpose, int] = {"payload": 4, "transfer": 5, "control": 6, "relay": 8}
Sample = tuple[str, frozenset[tuple[str, str]]]


def traffic(peer: PeerId, *, round_trip_s: float | None = None) -> PeerTraffic:
    return PeerTraffic(
        peer=peer,
        sent=SENT,
        received=RECEIVED,
        refused_bytes=7,
        stalls=8,
        stalled_s=0.5,
        round_trip_s=round_trip_s,
        sent_per_s=1.0,
        received_per_s=1.0,
    )


def figures(name: str = "first") -> Figures:
    return Figures(
        labels={"run": name, "method": "diloco"},
        traffic=[traffic(GONE), traffic(ALPHA, round_trip_s=0.1)],
        lag=Lag(0.001, 0.002, 0.003),
        heartbeats=Lag(0.004, 0.005, 0.006),
        discarded=9,
        gauges={"training_loss": ("Of the last step.", 1.25)},
    )


def samples(told: bytes) -> dict[Sample, float]:
    """By name and labels, read as Prometheus does."""
    found: dict[Sample, float] = {}
    for family in text_string_to_metric_families(told.decode()):
        for each in family.samples:
            found[each.name, frozenset(each.labels.items())] = each.value
    return found


def of(name: str, **labels: str) -> Sample:
    return name, frozenset({"run": "first", "method": "diloco", **labels}.items())


def test_every_figure_is_told_under_its_name_with_its_labels() -> None:
    told = samples(render(figures()))
    assert told[of("lowcomm_sent_bytes_total", peer="alpha.1", purpose="payload")] == 1
    assert told[of("lowcomm_sent_bytes_total", peer="gone", purpose="control")] == 3
    assert told[of("lowcomm_received_bytes_total", peer="alpha.1", purpose="transfer")] == 5
    assert told[of("lowcomm_refused_bytes_total", peer="alpha.1")] == 7
    assert told[of("lowcomm_stalls_total", peer="alpha.1")] == 8
    assert told[of("lowcomm_stalled_seconds_total", peer="alpha.1")] == 0.5
    assert told[of("lowcomm_round_trip_seconds", peer="alpha.1")] == 0.1
    assert of("lowcomm_round_trip_seconds", peer="gone") not in told
    assert told[of("lowcomm_loop_lag_seconds", quantile="0.99")] == 0.002
    assert told[of("lowcomm_loop_lag_seconds", quantile="1")] == 0.003
    assert told[of("lowcomm_heartbeat_late_seconds", quantile="0.5")] == 0.004
    assert told[of("lowcomm_heartbeat_late_seconds", quantile="1")] == 0.006
    assert told[of("lowcomm_discarded_payloads_total")] == 9
    assert told[of("lowcomm_training_loss")] == 1.25


def test_hostile_names_stay_in_their_labels() -> None:
    told = samples(render(figures('x"} 1\nlowcomm_evil 2\\')))
    assert not any("evil" in name for name, _ in told)


@asynccontextmanager
async def endpoint(made: Callable[[], Figures] = figures) -> AsyncGenerator[tuple[str, int]]:
    bound, _ = bind("127.0.0.1:0")
    with bound:
        async with served(bound, made):
            host, port = bound.getsockname()[:2]
            yield host, port


async def ask(at: tuple[str, int], *pieces: bytes) -> bytes:
    """All that comes back until the other side ends it."""
    reader, writer = await asyncio.open_connection(*at)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


@pytest.mark.asyncio
async def test_prometheus_gets_what_is_counted_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "PAGE_S", 0.0)
    names = iter(("first", "second"))
    async with endpoint(lambda: figures(next(names))) as at:
        for name in ("first", "second"):
            head, _, body = (await ask(at, GET)).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert f"Content-Length: {len(body)}".encode() in head
            assert body == render(figures(name))


@pytest.mark.asyncio
async def test_who_asks_too_often_gets_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "PAGE_S", 600.0)
    made: list[Figures] = []

    def counted() -> Figures:
        made.append(figures())
        return made[-1]

    async with endpoint(counted) as at:
        answers = await asyncio.gather(*(ask(at, GET) for _ in range(ASKERS_MAX)), ask(at, GET))
        assert b"200 OK" in await ask(at, GET)
    assert sum(b"200 OK" in answer for answer in answers) >= ASKERS_MAX
    assert len(made) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics/.. HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"405"),
        (b"\x16\x03\x01\xff\r\n\r\n", b"405"),
    ],
)
async def test_anything_else_is_refused(request_: bytes, status: bytes) -> None:
    async with endpoint() as at:
        assert (await ask(at, *(bytes([byte]) for byte in request_))).split(b" ")[1] == status


@pytest.mark.asyncio
async def test_a_request_without_an_end_costs_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prometheus, "ASKER_TIMEOUT_S", 600.0)
    async with endpoint() as at:
        assert await ask(at, b"GET /metrics HTTP/1.1\r\n", b"x" * (2 * REQUEST_BYTES_MAX)) == b""
        assert b"200 OK" in await ask(at, GET)


@pytest.mark.asyncio
async def test_who_says_nothing_is_cut_off_and_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "ASKER_TIMEOUT_S", 0.3)
    async with endpoint() as at:
        silent = [socket.create_connection(at) for _ in range(ASKERS_MAX)]
        try:
            async with asyncio.timeout(20):
                while await ask(at, GET) != b"":
                    pass  # Not all were accepted yet.
                while b"200 OK" not in await ask(at, GET):
                    pass
        finally:
            for each in silent:
                each.close()


@pytest.mark.asyncio
async def test_at_its_end_nobody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "ASKER_TIMEOUT_S", 600.0)
    async with asyncio.timeout(10):
        async with endpoint() as at:
            silent = socket.create_connection(at)
            assert b"200 OK" in await ask(at, GET)
        silent.setblocking(False)
        try:
            assert await asyncio.get_running_loop().sock_recv(silent, 1) == b""
        except ConnectionResetError:
            pass
        finally:
            silent.close()
