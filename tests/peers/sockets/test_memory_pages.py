"""Large memory comes as zeros, costs nothing before it is written to, and is given back."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from peers.sockets.memory_pages import fresh, unnamed_file

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
@pytest.mark.parametrize("in_file", [False, True])
def test_it_is_exactly_so_many_zeros_that_can_be_written_to(
    size: int, in_file: bool, tmp_path: Path
) -> None:
    memory = fresh(size, tmp_path if in_file else None)
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


def test_a_file_has_all_its_blocks_and_no_name(tmp_path: Path) -> None:
    fd = unnamed_file(tmp_path, MIB + 1)
    try:
        file = os.fstat(fd)
        assert (file.st_size, file.st_nlink) == (MIB + 1, 0)
        assert file.st_blocks * 512 > MIB
        assert not list(tmp_path.iterdir())
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_memory_in_a_file_gives_its_blocks_back_with_the_last_view(tmp_path: Path) -> None:
    def open_files() -> int:
        links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
        return sum(str(tmp_path) in os.readlink(link) for link in links if link.is_symlink())

    memory = fresh(MIB, tmp_path)
    held = memory[10:20]
    del memory
    assert open_files() == 1
    del held
    assert open_files() == 0


def test_a_disk_that_refuses_a_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The kernel refuses here as it does for a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, before[1]))
    try:
        with pytest.raises(OSError, match=r"takes no file of 2 MiB .*: free space there") as caught:
            fresh(2 * MIB, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
    assert str(tmp_path) in str(caught.value)
    assert not list(tmp_path.iterdir())
