"""The middle of an emulated wide-area network: reads packets of all peers, and delivers them later.

A process of its own (`python -m sims.wan.router`, started by control.Helper): it makes and holds
one namespace with a TUN device for each peer, which vanish with it. Must NOT decide when a packet
arrives, or whether: lane.py does.
"""

import heapq
import os
import random
import select
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sims.wan.control import OWNER_LOOK_S, Owner, links_from_json, refusing
from sims.wan.lane import Lane
from sims.wan.link import Pair, WanLink
from sims.wan.namespaces import (
    ADDRESS,
    LOOPBACK_ADDRESS,
    elsewhere,
    new_namespace,
    new_tun,
    no_timer_slack,
    require_root,
)
from sims.wan.packets import PACKET_BYTES_MAX, destination, keep, shape

BATCH_PACKETS = 32
"""Packets read from one peer before the next peer's turn, and before due packets are delivered."""

Waiting = tuple[float, int, Lane, int, bytes, int]
"""(arrival time, number, link, device of the receiver, packet, packets in it)."""


class Router:
    """Devices, links, and packets under way."""

    def __init__(self, tuns: Sequence[int], links: Mapping[Pair, WanLink], seed: int) -> None:
        self._peers = {tun: peer for peer, tun in enumerate(tuns)}
        self._tuns = list(tuns)
        self._lanes = {
            pair: Lane(link, random.Random(f"{seed} {pair}"))  # noqa: S311
            for pair, link in links.items()
        }
        self._waiting: list[Waiting] = []
        self._number = 0
        self._late_max_s = 0.0

    def run(self, owner: Owner) -> None:
        """Route until the owner ends."""
        control = owner.socket.fileno()
        owner.socket.setblocking(False)
        look_at = time.monotonic() + OWNER_LOOK_S
        watched = [*self._tuns, control]
        while True:
            now = time.monotonic()
            if now >= look_at:
                if not owner.lives:
                    return
                look_at = now + OWNER_LOOK_S
            due = self._waiting[0][0] if self._waiting else look_at
            # Not epoll, with its time-outs of whole milliseconds.
            ready, _, _ = select.select(watched, (), (), max(min(due, look_at) - now, 0.0))
            for device in ready:
                if device != control:
                    self._read(device)
                    continue
                requests = owner.receive()
                if requests is None:
                    return
                for request in requests:
                    owner.answer(self.handle(request))
                owner.socket.setblocking(False)
            self._deliver()

    def handle(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a request of the owner; returns the answer."""
        now = time.monotonic()
        for pair, link in links_from_json(request.get("links", ())).items():
            self._lanes[pair].change(link, now)
        if "counters" not in request:
            return {}
        rows = [[*pair, asdict(lane.read_counters())] for pair, lane in self._lanes.items()]
        late_max_s, self._late_max_s = self._late_max_s, 0.0
        return {"counters": rows, "cpu_s": time.process_time(), "late_max_s": late_max_s}

    def _read(self, device: int) -> None:
        source, lanes, tuns = self._peers[device], self._lanes, self._tuns
        for _ in range(BATCH_PACKETS):
            try:
                packet = os.read(device, PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            target = destination(packet) - 1
            lane = lanes.get((source, target))
            if lane is None:
                continue  # No peer has the address: IPv6, broadcast, ...
            of = shape(packet)
            arrival, runs = lane.offer(time.monotonic(), of.wire_bytes, of.packets)
            for piece, (first, end) in zip(keep(packet, of, runs), runs, strict=True):
                self._number += 1
                waiting = (arrival, self._number, lane, tuns[target], piece, end - first)
                heapq.heappush(self._waiting, waiting)

    def _deliver(self) -> None:
        waiting = self._waiting
        now = time.monotonic()
        if waiting and waiting[0][0] <= now:
            self._late_max_s = max(self._late_max_s, now - waiting[0][0])
        while waiting and waiting[0][0] <= now:
            _, _, lane, device, packet, packets = heapq.heappop(waiting)
            if not lane.link.up:
                lane.cut(packets)
                continue
            try:
                os.write(device, packet)
            except OSError:
                lane.counters.lost += packets  # The kernel has no memory for it, or refuses it.


def main(argv: Sequence[str]) -> None:
    """Make the namespaces, report their paths, and route."""
    owner = Owner.from_arguments(argv)
    config = owner.first()
    namespaces: list[int] = []
    tuns: list[int] = []
    address = LOOPBACK_ADDRESS if config["loopback_addresses"] else ADDRESS
    hosts = [address.format(peer + 1) for peer in range(config["peers"])]
    with refusing(owner):
        require_root()
        with elsewhere():
            for host in hosts:
                namespaces.append(new_namespace())
                tuns.append(new_tun(host))
    no_timer_slack()
    router = Router(tuns, links_from_json(config["links"]), config["seed"])
    paths = [f"/proc/{os.getpid()}/fd/{namespace}" for namespace in namespaces]
    owner.answer({"namespaces": paths, "hosts": hosts})
    router.run(owner)


if __name__ == "__main__":
    main(sys.argv[1:])
