"""How fast one bulk connection may send, where its congestion control sends more than arrives.

Short queues and late confirmations make bbr believe in more than a long line carries: it fills the
line's queue, then loses what has no room, and whoever waits for a piece with a gap in it waits for
another round trip. While packets queue, what arrives is what the line carries. Must NOT set
anything, nor look at a clock.
"""

from peers.sockets.tcp_info import LOST_MAX, NOTHING, RTT_MIN_S, Flow

SAMPLE_S = 0.25
"""Much shorter than what a queue takes to fill up; long enough for what arrives to be a mean."""
BUSY_MIN = 0.9
"""Of the time between two samples: else what arrived says nothing of the line."""
OVERRUN = 1.02
"""Times as much as arrives: whose queue grows by so much does it to itself. In a round trip there
is the queue of the way back, too."""
USED_MIN = 0.97
"""Of what it may send: with less it is not we who slow it down."""
FASTER, FASTER_YET, FASTER_MAX = 1.02, 0.01, 1.25
"""It tries to be faster by so much at first, by so much more each time that it goes well, and by so
much at most: half of a line that others have left is found within three seconds."""
SLOWER_MIN = 0.9
"""Without a loss it gives up no more than the rest at once."""


class Throttle:
    """Of one connection that goes by other signs than losses, or overruns its line all the same."""

    def __init__(self) -> None:
        self._before, self._at = NOTHING, 0.0
        """What became of it until then."""
        self._was_busy = False
        """What arrived since is of a time in which packets were under way all along."""
        self._carried = 0
        """Bytes a second that arrived when the line was full last; 0: it never was."""
        self._faster = FASTER
        self._tries = False
        """It was allowed more since it was slowed down last."""

    def sample(self, flow: Flow, now: float) -> int | None:
        """How many bytes a second it may send from now on; None: as before. `flow`: so far."""
        before, news, elapsed_s = self._before, flow.since(self._before), now - self._at
        was_busy, busy = self._was_busy, news.busy_s >= BUSY_MIN * elapsed_s
        self._before, self._at, self._was_busy = flow, now, busy
        if not (busy and was_busy) or flow.rtt_s < RTT_MIN_S:
            return None
        arrived = int(news.arrived_bytes / elapsed_s)
        full = flow.queued and before.queued
        if full and not news.again:  # What was missing comes at once.
            self._carried = arrived
        if flow.queued and news.lost > LOST_MAX:
            return self._slower(self._carried or arrived)
        if flow.pace is None:
            return None
        if full and self._tries and news.sent_bytes > OVERRUN * news.arrived_bytes:
            return self._slower(max(min(arrived, flow.pace), int(SLOWER_MIN * flow.pace)))
        # Where others fill the queue it keeps its share: nothing is given up without a loss.
        if flow.queued or news.again or arrived < USED_MIN * flow.pace:
            return None
        faster, self._faster = self._faster, min(self._faster + FASTER_YET, FASTER_MAX)
        self._tries = True
        return int(faster * flow.pace)

    def _slower(self, pace: int) -> int | None:
        self._faster, self._tries = FASTER, False
        return pace or None
