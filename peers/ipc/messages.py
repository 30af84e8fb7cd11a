"""Messages between a daemon and its ranks over their socket; orders are in `step_orders.py`.

The connection tells which rank of which attempt sends, so only the first message names it. Must NOT
contain behaviour: `daemon_socket.py` and `rank_socket.py` carry these, `ranks/attempt.py` knows
their legal order.
"""

import struct
from dataclasses import dataclass
from typing import Literal

from peers.ipc.shared_memory import SlotsShape
from peers.ipc.step_orders import Obeyed, Order
from protocols.types import Samples, TensorSpec

NONE = (1 << 32) - 1
"""No fragment, in an Answer."""
EXIT_REFUSED = 3
EXIT_DAEMON_GONE = 4
TensorPlace = TensorSpec
"""Where one parameter lies in its fragment: the same for ranks as in the log."""
FD = struct.Struct("i")
"""The form in which the kernel takes the descriptor of an `Attached`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHello:
    """rank -> daemon, first. `pid` is for logs; the daemon believes SO_PEERCRED only."""

    rank: int
    world_size: int
    attempt: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """daemon -> rank: `run` and `node` are JSON, `corpus` a path."""

    run: str
    node: str
    corpus: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayout:
    """rank -> daemon: all parameters that nodes exchange, packed (protocols/wire/layout.py), and
    how many elements this rank writes."""

    packed: bytes
    elements: int
    frozen: bytes = b""
    """All other tensors of the model, packed (protocols/wire/frozen_layout.py), with the summands
    of their digests that this rank's parts give."""
    parts: bytes = b""
    """The parts of all parameters that this rank reads or writes, packed (parts.py); empty if all
    ranks of the node are on one host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """daemon -> rank, with the memfd of this shape. `contribution_generations` and
    `contribution_places` are of each fragment's next contribution; `slot` picks the data split;
    `rank_state` is a directory or ""."""

    shape: SlotsShape
    initial: bool
    slot: int
    rank_state: str
    frozen: str = ""
    """Path of the file to which the ranks write the frozen tensors before they are ready; "": none
    is needed."""
    contribution_generations: tuple[int, ...] = ()
    contribution_places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReady:
    """rank -> daemon: the shared memory is mapped, results and orders may come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """rank -> daemon: this node's configuration cannot work in any attempt, because of `why`. The
    answer is RankRefused."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """rank -> daemon, after inner step `steps`: which of these fragments to contribute now? `due`:
    it is time to; else only if other peers wait."""

    steps: int
    due: bool
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """daemon -> rank: the same for every rank that asks the same. `fragment`: the one to contribute
    now, or NONE."""

    fragment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDemand:
    """rank -> daemon, the same from every rank: an inner step of the node uses `step_samples`
    samples, and its loader draws up to `ahead` more before their steps. The answer is
    GrantedLease."""

    step_samples: int
    ahead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedLease:
    """daemon -> rank: the node may draw these samples until its next result of fragment 0; they
    suffice for its SampleDemand."""

    samples: Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributed:
    """rank -> daemon, after its done flag; `steps` and `tokens` are the whole node's since its last
    contribution, so all ranks say the same."""

    fragment: int
    generation: int
    steps: int
    tokens: int
    samples: Samples = ()
    """Samples of these steps, of those that the last result gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """rank -> daemon; dropped where there is no room for it."""

    step: int
    tokens: int
    loss: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEvaluated:
    """rank -> daemon, after a result that asked for it: mean loss over all `windows`."""

    loss: float
    windows: int
    sample: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshotted:
    """rank -> daemon: this rank's state is in `directory`, fsynced."""

    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainsNoMore:
    """rank -> daemon, last: this rank makes no further step, though the run may go on. Its process
    may have other work until its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """daemon -> rank: a result of `fragment` is published, in that place of the slots.

    `kind`: the place has the outer parameters ("full"), or what they moved by ("delta"), which is
    added to the ranks' own. `counted`: what the ranks contributed last is in them, as one of so
    many `contributors`. `finish`: it is the fragment's last one. `inner_step` counts the global
    committed inner steps. Ask for an early boundary from `boundary_steps` steps later on; never if
    that is a whole round. `snapshot` is a directory for the rank's state, or "".
    """

    fragment: int
    place: int
    kind: Literal["full", "delta"]
    version: int
    inner_step: int
    boundary_steps: int
    counted: bool = False
    contributors: int = 0
    finish: bool = False
    evaluate: bool = False
    snapshot: str = ""
    generation: int = 0
    """Which result of the fragment it is; the daemon's RankGroup says it."""
    samples: Samples = ()
    """Of fragment 0: what the node may draw until its next result, in this order; no others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRefused:
    """daemon -> rank: print `why` and exit with EXIT_REFUSED."""

    why: str


RankMessage = (
    RankHello
    | RankLayout
    | RankReady
    | Unfit
    | Boundary
    | SampleDemand
    | Contributed
    | StepMetrics
    | RankEvaluated
    | Snapshotted
    | TrainsNoMore
    | Obeyed
)
DaemonMessage = Configured | Attached | Answer | GrantedLease | Result | Order | RankRefused
