"""Events of a RankGroup for its owner. Must NOT contain behaviour."""

from dataclasses import dataclass

from peers.ipc.messages import TensorPlace
from protocols.types import FrozenTensor, LowcommError, Samples


class RanksFailed(LowcommError):  # noqa: N818
    """The ranks cannot be kept running, or were refused. The text says why."""


class ProgramFailed(RanksFailed):
    """The program that the ranks run is at fault."""


@dataclass(frozen=True, slots=True)
class RanksLayout:
    """All ranks of the attempt report this layout: call `provide`, or `refuse`."""

    attempt: int
    tensors: tuple[TensorPlace, ...]
    frozen: tuple[FrozenTensor, ...] = ()
    """All other tensors of the model, which no node trains."""


@dataclass(frozen=True, slots=True)
class GroupReady:
    """All ranks are attached: results posted from now on reach them."""

    attempt: int


@dataclass(frozen=True, slots=True)
class RankContribution:
    """All ranks have written their shards; `steps`, `tokens` and `samples` are those since the last
    contribution."""

    fragment: int
    generation: int
    steps: int
    tokens: int
    samples: Samples = ()


@dataclass(frozen=True, slots=True)
class RanksDemand:
    """All ranks wait for a lease of so many samples for each inner step, and `ahead` more: call
    `grant`."""

    step_samples: int
    ahead: int


@dataclass(frozen=True, slots=True)
class RanksObeyed:
    """All ranks have done their part of this order."""

    number: int


@dataclass(frozen=True, slots=True)
class RankMetrics:
    """Figures of the rank that reports."""

    rank: int
    step: int
    tokens: int
    loss: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class RanksEvaluated:
    """The mean loss over the whole set, and a text that the model has written, as one rank says."""

    loss: float
    windows: int
    sample: str


@dataclass(frozen=True, slots=True)
class RanksSnapshotted:
    """All ranks have written their state into the directory."""

    directory: str


@dataclass(frozen=True, slots=True)
class GroupLost:
    """The attempt is being killed; the next one starts by itself, if any restart is left."""

    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class GroupStalled:
    """A rank makes no step, though it has to; the attempt goes on. GroupMoving or GroupLost
    follows."""

    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class GroupMoving:
    """All ranks that had stalled make steps again, or wait for the daemon."""

    attempt: int


@dataclass(frozen=True, slots=True)
class RanksFinished:
    """All ranks ended with 0 after a result with `finish`."""

    attempt: int


@dataclass(frozen=True, slots=True)
class ProgramEnded:
    """The program ended in order before the run did: the node has no ranks any more, and gets no
    new ones."""

    attempt: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A client on the bus asks the daemon to stop; it has been answered."""


RankEvent = (
    RanksLayout
    | GroupReady
    | RankContribution
    | RanksDemand
    | RanksObeyed
    | RankMetrics
    | RanksEvaluated
    | RanksSnapshotted
    | GroupLost
    | GroupStalled
    | GroupMoving
    | RanksFinished
    | ProgramEnded
    | StopAsked
)
