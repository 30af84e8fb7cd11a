"""Bytes a parameter follow from what was seen of each daemon."""

import pytest

from benchmarks.footprint import (
    METHODS,
    Taken,
    chosen,
    footprint,
    needed_bytes_per_parameter,
)
from protocols.types.errors import ConfigError

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


def test_methods_are_chosen_by_name() -> None:
    assert chosen("") == list(METHODS)
    assert chosen("noloco,diloco") == ["noloco", "diloco"]
    with pytest.raises(ConfigError, match="--only dilocO: there are streaming, diloco"):
        chosen("dilocO")


def test_the_bytes_to_start_with_are_those_that_daemons_reckon_with() -> None:
    assert needed_bytes_per_parameter("diloco", 1 << 20, in_files=False) == 4 * (2 + 2 + 4 + 2)
    assert needed_bytes_per_parameter("diloco", 1 << 20, in_files=True) == 4 * (1 + 2)
    for name in METHODS:
        held, filed = (needed_bytes_per_parameter(name, 1 << 20, in_files=x) for x in (False, True))
        assert 0 < filed < held, name
