"""Bytes a parameter follow from what was seen of each daemon."""

import pytest

from benchmarks.footprint import Taken, footprint

MIB = 1 << 20


def test_what_is_there_without_a_model_is_subtracted_and_the_largest_daemon_counts() -> None:
    bare = [[Taken(40 * MIB, 0)], [Taken(50 * MIB, MIB)]]
    founder = [Taken(51 * MIB, 0), *[Taken(91 * MIB, 40 * MIB)] * 3]
    joiner = [Taken(211 * MIB, 0), *[Taken(91 * MIB, 48 * MIB)] * 3]
    found = footprint("diloco", [founder, joiner], bare, 16)
    assert found.parameters == 4 * MIB
    assert found.peak_bytes_per_parameter == pytest.approx(160 / 4)
    assert found.bytes_per_parameter == pytest.approx(88 / 4)
    assert found.own_bytes_per_parameter == pytest.approx(161 / 4)
