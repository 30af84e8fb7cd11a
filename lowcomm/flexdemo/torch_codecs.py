"""Codecs that ranks run on their own device (per-step methods): the bytes of lowcomm.codecs.

For fp32 tensors on the CPU the payload is the same, byte for byte; on other devices too where their
fp32 and fp64 follow IEEE and denormals are not flushed. Must NOT be imported by the daemon (torch),
or use an operation whose order of sums is the library's.

Shapes: R blocks, B values in each, K of them sent.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from lowcomm.codecs.base import CodecError
from lowcomm.codecs.places import CHUNK
from lowcomm.codecs.sign import Sign
from lowcomm.codecs.topk import TopK

_MAGNITUDE = 0x7FFFFFFF
_NAN_WORD = 0x7FC00000


class Twin:
    """One of `topk` and `sign`; `codec` is the numpy one."""

    def __init__(self, codec: TopK | Sign) -> None:
        self.codec = codec

    def encode(self, values_P: Tensor) -> Tensor:
        """The payload, uint8, on the device of the values."""
        assert values_P.dtype == torch.float32
        assert values_P.dim() == 1
        pieces = [self._encode(grid_RB).reshape(-1) for grid_RB in self._grids(values_P)]
        return torch.cat([values_P.new_empty(0, dtype=torch.uint8), *pieces])

    def decode(self, payload: Tensor, elements: int) -> Tensor:
        """The values, zero where nothing was sent. Raises CodecError as the numpy one does."""
        expected = self.codec.encoded_bytes(elements)
        if payload.numel() != expected:
            raise CodecError(
                f"{self.codec.name}: {payload.numel()} bytes for {elements} values, "
                f"expected {expected}"
            )
        out_P = torch.zeros(elements, dtype=torch.float32, device=payload.device)
        at = 0
        for out_RB in self._grids(out_P):
            size = out_RB.shape[0] * self.codec.encoded_bytes(out_RB.shape[1])
            records_RS = payload[at : at + size].reshape(out_RB.shape[0], -1)
            self._decode(records_RS, out_RB)
            at += size
        return out_P

    def _grids(self, values_P: Tensor) -> list[Tensor]:
        """Views of all whole blocks, then of the rest."""
        whole = values_P.numel() // self.codec.grain * self.codec.grain
        grids = [values_P[:whole].reshape(-1, self.codec.grain)] if whole else []
        return [*grids, values_P[whole:].reshape(1, -1)] if whole < values_P.numel() else grids

    def _encode(self, values_RB: Tensor) -> Tensor:
        if isinstance(self.codec, TopK):
            return _encode_topk(values_RB, min(self.codec.keep, values_RB.shape[1]))
        return _encode_sign(values_RB)

    def _decode(self, records_RS: Tensor, out_RB: Tensor) -> None:
        if isinstance(self.codec, TopK):
            _decode_topk(records_RS, min(self.codec.keep, out_RB.shape[1]), out_RB)
        else:
            _decode_sign(records_RS, out_RB)


_CODECS: Mapping[str, Callable[[], TopK | Sign]] = {"topk": TopK, "sign": Sign}


def twin(name: str) -> Twin:
    """As `lowcomm.codecs.codec`, for those that have a twin."""
    return Twin(_CODECS[name]())


def _encode_topk(values_RB: Tensor, keep: int) -> Tensor:
    places_RK = largest_places(values_RB, keep)
    kept_RK = values_RB.gather(1, places_RK)
    return torch.cat([pack_12(places_RK), bytes_of(bf16_bits(kept_RK), 2)], dim=1)


def largest_places(values_RB: Tensor, keep: int) -> Tensor:
    """Of each row, ascending, int64 [R, K]: as lowcomm.codecs.places has them."""
    magnitude_RB = values_RB.contiguous().view(torch.int32) & _MAGNITUDE
    border_R1 = torch.topk(magnitude_RB, keep, dim=1).values[:, -1:]
    above_RB, equal_RB = magnitude_RB > border_R1, magnitude_RB == border_R1
    room_R1 = keep - above_RB.sum(dim=1, keepdim=True)
    # torch.topk takes any of equal ones; we take the first.
    chosen_RB = above_RB | (equal_RB & (equal_RB.cumsum(dim=1) <= room_R1))
    return chosen_RB.nonzero()[:, 1].reshape(-1, keep)


def _decode_topk(records_RS: Tensor, keep: int, out_RB: Tensor) -> None:
    split = -(-3 * keep // 2)
    places_RK = unpack_12(records_RS[:, :split], keep)
    beyond = (places_RK >= min(CHUNK, out_RB.shape[1])).any()
    if beyond or (places_RK[:, 1:] <= places_RK[:, :-1]).any():
        raise CodecError("topk: indices beyond the block, or not in ascending order")
    pairs_RK2 = records_RS[:, split:].reshape(-1, keep, 2).to(torch.int32)
    words_RK = (pairs_RK2[..., 0] | pairs_RK2[..., 1] << 8) << 16
    out_RB.scatter_(1, places_RK, words_RK.view(torch.float32))


def _encode_sign(values_RB: Tensor) -> Tensor:
    rows, filled = values_RB.shape
    sums_RB = values_RB.new_zeros((rows, Sign.grain), dtype=torch.float64)
    sums_RB[:, :filled] = values_RB.abs()
    width = Sign.grain
    while width > 1:  # In the order of `ordered_sum`.
        width //= 2
        sums_RB = sums_RB[:, :width] + sums_RB[:, width : 2 * width]
    scale_R1 = (sums_RB / filled).to(torch.float32)
    void_R1 = ~torch.isfinite(scale_R1)
    words_R1 = torch.where(void_R1, _NAN_WORD, scale_R1.view(torch.int32))
    padded_RB = values_RB.new_zeros((rows, -(-filled // 8) * 8), dtype=torch.int32)
    padded_RB[:, :filled] = torch.signbit(values_RB) & ~void_R1
    weights_8 = 1 << torch.arange(8, dtype=torch.int32, device=values_RB.device)
    signs_RC = (padded_RB.reshape(rows, -1, 8) * weights_8).sum(dim=2).to(torch.uint8)
    return torch.cat([words_of(words_R1.view(torch.float32)), signs_RC], dim=1)


def _decode_sign(records_RS: Tensor, out_RB: Tensor) -> None:
    scale_R1 = _floats(records_RS[:, :4])
    places_8 = torch.arange(8, dtype=torch.int32, device=out_RB.device)
    bits_RC8 = (records_RS[:, 4:, None].to(torch.int32) >> places_8) & 1
    bits_RB = bits_RC8.reshape(out_RB.shape[0], -1)[:, : out_RB.shape[1]]
    out_RB[:] = (1 - 2 * bits_RB).to(torch.float32) * scale_R1


def bf16_bits(values: Tensor) -> Tensor:
    """As `lowcomm.codecs.bits.to_bf16`, in int64: torch's own cast makes infinities."""
    words = values.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    magnitude, upper = words & _MAGNITUDE, words >> 16
    rounded = (words + 0x7FFF + (upper & 1)) >> 16
    largest = (upper & 0x8000) | 0x7F7F
    void = torch.where(magnitude > 0x7F800000, upper | 0x40, upper)
    void = torch.where(magnitude < 0x7F800000, largest, void)
    return torch.where(magnitude >= 0x7F7F8000, void, rounded)


def pack_12(places_RK: Tensor) -> Tensor:
    """As `lowcomm.codecs.places.pack_places`."""
    rows, keep = places_RK.shape
    pairs = places_RK.new_zeros((rows, -(-keep // 2), 2))
    pairs.reshape(rows, -1)[:, :keep] = places_RK
    both = pairs[..., 0] | pairs[..., 1] << 12
    return bytes_of(both, 3)[:, : -(-3 * keep // 2)]


def unpack_12(packed_RS: Tensor, keep: int) -> Tensor:
    rows, pairs = packed_RS.shape[0], -(-keep // 2)
    three = torch.zeros((rows, 3 * pairs), dtype=torch.int64, device=packed_RS.device)
    three[:, : packed_RS.shape[1]] = packed_RS.to(torch.int64)
    three = three.reshape(rows, pairs, 3)
    both = three[..., 0] | three[..., 1] << 8 | three[..., 2] << 16
    places = torch.stack([both & 0xFFF, both >> 12], dim=2).reshape(rows, -1)
    if places[:, keep:].any():
        raise CodecError("topk: bits after the last index")
    return places[:, :keep]


def bytes_of(numbers_RK: Tensor, count: int) -> Tensor:
    """The lowest `count` bytes of each, the lowest first."""
    each = [(numbers_RK >> 8 * place) & 0xFF for place in range(count)]
    return torch.stack(each, dim=2).to(torch.uint8).reshape(numbers_RK.shape[0], -1)


def words_of(values_RK: Tensor) -> Tensor:
    """The bytes of fp32 values, row by row."""
    return values_RK.contiguous().view(torch.uint8).reshape(values_RK.shape[0], -1)


def _floats(bytes_RS: Tensor) -> Tensor:
    return bytes_RS.clone(memory_format=torch.contiguous_format).view(torch.float32)
