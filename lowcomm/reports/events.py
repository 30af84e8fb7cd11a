"""What a node writes down about itself, as typed records; `journal` writes, `timeline` reads.

Must NOT read or write anything.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Common to all. `t` is in unix seconds, `peer` an id, `name` what its node is called. Of other
    fields, what has a default may be missing in the file of an older lowcomm."""

    t: float
    peer: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(Event):
    """A daemon began; its process was started at `exec_t` (unix seconds). params 0: unknown."""

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
    """Prometheus finds /metrics at this address."""

    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Event):
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Event):
    """`member` was taken in, as this peer reads the log."""

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
    """`leader` leads from log entry `index` on."""

    leader: str
    leader_name: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(Event):
    """The run went back to the state after `round`, because nobody had a newer one."""

    round: int
    inner_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked(Event):
    """From `round` on, `voter` alone decides, in a branch of its own; `lonely`: nobody forced it,
    it did not reach the other of two voters."""

    round: int
    inner_step: int
    voter: str
    voter_name: str
    lonely: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(Event):
    """The branch that `member` led is given up: its `tokens` committed tokens had fewer."""

    member: str
    member_name: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveUp(Event):
    """This peer's branch is given up; its log and checkpoints lie in `kept`. It joins anew."""

    why: str
    contact: str
    kept: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness(Event):
    """`member` votes from now on if there is a place, and trains nothing."""

    member: str
    member_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Event):
    """`owners` of the roster sum parts: as many as there are parts, and nobody whose line is
    slow."""

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
    """Its own contribution is encoded: `steps` and `tokens` since its previous one."""

    fragment: int
    round: int
    steps: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Event):
    """Applied here. `tokens` of all counted peers, `counted` says whether this one is. The same
    rounds are committed anew in another `lineage`, after a Restore or a fork."""

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
    """A committed round's data path here: `seconds` from the contribution's first byte to the
    result's last one."""

    fragment: int
    round: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics(Event):
    """About each second. Counters rise from this daemon's start; `loss` may be NaN."""

    step: int
    tokens: int
    loss: float
    tokens_per_s: float
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic(Event):
    """What went over the connections, by peer and purpose: each ten seconds while payload or
    states move, rarely else, and at the end. Counters rise from this daemon's start; rates are of
    the last 10 s, lags (how much later than due its loop did something) of the last minute.

    Each tuple has one item for each of `peers`; "" there stands for all that are gone for long.
    """

    method: str = ""
    """What the run exchanges by; "" of a witness, and while the run is not known."""
    peers: tuple[str, ...]
    payload_sent_bytes: tuple[int, ...]
    """Contributions and results, without the heads of their chunks."""
    payload_received_bytes: tuple[int, ...]
    transfer_sent_bytes: tuple[int, ...]
    """States, for those who join."""
    transfer_received_bytes: tuple[int, ...]
    control_sent_bytes: tuple[int, ...]
    """All that goes over control connections."""
    control_received_bytes: tuple[int, ...]
    relay_sent_bytes: tuple[int, ...]
    """What went through this peer between two others that cannot reach each other."""
    relay_received_bytes: tuple[int, ...]
    refused_bytes: tuple[int, ...]
    """Received for nothing: stale, unwanted, or here already."""
    stalls: tuple[int, ...]
    """How often a connection wanted to send and the other side did not take it ..."""
    stalled_s: tuple[float, ...]
    """... and for how long together."""
    round_trip_s: tuple[float, ...]
    """0: not known."""
    sent_bytes_per_s: float
    received_bytes_per_s: float
    lag_p50_s: float
    lag_p99_s: float
    lag_max_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Event):
    """Injected on purpose; `what` in words."""

    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksReady(Event):
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksLost(Event):
    attempt: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotServed(Event):
    """So many bytes of its state were sent to a joiner; `to` is its peer id."""

    to: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReceived(Event):
    """The state came and is what the log says, `seconds` after a place in the run was granted and
    `connected_s` after the first connection; `donor_bytes`: what each of `donors` gave of it."""

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
    """The model's size is known: `params` parameters, of the whole node."""

    params: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Event):
    """Something worth saying that is no log entry."""

    topic: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples(Event):
    """How many samples are committed, as this peer knows, and how many of those that somebody
    held and lost were leased again. The first falls when the run goes back to a checkpoint."""

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
"""By the `kind` that stands in the file."""
