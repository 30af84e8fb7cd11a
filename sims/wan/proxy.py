"""TCP streams between processes of this machine, relayed as over a slow link: no root, any system.

A process of its own (`python -m sims.wan.proxy`, started by control.Helper). Each peer has a port
for each other peer, and one for all. Must NOT lose, repeat or reorder bytes: neither does TCP, so a
lost packet is a pause of the length of its retransmission.
"""

import asyncio
import contextlib
import random
import secrets
import socket
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sims.wan.control import OWNER_LOOK_S, Owner, links_from_json
from sims.wan.dialler import find_dialler
from sims.wan.lane import Lane
from sims.wan.link import Pair, WanError, WanLink

HOST = "127.0.0.1"
LISTEN_PORTS = range(10_000, 20_000)
"""Ports for the peers' daemons: below those that Linux gives to outgoing connections (from 32768),
one of which could otherwise take a port between its choice here and the daemon's bind."""
SEGMENT_BYTES = 1448
HEADERS_BYTES = 52
"""Bytes that IPv4 and TCP with time stamps add to each segment."""
CHUNK_S = 0.002
"""Seconds of line time that one stream may take before the next one gets its turn."""
CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 4 * SEGMENT_BYTES, 256 * 1024
UNDER_WAY_BYTES_MAX = 16 << 20
"""Bytes under way of one stream on a link without a rate. With a rate, the rate and the delay bound
them."""
REPEAT_MIN_S = 0.2
"""TCP's shortest retransmission time-out in Linux, in seconds."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Way:
    """One link, shared by all connections that use it."""

    def __init__(self, link: WanLink, source: random.Random) -> None:
        self.lane = Lane(link, source)
        self._up = asyncio.Event()
        self.change(link)

    @property
    def link(self) -> WanLink:
        return self.lane.link

    def change(self, link: WanLink) -> None:
        self.lane.change(link, time.monotonic())
        (self._up.set if link.up else self._up.clear)()

    async def wait_up(self) -> None:
        await self._up.wait()


class ProxyFlow:
    """One direction of one connection."""

    def __init__(self, way: Way, back: Way, source: Streams, target: Streams) -> None:
        self._way = way
        self._back = back
        self._reader = source[0]
        self._writer = target[1]
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Relay until the sender has ended and all data has arrived. Raises OSError if an end
        breaks."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_some())
            group.create_task(self._deliver())

    async def _read_some(self) -> None:
        """Read as much as the line has room for."""
        lane = self._way.lane
        data = b"-"
        while data:
            await self._wait_room()
            data = await self._reader.read(chunk_bytes(lane.link))
            await self._way.wait_up()
            now = time.monotonic()
            packets = max(-(-len(data) // SEGMENT_BYTES), 1)
            arrival, lost = lane.carry(now, len(data) + packets * HEADERS_BYTES, packets)
            pause_s = lost * self._repeat_s() if data else 0.0
            self._under_way.append((arrival + pause_s, data))
            self._bytes += len(data)
            self._changed.set()
            # A sender that waits for a retransmission sends nothing: the pause costs the line too.
            await asyncio.sleep(pause_s)

    async def _deliver(self) -> None:
        """Write data at its arrival time; the end of the stream is delayed too."""
        data = b"-"
        while data:
            while not self._under_way:
                self._changed.clear()
                await self._changed.wait()
            arrival, data = self._under_way.popleft()
            await sleep_until(arrival)
            await self._way.wait_up()  # TCP repeats it once the link is back.
            if data:
                self._writer.write(data)
                await self._writer.drain()
                self._bytes -= len(data)
                self._changed.set()
        with contextlib.suppress(OSError):  # The other end has closed already.
            self._writer.write_eof()

    async def _wait_room(self) -> None:
        while True:
            now = time.monotonic()
            room_at = self._way.lane.room_at(now)
            if self._bytes > self._bytes_max():
                self._changed.clear()
                await self._changed.wait()
            elif room_at > now:
                await sleep_until(room_at)
            else:
                return

    def _bytes_max(self) -> int:
        link = self._way.link
        if link.rate_bps is None:
            return UNDER_WAY_BYTES_MAX
        held_s = link.delay_s + link.jitter_s + link.queue_s + CHUNK_S
        return max(int(link.rate_bps / 8 * held_s), 2 * CHUNK_BYTES_MAX)

    def _repeat_s(self) -> float:
        """A retransmission time-out, as TCP would have computed it."""
        one, other = self._way.link, self._back.link
        round_trip_s = one.delay_s + other.delay_s
        return max(REPEAT_MIN_S, round_trip_s + 4 * (one.jitter_s + other.jitter_s))


class Proxy:
    """The links, and the ports at which each peer reaches the others."""

    def __init__(self, links: Mapping[Pair, WanLink], *, peers: int, seed: int, token: str) -> None:
        self._peers = peers
        self._token = token
        self._ways = {
            pair: Way(link, random.Random(f"{seed} {pair}"))  # noqa: S311
            for pair, link in links.items()
        }
        self._listen = free_ports(peers)
        self._servers: list[asyncio.Server] = []

    async def open(self) -> dict[str, Any]:
        """Listen; returns the addresses of all peers."""
        dialled: list[list[Any]] = []
        for pair in self._ways:
            port = await self._serve(self._accept_from(pair))
            dialled.append([*pair, f"{HOST}:{port}"])
        shared = [await self._serve(self._accept_for(peer)) for peer in range(self._peers)]
        return {
            "listen": [f"{HOST}:{port}" for port in self._listen],
            "advertise": [f"{HOST}:{port}" for port in shared],
            "dialled": dialled,
        }

    def close(self) -> None:
        """Accept no more connections."""
        for server in self._servers:
            server.close()

    def handle(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a request of the owner; returns the answer."""
        for pair, link in links_from_json(request.get("links", ())).items():
            self._ways[pair].change(link)
        if "counters" not in request:
            return {}
        rows = [[*pair, asdict(way.lane.read_counters())] for pair, way in self._ways.items()]
        return {"counters": rows, "cpu_s": time.process_time(), "late_max_s": 0.0}

    async def _serve(self, accept: Callable[..., Awaitable[None]]) -> int:
        server = await asyncio.start_server(accept, HOST, 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def _accept_from(self, pair: Pair) -> Callable[..., Awaitable[None]]:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._relay(pair, (reader, writer))

        return accept

    def _accept_for(self, target: int) -> Callable[..., Awaitable[None]]:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = find_dialler(writer.get_extra_info("peername")[1], self._token)
            if peer is None or (peer, target) not in self._ways:
                # A connection from outside the network has no link: use any.
                peer = 0 if target else 1
            await self._relay((peer, target), (reader, writer))

        return accept

    async def _relay(self, pair: Pair, dialler: Streams) -> None:
        """Relay one connection until both directions have ended or one end breaks."""
        there, back = self._ways[pair], self._ways[pair[1], pair[0]]
        writers = [dialler[1]]
        try:
            await there.wait_up()
            await asyncio.sleep(there.link.delay_s)
            target = await asyncio.open_connection(HOST, self._listen[pair[1]])
            writers.append(target[1])
            for writer in writers:
                writer.get_extra_info("socket").setsockopt(
                    socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
                )
            await back.wait_up()
            # The dialler's connect took no time: delay its first byte instead.
            await asyncio.sleep(back.link.delay_s)
            async with asyncio.TaskGroup() as group:
                group.create_task(ProxyFlow(there, back, dialler, target).run())
                group.create_task(ProxyFlow(back, there, target, dialler).run())
        except* OSError:
            pass  # One end is broken, so both are: TCP would have aborted too.
        except* asyncio.CancelledError:
            pass  # The network ends. asyncio would report the cancelled task of each connection.
        finally:
            for writer in writers:
                _abort(writer)


def _abort(writer: asyncio.StreamWriter) -> None:
    """Close the socket; unwritten data makes it an abort."""
    if writer.transport.get_write_buffer_size():
        writer.transport.abort()
    writer.close()


async def sleep_until(when: float) -> None:
    await asyncio.sleep(max(when - time.monotonic(), 0.0))


def chunk_bytes(link: WanLink) -> int:
    if link.rate_bps is None:
        return CHUNK_BYTES_MAX
    return min(max(int(link.rate_bps / 8 * CHUNK_S), CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)


def free_ports(count: int) -> list[int]:
    """Ports of loopback on which no process listens, all different. Raises WanError."""
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        for port in secrets.SystemRandom().sample(LISTEN_PORTS, len(LISTEN_PORTS)):
            if len(ports) == count:
                return ports
            try:
                held.enter_context(socket.create_server((HOST, port)))
            except OSError:
                continue  # Another process listens there.
            ports.append(port)
    raise WanError(f"no {count} free ports from {LISTEN_PORTS[0]} to {LISTEN_PORTS[-1]}")


async def serve(owner: Owner) -> None:
    """Open the ports, report their addresses, and relay until the owner ends."""
    config = owner.first()
    links = links_from_json(config["links"])
    proxy = Proxy(links, peers=config["peers"], seed=config["seed"], token=config["token"])
    owner.answer(await proxy.open())
    owner.socket.setblocking(False)
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    # Not `sock_recv` with a time-out: cancelled in the moment in which data is there, it would lose
    # a request, and the owner would wait for the answer in vain.
    loop.add_reader(owner.socket, readable.set)
    try:
        while owner.lives:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(OWNER_LOOK_S):
                    await readable.wait()
            readable.clear()
            requests = owner.receive()
            if requests is None:
                return
            for request in requests:
                owner.answer(proxy.handle(request))
            owner.socket.setblocking(False)
    finally:
        loop.remove_reader(owner.socket)
        proxy.close()


def main(argv: Sequence[str]) -> None:
    """Run the relay as described above. When the owner ends, open connections are cut."""
    asyncio.run(serve(Owner.from_arguments(argv)))


if __name__ == "__main__":
    main(sys.argv[1:])
