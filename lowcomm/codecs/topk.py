"""The 64 largest of each 4096 values, as 12-bit indices and bf16 values: 0.055 bytes a value.

Of equal magnitudes the first are sent; a NaN is larger than all numbers, so that receivers see it.
Indices ascend. Used with gather and error feedback: a value that is not sent becomes 0, and a value
that is sent is rounded (to nearest even; error at most 2**-8 of the value, or 2**-134). Must NOT
accept indices out of order, twice, or beyond the block.
"""

import numpy as np

from lowcomm.codecs.bits import bf16_of, from_bf16
from lowcomm.codecs.codec import Payload, WritablePayload, check_size
from lowcomm.codecs.places import (
    CHUNK,
    Places,
    chunks,
    index_bytes,
    largest_places,
    pack_places,
    unpack_places,
)
from lowcomm.numerics.operations import F32

_CHUNKS_AT_ONCE = 16


class TopK:
    """Implements `lowcomm.codecs.codec.Codec`."""

    name = "topk"
    grain = CHUNK
    reducible = False

    def __init__(self, keep: int = 64) -> None:
        assert 1 <= keep <= CHUNK
        self.keep = keep

    def encoded_bytes(self, elements: int) -> int:
        chunks, rest = divmod(elements, CHUNK)
        return chunks * _record_bytes(self.keep) + _record_bytes(min(self.keep, rest))

    def encode(self, values_P: F32, out: WritablePayload) -> None:
        assert len(out) == self.encoded_bytes(values_P.size), "out has another size"
        records, at = np.frombuffer(out, np.uint8), 0
        for values_RC in chunks(values_P, _CHUNKS_AT_ONCE):
            keep = min(self.keep, values_RC.shape[1])
            size = values_RC.shape[0] * _record_bytes(keep)
            records_RS = records[at : at + size].reshape(values_RC.shape[0], -1)
            places_RK = largest_places(values_RC, keep)
            kept_RK = np.take_along_axis(values_RC, places_RK, axis=1)
            split = index_bytes(keep)
            records_RS[:, :split] = pack_places(places_RK)
            wire = bf16_of(kept_RK.reshape(-1)).astype("<u2").view(np.uint8)
            records_RS[:, split:] = wire.reshape(values_RC.shape[0], -1)
            at += size

    def decode(self, payload: Payload, out_P: F32) -> None:
        check_size(self, payload, out_P.size)
        records, at = np.frombuffer(payload, np.uint8), 0
        found: list[tuple[F32, Places, F32]] = []
        for out_RC in chunks(out_P, _CHUNKS_AT_ONCE):
            keep = min(self.keep, out_RC.shape[1])
            size = out_RC.shape[0] * _record_bytes(keep)
            records_RS = records[at : at + size].reshape(out_RC.shape[0], -1)
            split = index_bytes(keep)
            places_RK = unpack_places(self.name, records_RS[:, :split], keep, out_RC.shape[1])
            halves_RK = np.ascontiguousarray(records_RS[:, split:]).view("<u2")
            values_RK = np.empty(halves_RK.shape, np.float32)
            from_bf16(halves_RK, values_RK)
            found.append((out_RC, places_RK, values_RK))
            at += size
        out_P[:] = 0  # Only now, when all records are known to be valid.
        for out_RC, places_RK, values_RK in found:
            np.put_along_axis(out_RC, places_RK, values_RK, axis=1)


def _record_bytes(keep: int) -> int:
    return index_bytes(keep) + 2 * keep
