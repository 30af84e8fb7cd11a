"""fp16 is numpy's, but for what would overflow and the bits of NaNs."""

import numpy as np

from lowcomm.codecs.fp16 import Fp16
from tests.lowcomm.codecs.samples import encoded, there_and_back


def test_finite_values_are_rounded_as_numpy_rounds_them() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    finite = halves[(halves & 0x7FFF) < 0x7C00].view(np.float16).astype(np.float32)
    assert there_and_back(Fp16(), finite).tobytes() == finite.tobytes()
    words = finite[np.abs(finite) < 65504].view(np.uint32)
    for off in (1, 0x800, 0xFFF, 0x1000, 0x1001, 0x1FFF):
        values = (words + np.uint32(off)).view(np.float32)
        assert encoded(Fp16(), values) == values.astype(np.float16).tobytes()
    random = np.random.default_rng(0).standard_normal(70_000, np.float32) * np.float32(1e-5)
    assert encoded(Fp16(), random) == random.astype(np.float16).tobytes()


def test_every_half_is_decoded_as_numpy_decodes_it() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    back = np.empty(halves.size, np.float32)
    Fp16().decode(halves.tobytes(), back)
    np.testing.assert_array_equal(back, halves.view(np.float16).astype(np.float32))


def test_the_largest_values_stay_finite_and_the_others_what_they_are() -> None:
    values = np.array([65520, -1e30, np.inf, -np.inf, np.nan, -np.nan], np.float32)
    halves = np.frombuffer(encoded(Fp16(), values), "<u2")
    assert halves.tolist() == [0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE00]
