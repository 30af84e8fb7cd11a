"""The events of a node as typed records; event_log.py writes them and timeline.py reads them.

Must NOT read or write anything.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The fields that all events have: `t` in unix seconds, the writer's id `peer`, and its node's
    `name`. In a record below, a field with a default may be missing in the file of an older
    lowcomm."""

    t: float
    peer: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(Event):
    """A daemon has started; its process began at `exec_t` (unix seconds). `ranks` and `params` are
    numbers of the node's ranks and of model parameters; params 0: not known yet."""

    pid: int
    exec_t: float
    ranks: int
    params: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening(Event):
    address: str
    listen_cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsListening(Event):
    """The daemon serves /metrics for Prometheus at this HOST:PORT."""

    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Event):
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Event):
    """This peer has read in the log that `member` became a member."""

    member: str
    member_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(Event):
    member: str
    member_name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Left(Event):
    member: str
    member_name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Elected(Event):
    """`leader` was elected; its term begins with log entry `index`."""

    leader: str
    leader_name: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(Event):
    """The run was rolled back to the state after `round`: no live node held a newer one."""

    round: int
    inner_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked(Event):
    """From `round` on `voter` is the only voter, in a new branch of the run. `lonely`: it was one
    of two voters and did not reach the other one; otherwise a person forced the recovery."""

    round: int
    inner_step: int
    voter: str
    voter_name: str
    lonely: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(Event):
    """The branch that `member` led is given up, and another branch stays. `tokens`: those committed
    on it since the beginning of the run."""

    member: str
    member_name: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveUp(Event):
    """This peer's branch is given up, and the peer joins again at `contact` (HOST:PORT). Its old
    log and checkpoints are in the directory `kept`."""

    why: str
    contact: str
    kept: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness(Event):
    """`member` is a witness: it does not train, and votes if the run needs another voter."""

    member: str
    member_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Event):
    """A new view is in force. `owners`: the peers of the roster that sum parts; a peer with a slow
    line owns none."""

    view: int
    roster: tuple[str, ...]
    owners: tuple[str, ...]
    first_round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Event):
    fragment: int
    round: int
    attempt: int
    roster: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(Event):
    """This peer's contribution to the round is encoded. `steps` and `tokens`: the inner steps and
    tokens trained since its previous contribution."""

    fragment: int
    round: int
    steps: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Event):
    """A committed round was applied by this peer. `tokens`: those of all counted contributions.
    `counted`: this peer's contribution is one of them. After a Restore or a fork, rounds of the
    same numbers are committed again in another `lineage`."""

    fragment: int
    round: int
    attempt: int
    roster: tuple[str, ...]
    tokens: int
    counted: bool
    state_digest: str
    inner_step: int
    lineage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced(Event):
    """A round's data path is complete on this peer. `seconds`: the time from the contribution's
    first byte to the result's last one."""

    fragment: int
    round: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics(Event):
    """Progress, written about once a second. `step`, `tokens` and the bytes count from this
    daemon's start; `loss` may be NaN."""

    step: int
    tokens: int
    loss: float
    tokens_per_s: float
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic(Event):
    """Bytes on the connections, by peer and purpose. Written each 10 s while payloads or states are
    sent, rarely otherwise, and at the end. Counters count from this daemon's start. Rates are means
    of the last 10 s. Lags are of the last minute: the time by which the event loop ran a due timer
    too late.

    Each tuple has one item for each of `peers`; the id "" stands for all peers gone for long.
    """

    method: str = ""
    """Name of the run's method; "" for a witness, and while the run is not known."""
    peers: tuple[str, ...]
    payload_sent_bytes: tuple[int, ...]
    """Contributions and results, without the headers of their chunks."""
    payload_received_bytes: tuple[int, ...]
    transfer_sent_bytes: tuple[int, ...]
    """State for joiners."""
    transfer_received_bytes: tuple[int, ...]
    control_sent_bytes: tuple[int, ...]
    """All bytes of control connections."""
    control_received_bytes: tuple[int, ...]
    relay_sent_bytes: tuple[int, ...]
    """Bytes that this peer relayed between two peers that cannot reach each other."""
    relay_received_bytes: tuple[int, ...]
    refused_bytes: tuple[int, ...]
    """Received and thrown away: stale, unwanted, or already here."""
    stalls: tuple[int, ...]
    """Number of times that a connection had bytes to send and the other side took none."""
    stalled_s: tuple[float, ...]
    """Total duration of these stalls."""
    round_trip_s: tuple[float, ...]
    """Last measured round trip; 0: not known."""
    sent_bytes_per_s: float
    received_bytes_per_s: float
    lag_p50_s: float
    lag_p99_s: float
    lag_max_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Event):
    """A fault was injected on purpose; `what` describes it in words."""

    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksReady(Event):
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksLost(Event):
    attempt: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksStalled(Event):
    """The ranks make no step, so no peer waits for them; `why` names the rank."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksMoving(Event):
    """The ranks that had stalled make steps again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotServed(Event):
    """This peer has sent `size_bytes` of its state to the joiner with the id `to`."""

    to: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReceived(Event):
    """This peer has received the run's state, and its hashes are those in the log. `seconds`: time
    since the run admitted it; `connected_s`: time since its first connection; `donor_bytes`: bytes
    from each of `donors`."""

    donors: tuple[str, ...]
    donor_bytes: tuple[int, ...]
    seconds: float
    connected_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Event):
    path: str
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated(Event):
    loss: float
    windows: int
    sample: str
    round: int = 0
    """The round of fragment 0 after which it was; 0 in a stepwise run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Event):
    outer_steps: int
    bytes_sent: int
    bytes_received: int
    state_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Event):
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverged(Event):
    member: str
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(Event):
    """The model's size is known: `params` parameters, all ranks of the node together."""

    params: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Event):
    """A text for people, for which there is no other kind of event."""

    topic: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples(Event):
    """Progress in the data, as this peer reads the log. `committed`: number of committed samples;
    it falls when the run is rolled back. `again`: number of samples leased a second time, because
    the peer that held them was lost."""

    committed: int
    again: int


KINDS: Mapping[str, type[Event]] = {
    re.sub("(?<=[a-z])(?=[A-Z])", "_", record.__name__).lower(): record  # RanksLost: ranks_lost
    for record in (
        *(Start, Listening, Waiting, Member, Lost, Left, View, Attempt, Ready, Commit, Metrics),
        *(
            Fault,
            RanksReady,
            RanksLost,
            RanksStalled,
            RanksMoving,
            Reduced,
            SnapshotServed,
            SnapshotReceived,
            Checkpoint,
            Evaluated,
        ),
        *(Finished, Stopped, Diverged, Layout, Note, Elected, Restored, Forked, Dropped, GaveUp),
        *(Witness, Samples, Traffic, MetricsListening),
    )
}
"""The record class for each `kind` of the file."""
