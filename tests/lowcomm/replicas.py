"""Replicas for tests, and slow references for what they do: one scalar operation at a time.

Must NOT hold tests.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from lowcomm.checkpoints.checkpoint import CheckpointCut, FragmentCut, PeerCut, write_checkpoint
from lowcomm.codecs.codec import Codec, CodecError, Payload, WritablePayload
from lowcomm.methods import DiLoCoMethod
from lowcomm.numerics.operations import F32
from lowcomm.outer_state.replica import Replica
from peers.ipc.shared_memory import Slots, SlotsShape
from protocols.types.ids import Contributor, PeerId, Stamp, TensorSpec

LAYOUT = (
    TensorSpec(0, "embed", (3, 4), 0),
    TensorSpec(1, "norm", (7,), 0),
    TensorSpec(0, "scale", (), 12),
    TensorSpec(0, "head", (2, 5), 13),
    TensorSpec(1, "bias", (1,), 7),
)
SIZES = (23, 8)
LR, BETA = 0.7, 0.5
LINEAGE = 2
"""Of all rounds here."""
SHARED: weakref.WeakKeyDictionary[Replica, Slots] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Small:
    """A codec of its own width: numbers of 2 or 8 bytes, so that mixing two up is seen."""

    wire: str
    name: str = "small"
    grain: int = 1
    reducible: bool = True

    def encoded_bytes(self, elements: int) -> int:
        return elements * np.dtype(self.wire).itemsize

    def encode(self, values_P: F32, out: WritablePayload) -> None:
        np.copyto(np.frombuffer(out, self.wire), values_P, casting="unsafe")

    def decode(self, payload: Payload, out_P: F32) -> None:
        if len(payload) != self.encoded_bytes(out_P.size):
            raise CodecError("another size")
        np.copyto(out_P, np.frombuffer(payload, self.wire), casting="unsafe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded(DiLoCoMethod):
    """DiLoCo with any codecs, those too that no configuration names."""

    codec: Codec  # type: ignore[assignment]
    mean_codec: Codec | None = None  # type: ignore[assignment]


def two_codecs() -> Coded:
    """Two that differ."""
    return Coded(codec=Small("<f2"), mean_codec=Small("<f8"), outer_lr=LR, outer_momentum=BETA)


def stamp(fragment: int, round_: int, attempt: int = 0) -> Stamp:
    return Stamp(run=1, lineage=LINEAGE, view=3, fragment=fragment, round=round_, attempt=attempt)


def plain() -> Replica:
    return Replica(DiLoCoMethod(outer_lr=LR, outer_momentum=BETA), LAYOUT)


def gaussian(seed: int, size: int) -> F32:
    return np.random.default_rng(seed).standard_normal(size, np.float32)


def view(array: npt.NDArray[Any]) -> memoryview:
    """As the shared memory gives it out."""
    return array.data.cast("B")


def state_digest(outer: F32, momentum: F32) -> str:
    """Of a fragment that is one cell."""
    cell = xxhash.xxh3_128_digest(outer.tobytes() + momentum.tobytes())
    return xxhash.xxh3_128_hexdigest(cell)


def contributors(*tokens: int) -> list[Contributor]:
    return [Contributor(PeerId(f"p{i}.0"), count, 1, "") for i, count in enumerate(tokens)]


def slow_mean(slices: Sequence[F32], tokens: Sequence[int]) -> F32:
    """One rounding an operation, in the order given."""
    weights = [np.float32(count / max(tokens)) for count in tokens]
    inverse = np.float32(1.0 / float(np.cumsum(np.array(weights, np.float64))[-1]))
    out = np.empty_like(slices[0])
    for place in range(out.size):
        total = slices[0][place] * weights[0]
        for values, weight in zip(slices[1:], weights[1:], strict=True):
            total = total + values[place] * weight
        out[place] = total * inverse
    return out


def slow_step(outer: F32, momentum: F32, mean: F32) -> tuple[F32, F32]:
    lr, beta = np.float32(LR), np.float32(BETA)
    outer, momentum = outer.copy(), momentum.copy()
    for place in range(outer.size):
        momentum[place] = momentum[place] * beta + mean[place]
        outer[place] = outer[place] - (momentum[place] * beta + mean[place]) * lr
    return outer, momentum


def started(replica: Replica) -> Replica:
    """Both fragments hold their first parameters, and the ranks train on them."""
    share(replica)
    for fragment, size in enumerate(SIZES):
        replica.initialise(fragment, view(gaussian(fragment, size)))
        replica.place_result(fragment, full=True)
    return replica


def share(replica: Replica) -> Slots:
    """With ranks, which are not there, for as long as the replica is."""
    slots = Slots.create(SlotsShape(1, tuple(4 * size for size in replica.sizes)))
    weakref.finalize(replica, slots.close)
    SHARED[replica] = slots
    replica.share(slots)
    return slots


def arrays(replica: Replica, fragment: int) -> tuple[F32, F32]:
    """Copies of (outer, momentum)."""
    outer_P, momentum_P = replica.lend(fragment)
    return outer_P.copy(), momentum_P.copy()


def placed(replica: Replica, fragment: int, *, full: bool) -> F32:
    """What the ranks see."""
    return shown(replica, fragment, replica.place_result(fragment, full=full).place)


def shown(replica: Replica, fragment: int, place: int) -> F32:
    """What ranks that were told of this place see."""
    return np.frombuffer(SHARED[replica].result(fragment, place), np.float32)


def encoded(replica: Replica, fragment: int, manifest: str = "") -> bytes:
    """The ranks' last contribution, in one piece."""
    size = replica.sizes[fragment]
    out = bytearray(replica.contribution_bytes(fragment, size))
    replica.begin_contribution(fragment, manifest)
    replica.encode(fragment, 0, size, memoryview(out))
    return bytes(out)


def reduced(
    replica: Replica, elements: int, slices: Sequence[Payload], terms: Sequence[Contributor]
) -> bytes:
    """Their encoded mean, in one piece."""
    out = bytearray(b"\xff" * replica.result_bytes(0, elements))
    replica.reduce(0, elements, [memoryview(each) for each in slices], terms, memoryview(out))
    return bytes(out)


def cut(replica: Replica, whole: bytes, start: int, stop: int) -> bytes:
    """A part's slice of an encoded contribution."""
    size_of = replica.method.codec.encoded_bytes
    return whole[size_of(start) : size_of(stop)]


def kept(directory: Path, round_: int) -> tuple[list[F32], list[F32]]:
    """A checkpoint of both fragments after this round: (outer, momentum)."""
    outer = [gaussian(round_ + i, size) for i, size in enumerate(SIZES)]
    momentum = [gaussian(round_ + 10 + i, size) for i, size in enumerate(SIZES)]
    keep(directory, round_, outer, momentum)
    return outer, momentum


def keep(directory: Path, round_: int, outer: list[F32], momentum: list[F32]) -> Path:
    """As a checkpoint after this round."""
    cut = CheckpointCut(
        log_index=9,
        lineage="0" * 16,
        run_digest="0" * 16,
        fragments=tuple(
            FragmentCut(
                version=round_,
                inner_step=round_,
                tokens=round_,
                state_digest=state_digest(outer[i], momentum[i]),
            )
            for i in range(len(SIZES))
        ),
        own=PeerCut(peer="p0.0", incarnation=1, data_slot=0, rank_state=""),
    )
    layout = [[(t.name, t.shape, t.offset) for t in LAYOUT if t.fragment == f] for f in (0, 1)]
    return write_checkpoint(directory, cut, layout, outer, momentum)
