"""The model of one link: arrival times and losses from line rate, queue, delay, jitter and loss.

The caller gives the time and the randomness. Must NOT read a clock, or hold packets.
"""

import math
import random
import sys

from sims.wan.link import LinkCounters, WanLink

BURST_S = 0.002
"""Seconds by which the line may be ahead of its rate after it stood idle. On a busy machine, the
process that serves the line is late by about that, and the line would lose the time."""
QUEUE_BYTES_MIN = 16 * 1500
"""Bytes of a few packets, for which a queue has room however slow its line is."""
JITTER_EVERY_S = 0.01
"""Least seconds between two changes of the delay; at least twice the jitter, so that earlier
packets are sure to be ahead. If the delay were drawn for each packet, with the order kept, all
packets would have the longest one."""

Runs = tuple[tuple[int, int], ...]
"""The packets of a burst that are not lost: (first, end) of each unbroken run."""


class Lane:
    """One link with its queue and its counters."""

    def __init__(self, link: WanLink, source: random.Random) -> None:
        self.link = link
        self.counters = LinkCounters()
        self._random = source
        self._waited_s = 0.0
        self._waits = 0
        self._clear_at = -math.inf
        """Time at which the line will have sent all that it has."""
        self._last_at = -math.inf
        """Arrival time of the last packet: no packet overtakes another."""
        self._jittered_at = -math.inf
        self._offset_s = 0.0
        self._until_loss = self._draw_loss()
        self._s_per_byte, self._queue_s = _line(link)

    def change(self, link: WanLink, now: float) -> None:
        """Change the link from now on. Packets that wait for the line go on at the new rate;
        packets that have left it do not change."""
        backlog_s = self.backlog_s(now)
        old_s_per_byte = self._s_per_byte
        self.link = link
        self._s_per_byte, self._queue_s = _line(link)
        if backlog_s:
            scale = self._s_per_byte / old_s_per_byte
            self._clear_at = now + backlog_s * scale
        self._jittered_at = -math.inf
        self._until_loss = self._draw_loss()

    def backlog_s(self, now: float) -> float:
        """Seconds that a packet offered now waits for the line."""
        return max(self._clear_at - now, 0.0)

    def room_at(self, now: float) -> float:
        """Time from which on the queue is not full."""
        return max(now, self._clear_at - self._queue_s)

    def offer(self, now: float, size_bytes: int, packets: int = 1) -> tuple[float, Runs]:
        """Take a burst of equal packets: returns its arrival time, and which packets arrive.

        The burst arrives as one, with its last bit; packets for which the queue has no room are at
        its end.
        """
        counters = self.counters
        counters.packets += packets
        counters.bytes += size_bytes
        if not self.link.up:
            counters.cut += packets
            return now, ()
        admitted = packets
        if self._s_per_byte:
            admitted = self._room(now, size_bytes / packets, packets)
            counters.overflowed += packets - admitted
            if not admitted:
                return now, ()
            size_bytes = size_bytes * admitted // packets
        return self._serve(now, size_bytes), self._survivors(admitted)

    def carry(self, now: float, size_bytes: int, packets: int) -> tuple[float, int]:
        """As `offer`, for a caller that asked `room_at` first and repeats lost packets. Returns
        (arrival time, number of lost packets)."""
        self.counters.packets += packets
        self.counters.bytes += size_bytes
        lost = self.counters.lost
        arrival = self._serve(now, size_bytes)
        self._survivors(packets)
        return arrival, self.counters.lost - lost

    def cut(self, packets: int) -> None:
        """Count packets that were under way when the link went down."""
        self.counters.cut += packets

    def read_counters(self) -> LinkCounters:
        self.counters.queue_mean_s = self._waited_s / max(self._waits, 1)
        return self.counters

    def _room(self, now: float, packet_bytes: float, packets: int) -> int:
        """Number of packets that begin to wait while the queue is not full."""
        left_s = self._queue_s - max(self._clear_at - now, 0.0)
        if left_s <= 0:
            return 0
        return min(packets, math.ceil(left_s / (packet_bytes * self._s_per_byte)))

    def _serve(self, now: float, size_bytes: int) -> float:
        leaves = now
        waits_s = 0.0
        if self._s_per_byte:
            waits_s = max(self._clear_at - now, 0.0)
            start = max(self._clear_at, now - BURST_S)
            self._clear_at = start + size_bytes * self._s_per_byte
            leaves = max(now, self._clear_at)
        self._waited_s += waits_s
        self._waits += 1
        self.counters.queue_max_s = max(self.counters.queue_max_s, waits_s)
        arrival = leaves + self.link.delay_s
        if self.link.jitter_s:
            arrival += self._jitter(now)
        self._last_at = max(self._last_at, arrival)
        return self._last_at

    def _jitter(self, now: float) -> float:
        if now - self._jittered_at >= max(JITTER_EVERY_S, 2 * self.link.jitter_s):
            self._jittered_at = now
            self._offset_s = self.link.jitter_s * self._random.uniform(-1.0, 1.0)
        return self._offset_s

    def _survivors(self, packets: int) -> Runs:
        if self._until_loss >= packets:  # Almost always.
            self._until_loss -= packets
            return ((0, packets),)
        runs: list[tuple[int, int]] = []
        first = 0
        while self._until_loss < packets - first:
            lost = first + self._until_loss
            if lost > first:
                runs.append((first, lost))
            first = lost + 1
            self.counters.lost += 1
            self._until_loss = self._draw_loss()
        self._until_loss -= packets - first
        if first < packets:
            runs.append((first, packets))
        return tuple(runs)

    def _draw_loss(self) -> int:
        """Number of packets that arrive before the next lost one: one draw for each loss."""
        if self.link.loss in (0, 1):
            return 0 if self.link.loss else sys.maxsize
        return int(math.log(1.0 - self._random.random()) / math.log1p(-self.link.loss))


def _line(link: WanLink) -> tuple[float, float]:
    """(seconds for a byte, 0 without a rate limit; seconds of data that the queue may hold)."""
    if link.rate_bps is None:
        return 0.0, math.inf
    s_per_byte = 8 / link.rate_bps
    return s_per_byte, max(link.queue_s, QUEUE_BYTES_MIN * s_per_byte)
