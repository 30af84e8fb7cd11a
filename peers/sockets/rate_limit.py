"""Limits the rate of a bulk connection with a congestion control that sends more than arrives.

With short queues and late acknowledgements bbr overestimates a long line: it fills the line's
queue, then loses packets, and each gap costs the receiver another round trip. While packets queue,
the arrival rate is the rate of the line. Must NOT set socket options, nor read a clock.
"""

from peers.sockets.tcp_info import LOST_MAX, NOTHING, RTT_MIN_S, Flow

SAMPLE_S = 0.25
"""Seconds between samples: much shorter than a queue takes to fill, long enough for a mean."""
BUSY_MIN = 0.9
"""A connection must be busy for this share of the time between samples to tell anything about the
line."""
OVERRUN = 1.02
"""If the send rate exceeds the arrival rate by this factor, the connection fills the queue itself.
(The round trip alone also contains the queue of the way back.)"""
USED_MIN = 0.97
"""If less than this share of the allowed rate is used, the limit is not what slows it down."""
FASTER, FASTER_YET, FASTER_MAX = 1.02, 0.01, 1.25
"""The rate is raised by the first factor, by so much more with each success, and at most by the
last one: half of a line that others have left is found within three seconds."""
SLOWER_MIN = 0.9
"""Without a loss the rate is lowered at most by this factor at once."""


class RateLimit:
    """The limit of one connection with a congestion control that does not react to losses, or
    overruns its line all the same."""

    def __init__(self) -> None:
        self._before, self._at = NOTHING, 0.0
        """The flow and the time of the last sample."""
        self._was_busy = False
        """Packets were under way during the whole last sample."""
        self._carried = 0
        """Bytes a second that arrived when the line was full last; 0 if it never was."""
        self._faster = FASTER
        self._tries = False
        """The rate was raised since it was lowered last."""

    def sample(self, flow: Flow, now: float) -> int | None:
        """The new limit in bytes a second; None for no change. `flow`: the totals so far."""
        before, news, elapsed_s = self._before, flow.since(self._before), now - self._at
        was_busy, busy = self._was_busy, news.busy_s >= BUSY_MIN * elapsed_s
        self._before, self._at, self._was_busy = flow, now, busy
        if not (busy and was_busy) or flow.rtt_s < RTT_MIN_S:
            return None
        arrived = int(news.arrived_bytes / elapsed_s)
        full = flow.queued and before.queued
        if full and not news.again:  # Missing packets arrive at once.
            self._carried = arrived
        if flow.queued and news.lost > LOST_MAX:
            return self._slower(self._carried or arrived)
        if flow.pace is None:
            return None
        if full and self._tries and news.sent_bytes > OVERRUN * news.arrived_bytes:
            return self._slower(max(min(arrived, flow.pace), int(SLOWER_MIN * flow.pace)))
        # If others fill the queue it keeps its share: the rate is not lowered without a loss.
        if flow.queued or news.again or arrived < USED_MIN * flow.pace:
            return None
        faster, self._faster = self._faster, min(self._faster + FASTER_YET, FASTER_MAX)
        self._tries = True
        return int(faster * flow.pace)

    def _slower(self, pace: int) -> int | None:
        self._faster, self._tries = FASTER, False
        return pace or None
