"""The shared part of top-k codecs: which values of a chunk are sent, and their places in 12 bits
each.

`lowcomm.flexdemo.torch_codecs` has the same in torch. Must NOT know how the values are encoded, nor
accept indices out of order, twice, or beyond the chunk.

Shapes: R chunks of C values, K of each sent; S bytes of K packed places.
"""

import numpy as np
import numpy.typing as npt

from lowcomm.codecs.bits import MAGNITUDE
from lowcomm.codecs.codec import CodecError
from lowcomm.numerics.operations import F32

U8 = npt.NDArray[np.uint8]
Places = npt.NDArray[np.intp]

CHUNK = 4096
"""Values in a chunk: as many as 12 bits can address."""


def index_bytes(keep: int) -> int:
    """Bytes of `keep` packed places."""
    return -(-3 * keep // 2)


def chunks(values_P: F32, at_once: int) -> list[F32]:
    """Views [R, C] of `values_P`: up to `at_once` whole chunks in each, then the rest as one
    shorter chunk."""
    assert values_P.flags.c_contiguous, "not contiguous"
    whole, step = values_P.size // CHUNK * CHUNK, at_once * CHUNK
    grids = [
        values_P[at : min(at + step, whole)].reshape(-1, CHUNK) for at in range(0, whole, step)
    ]
    if whole < values_P.size:
        grids.append(values_P[whole:].reshape(1, -1))
    return grids


def largest_places(values_RC: F32, keep: int) -> Places:
    """Places of the `keep` largest magnitudes of each row, ascending, [R, K]. Of equal magnitudes
    the first are taken; a NaN is larger than all numbers."""
    magnitude_RC = values_RC.view(np.uint32) & MAGNITUDE
    at = values_RC.shape[1] - keep
    border_R1 = np.partition(magnitude_RC, at, axis=1)[:, at : at + 1]
    chosen_RC = magnitude_RC >= border_R1
    for row in np.flatnonzero(np.count_nonzero(chosen_RC, axis=1) > keep):
        # More values have the border's magnitude than can be kept.
        equal = np.flatnonzero(magnitude_RC[row] == border_R1[row])
        surplus = np.count_nonzero(chosen_RC[row]) - keep
        chosen_RC[row, equal[equal.size - surplus :]] = False
    return np.nonzero(chosen_RC)[1].reshape(values_RC.shape[0], keep)


def pack_places(places_RK: Places) -> U8:
    """Pack each place into 12 bits, the first in the lowest bits, uint8 [R, S]. If K is odd, 4 zero
    bits follow the last place."""
    rows, keep = places_RK.shape
    pairs = np.zeros((rows, -(-keep // 2), 2), np.uint16)
    pairs.reshape(rows, -1)[:, :keep] = places_RK
    first, second = pairs[..., 0], pairs[..., 1]
    three = np.empty((*first.shape, 3), np.uint8)
    three[..., 0] = first & np.uint16(0xFF)
    three[..., 1] = (first >> np.uint16(8)) | ((second & np.uint16(0xF)) << np.uint16(4))
    three[..., 2] = second >> np.uint16(4)
    return three.reshape(rows, -1)[:, : index_bytes(keep)]


def unpack_places(codec: str, packed_RS: U8, keep: int, width: int) -> Places:
    """Unpack the places that `pack_places` packed, [R, K]. Raises CodecError, with the codec's
    name, for bytes that `pack_places` never makes."""
    rows, pairs = packed_RS.shape[0], -(-keep // 2)
    three = np.zeros((rows, 3 * pairs), np.int64)
    three[:, : packed_RS.shape[1]] = packed_RS
    three = three.reshape(rows, pairs, 3)
    places = np.empty((rows, pairs, 2), np.int64)
    places[..., 0] = three[..., 0] | (three[..., 1] & 0xF) << 8
    places[..., 1] = three[..., 1] >> 4 | three[..., 2] << 4
    places_R2 = places.reshape(rows, -1)
    if places_R2[:, keep:].any():
        raise CodecError(f"{codec}: bits after the last index")
    places_RK = places_R2[:, :keep]
    if (places_RK >= width).any() or (places_RK[:, 1:] <= places_RK[:, :-1]).any():
        raise CodecError(f"{codec}: indices beyond the block, or not in ascending order")
    return places_RK
