"""Measures the line between two peers: round trips, one TCP stream, datagrams.

`python -m sims.wan.probe serve HOST:PORT` in one place, `... ask HOST:PORT` in another, which
prints JSON. Must NOT know the requested link.
"""

import argparse
import contextlib
import json
import select
import socket
import statistics
import struct
import sys
import time
from collections.abc import Sequence

ECHO, SINK, COUNT = b"e", b"s", b"u"
READY = "ready"
PING_BYTES = 32
DATAGRAM_BYTES = 200
DATAGRAMS_AT_ONCE = 10
DATAGRAM_PAUSE_S = 0.01
BUFFER_BYTES = 1 << 20
ANSWER_TIMEOUT_S = 60.0
_ANSWER = struct.Struct("!qd")
"""(bytes or datagrams received; bytes per second, or 0)."""


def serve(address: tuple[str, int]) -> None:
    """Answer one client after the other, forever."""
    with (
        socket.create_server(address) as listener,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind(address)
        datagrams.setblocking(False)
        datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        sys.stdout.write(READY + "\n")
        sys.stdout.flush()
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(ConnectionError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                kind = connection.recv(1)
                if kind == ECHO:
                    _echo(connection)
                elif kind == SINK:
                    connection.sendall(_ANSWER.pack(*_sink(connection)))
                elif kind == COUNT:
                    connection.sendall(_ANSWER.pack(_count(datagrams, connection), 0.0))


def round_trips(address: tuple[str, int], count: int) -> list[float]:
    """Seconds of each round trip, in order, on a connection that was used before."""
    times: list[float] = []
    with socket.create_connection(address, ANSWER_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(ECHO)
        for _ in range(count + 1):
            before = time.monotonic()
            connection.sendall(bytes(PING_BYTES))
            _receive(connection, PING_BYTES)
            times.append(time.monotonic() - before)
    return times[1:]


def throughput(address: tuple[str, int], seconds: float) -> tuple[int, float]:
    """(bytes received in all; bytes per second at the receiver, in the second half)."""
    block = bytes(BUFFER_BYTES)
    with socket.create_connection(address, ANSWER_TIMEOUT_S) as connection:
        connection.sendall(SINK + struct.pack("!d", seconds / 2))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            connection.sendall(block)
        connection.shutdown(socket.SHUT_WR)
        received, bytes_per_s = _ANSWER.unpack(_receive(connection, _ANSWER.size))
    return received, bytes_per_s


def datagram_loss(address: tuple[str, int], count: int) -> float:
    """The share of datagrams that did not arrive, sent slowly enough for any queue."""
    with (
        socket.create_connection(address, ANSWER_TIMEOUT_S) as connection,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        connection.sendall(COUNT)
        for number in range(count):
            datagrams.sendto(bytes(DATAGRAM_BYTES), address)
            if number % DATAGRAMS_AT_ONCE == 0:
                time.sleep(DATAGRAM_PAUSE_S)
        connection.shutdown(socket.SHUT_WR)
        arrived, _ = _ANSWER.unpack(_receive(connection, _ANSWER.size))
    return 1 - arrived / count


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="sims.wan.probe")
    parser.add_argument("what", choices=("serve", "ask"))
    parser.add_argument("address")
    parser.add_argument("--pings", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--datagrams", type=int, default=0)
    typed = parser.parse_args(argv)
    host, _, port = typed.address.rpartition(":")
    address = (host, int(port))
    if typed.what == "serve":
        serve(address)
    found: dict[str, object] = {}
    if typed.pings:
        times = round_trips(address, typed.pings)
        found["rtt_s"] = statistics.median(times)
        found["rtt_min_s"], found["rtt_max_s"] = min(times), max(times)
    if typed.seconds:
        found["received_bytes"], found["bytes_per_s"] = throughput(address, typed.seconds)
    if typed.datagrams:
        found["loss"] = datagram_loss(address, typed.datagrams)
    print(json.dumps(found))  # noqa: T201


def _echo(connection: socket.socket) -> None:
    while data := connection.recv(PING_BYTES):
        connection.sendall(data)


def _sink(connection: socket.socket) -> tuple[int, float]:
    """(bytes received in all; bytes per second from some seconds after the first byte to the last
    one)."""
    (skip_s,) = struct.unpack("!d", _receive(connection, 8))
    buffer = bytearray(BUFFER_BYTES)
    total = skipped = 0
    from_at = now = 0.0
    while size := connection.recv_into(buffer):
        total += size
        now = time.monotonic()
        if not from_at:
            from_at = now + skip_s
        if now <= from_at:
            skipped = total
    return total, (total - skipped) / max(now - from_at, 1e-9) if total > skipped else 0.0


def _count(datagrams: socket.socket, connection: socket.socket) -> int:
    """Count datagrams until the client's stream ends: its last byte comes after them."""
    count = 0
    over = False
    while not over:
        ready, _, _ = select.select((datagrams, connection), (), (), ANSWER_TIMEOUT_S)
        over = datagrams not in ready
        with contextlib.suppress(BlockingIOError):
            while datagrams.recv(DATAGRAM_BYTES):
                count += 1
    return count


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the other end has closed")
        data += part
    return data


if __name__ == "__main__":
    main(sys.argv[1:])
