"""What is done about bulk connections while they are up: each LOOK_S, by what the kernel counted.

Whoever overruns a line is slowed down, and a new connection over a long line is tried out before
there is anything to send: bbr begins with ten packets a round trip and doubles that until the line
is full, for a second at 100 Mbit/s and 100 ms, and then keeps what it knows however long it is
idle. Must NOT dial, nor keep anything itself.
"""

from collections.abc import Callable, Iterable

from peers.session import Session
from peers.tuning import pace
from peers.widening import RTT_MIN_S, Flow, flow_of, line_of, new_pace, wants_more
from protocols.ids import PeerId

IDLE_S = 0.1
"""Of a second in which so little was sent that padding is in nobody's way."""
PADDING_BYTES_MIN, PADDING_BYTES_MAX = 64 << 10, 16 << 20
"""Less is over before it is worth it. The most is 1.3 s of 100 Mbit/s: bbr says after 4 MB or
more that it knows such a line."""


def look(sessions: Iterable[Session], padding_bytes: Callable[[PeerId], int]) -> list[Session]:
    """Returns the pairs for which another connection would carry more. `padding_bytes`: how much
    is worth sending to know what the line to a peer carries."""
    slow: list[Session] = []
    cold: list[Session] = []
    idle = True
    for session in sessions:
        try:
            flows = {bulk: flow_of(bulk.connection) for bulk in session.bulks}
        except OSError:
            continue  # One of them is over; or this kernel does not tell.
        news = [flow.since(session.bulks[bulk]) for bulk, flow in flows.items()]
        session.bulks.update(flows)
        session.line = line_of(news, session.line)
        for bulk, flow in zip(flows, news, strict=True):
            if (faster := new_pace(flow)) is not None:
                pace(bulk.connection, faster)
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
    """Nobody knows what its line carries, and its congestion control would remember it."""
    new = len(news) == 1 and not any(bulk.warmed for bulk in session.bulks)
    long = all(flow.rtt_s >= RTT_MIN_S and not flow.fears_loss for flow in news)
    # What goes through a relay is at somebody else's cost.
    return new and long and not session.control.through
