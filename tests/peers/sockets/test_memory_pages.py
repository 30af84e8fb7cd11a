"""Large memory comes as zeros, costs nothing before it is written to, and is given back."""

import subprocess
import sys

import pytest

from peers.sockets.memory_pages import fresh

MIB = 1 << 20


ALONE = """
import resource
from pathlib import Path
from peers.sockets.memory_pages import fresh

MIB = 1 << 20

def resident_mib():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MIB

before = resident_mib()
memory = fresh(64 * MIB)
print(resident_mib() - before)
memory[: 32 * MIB] = bytes(32 * MIB)
held = memory[MIB : 2 * MIB]
del memory
print(resident_mib() - before)
del held
print(resident_mib() - before)
"""
"""In a process of its own: what other threads of a process hold comes and goes, and the kernel
counts pages in each thread before it adds them up."""


@pytest.mark.parametrize("size", [0, 1, 4097, MIB + 3])
def test_it_is_exactly_so_many_zeros_that_can_be_written_to(size: int) -> None:
    memory = fresh(size)
    assert memory.nbytes == size
    assert not any(memory)
    memory[:] = bytes([7]) * size
    assert memory == bytes([7]) * size


def test_it_is_the_systems_until_it_is_written_to_and_again_when_nobody_has_it() -> None:
    ran = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    fresh_mib, held_mib, left_mib = map(float, ran.stdout.split())
    assert fresh_mib < 8
    assert held_mib > 24
    assert left_mib < 8
