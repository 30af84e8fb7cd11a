"""Large memory comes as zeros, costs nothing before it is written to, and is given back."""

import resource
from pathlib import Path

import pytest

from peers.pages import fresh

MIB = 1 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("size", [0, 1, 4097, MIB + 3])
def test_it_is_exactly_so_many_zeros_that_can_be_written_to(size: int) -> None:
    memory = fresh(size)
    assert memory.nbytes == size
    assert not any(memory)
    memory[:] = bytes([7]) * size
    assert memory == bytes([7]) * size


def test_it_is_the_systems_until_it_is_written_to_and_again_when_nobody_has_it() -> None:
    before = resident_bytes()
    memory = fresh(64 * MIB)
    assert resident_bytes() < before + 8 * MIB
    memory[: 32 * MIB] = bytes(32 * MIB)
    held = memory[MIB : 2 * MIB]
    del memory
    assert resident_bytes() > before + 24 * MIB
    del held
    assert resident_bytes() < before + 8 * MIB
