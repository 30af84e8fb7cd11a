"""bf16 is torch's, but for what would overflow."""

import numpy as np
import torch

from lowcomm.codecs.bf16 import Bf16
from lowcomm.numerics.operations import F32
from tests.lowcomm.codecs.samples import encoded, there_and_back


def torch_halves(values: F32) -> bytes:
    return torch.from_numpy(values.copy()).bfloat16().view(torch.uint16).numpy().tobytes()


def test_finite_values_are_rounded_as_torch_rounds_them() -> None:
    upper = np.arange(1 << 16, dtype=np.uint32)
    upper = upper[(upper & 0x7FFF) < 0x7F7F] << 16
    for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        values = (upper | np.uint32(lower)).view(np.float32)
        assert encoded(Bf16(), values) == torch_halves(values)
    assert there_and_back(Bf16(), upper.view(np.float32)).tobytes() == upper.tobytes()


def test_the_largest_values_stay_finite_and_the_others_what_they_are() -> None:
    words = np.array([0x7F7F8000, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF], "u4")
    halves = np.frombuffer(encoded(Bf16(), words.view(np.float32)), "<u2")
    assert halves.tolist() == [0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0xFFFF]
