"""Parts of payloads that ranks encode on their own device: the bytes of lowcomm.codecs.

For fp32 tensors on the CPU the bytes are the same; on other devices too if their fp32 follows IEEE
and denormals are not flushed. Must NOT be imported by the daemon (torch).

Shapes: R blocks, B values in each, K of them sent.
"""

import torch
from torch import Tensor

_MAGNITUDE = 0x7FFFFFFF


def largest_places(values_RB: Tensor, keep: int) -> Tensor:
    """Of each row, ascending, int64 [R, K]: as lowcomm.codecs.places has them."""
    magnitude_RB = values_RB.contiguous().view(torch.int32) & _MAGNITUDE
    border_R1 = torch.topk(magnitude_RB, keep, dim=1).values[:, -1:]
    above_RB, equal_RB = magnitude_RB > border_R1, magnitude_RB == border_R1
    room_R1 = keep - above_RB.sum(dim=1, keepdim=True)
    # torch.topk takes any of equal ones; we take the first.
    chosen_RB = above_RB | (equal_RB & (equal_RB.cumsum(dim=1) <= room_R1))
    return chosen_RB.nonzero()[:, 1].reshape(-1, keep)


def pack_12(places_RK: Tensor) -> Tensor:
    """As `lowcomm.codecs.places.pack_places`."""
    rows, keep = places_RK.shape
    pairs = places_RK.new_zeros((rows, -(-keep // 2), 2))
    pairs.reshape(rows, -1)[:, :keep] = places_RK
    both = pairs[..., 0] | pairs[..., 1] << 12
    return bytes_of(both, 3)[:, : -(-3 * keep // 2)]


def bf16_bits(values: Tensor) -> Tensor:
    """As `lowcomm.codecs.bits.to_bf16`, in int64: torch's own cast makes infinities."""
    words = values.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    magnitude, upper = words & _MAGNITUDE, words >> 16
    rounded = (words + 0x7FFF + (upper & 1)) >> 16
    largest = (upper & 0x8000) | 0x7F7F
    void = torch.where(magnitude > 0x7F800000, upper | 0x40, upper)
    void = torch.where(magnitude < 0x7F800000, largest, void)
    return torch.where(magnitude >= 0x7F7F8000, void, rounded)


def bytes_of(numbers_RK: Tensor, count: int) -> Tensor:
    """The lowest `count` bytes of each, the lowest first."""
    each = [(numbers_RK >> 8 * place) & 0xFF for place in range(count)]
    return torch.stack(each, dim=2).to(torch.uint8).reshape(numbers_RK.shape[0], -1)


def words_of(values_RK: Tensor) -> Tensor:
    """The bytes of fp32 values, row by row."""
    return values_RK.contiguous().view(torch.uint8).reshape(values_RK.shape[0], -1)
