"""What a daemon tells of its connections, without a daemon."""

from pathlib import Path

from lowcomm.daemon.event_writer import (
    TRAFFIC_IDLE_S,
    TRAFFIC_INTERVAL_S,
    TrafficInterval,
    tell_entry,
    tell_traffic,
)
from lowcomm.reports.event_log import EventLog
from lowcomm.reports.events import Commit, Dropped, Event, Traffic
from lowcomm.reports.timeline import read_timeline
from peers.metrics.counters import Counters
from protocols.interface.commands import Applied
from protocols.links.handshake import Identity
from protocols.messages import log_entries as e
from protocols.messages.peer import StateChunk
from protocols.peer.core import PeerCore
from protocols.state import transitions
from protocols.types.ids import PeerId, PeerInfo

ALPHA, BETA = PeerId("alpha.1"), PeerId("beta.2")


class Wire:
    sent_bytes, received_bytes = 100, 200
    congested = True
    round_trip_s = 0.1234567891


def test_traffic_is_read_back_as_it_was_counted(tmp_path: Path) -> None:
    event_log, counters = EventLog(tmp_path, peer=ALPHA, name="alpha"), Counters()
    counters.follow(BETA, Wire(), Wire())
    counters.count_sent(BETA, StateChunk(1, 2, 3, 0, 4, 0, 4), 16)
    counters.count_received(PeerId("gamma.3"), StateChunk(1, 2, 3, 0, 4, 0, 4), 32, kept=False)
    for now in (0.0, 0.5):
        counters.sample(now, late_s=0.002)
    tell_traffic(event_log, counters, method="diloco")
    event_log.close()
    (event,) = read_timeline(tmp_path).events
    assert isinstance(event, Traffic)
    assert event.method == "diloco"
    assert event.peers == (BETA, "gamma.3")
    assert event.payload_sent_bytes == event.payload_received_bytes == (0, 0)
    assert (event.transfer_sent_bytes, event.transfer_received_bytes) == ((16, 0), (0, 32))
    assert (event.control_sent_bytes, event.control_received_bytes) == ((100, 0), (200, 0))
    assert event.refused_bytes == (0, 32)
    assert (event.stalls, event.stalled_s) == ((1, 0), (0.5, 0.0))
    assert event.round_trip_s == (0.123457, 0.0)
    assert (event.lag_p50_s, event.lag_p99_s, event.lag_max_s) == (0.002, 0.002, 0.002)


def test_traffic_is_told_while_something_moves_and_rarely_else() -> None:
    pace, moved, told = TrafficInterval(), 0, list[float]()
    for number in range(100):
        now = 1000.0 + number * TRAFFIC_INTERVAL_S
        moved += 1 if number in (2, 3) else 0
        if pace.is_due(moved, now, peers=3):
            told.append((now - 1000.0) / TRAFFIC_INTERVAL_S)
    idle = TRAFFIC_IDLE_S / TRAFFIC_INTERVAL_S
    assert told[:4] == [2, 3, 3 + idle, 3 + 2 * idle]


def test_of_many_peers_traffic_is_told_less_often() -> None:
    for peers, steps in ((10, 1), (60, 3), (400, 6)):
        pace = TrafficInterval()
        told = [
            number
            for number in range(100)
            if pace.is_due(number + 1, number * TRAFFIC_INTERVAL_S, peers=peers)
        ]
        assert told[1] - told[0] == steps


STEPS = e.Run(1, "{}", "", 1, 9, 1, b"", (8,), ALPHA, commit_every_steps=4, snapshot_every_steps=8)
MADE = (STEPS, e.Member(PeerInfo(ALPHA, "alpha", 1, "", 0)), e.View(1, (ALPHA,), (), (1,)))


def told(directory: Path, entry: e.Entry, *, witness: bool = False) -> list[Event]:
    """What a peer of a stepwise run writes down of an entry."""
    me = Identity(peer=BETA, name="beta", incarnation=1, address="", witness=witness)
    core = PeerCore(me, join=True)
    for index, body in enumerate((*MADE, entry), start=1):
        transitions.apply(core.run_state, e.LogEntry(index, 1, body))
    event_log = EventLog(directory, peer=BETA, name="beta")
    tell_entry(event_log, Applied(4, entry, core.run_state.lineage, False), core, step_tokens=100)
    event_log.close()
    return list(read_timeline(directory).events)


def test_tokens_of_a_branch_are_tokens_though_a_stepwise_log_counts_batches(
    tmp_path: Path,
) -> None:
    (event,) = told(tmp_path, e.BranchDropped(ALPHA, (7,), 30))
    assert isinstance(event, Dropped)
    assert event.tokens == 3000


def test_a_witness_does_not_say_that_it_made_steps(tmp_path: Path) -> None:
    commit = e.StepCommit(1, 4, "0f" * 16)
    assert told(tmp_path, commit, witness=True) == []
    (event,) = told(tmp_path, commit)
    assert isinstance(event, Commit)
    assert event.tokens == 400
