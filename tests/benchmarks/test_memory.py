"""What is told of memory follows from what the kernel says."""

import pytest

from benchmarks.memory import MIB, Held, fragments, mappings

SMAPS = """\
55d0-55d8 rw-p 00000000 00:00 0                          [heap]
Size:                128 kB
KernelPageSize:        4 kB
Rss:                 100 kB
Pss:                 100 kB
VmFlags: rd wr mr mw me ac
7f00-7f08 rw-s 00000000 00:01 7    /memfd:lowcomm-slots (deleted)
Size:               4096 kB
Rss:                4096 kB
7f10-7f18 rw-p 00000000 00:00 0
Size:               8192 kB
Rss:                   4 kB
"""


def test_mappings_are_named_and_the_largest_comes_first() -> None:
    found = mappings(SMAPS.splitlines(), larger_than=50 << 10)
    assert found == [
        ("/memfd:lowcomm-slots (deleted)", 4 * MIB, 4 * MIB),
        ("[heap]", 128 << 10, 100 << 10),
    ]


def test_the_program_and_the_outer_state_are_no_cost_of_an_exchange() -> None:
    bare = Held(peak=50 * MIB, settled=0, last=0, mappings=())
    held = Held(peak=(50 + 5 * 63) * MIB, settled=0, last=0, mappings=())
    assert fragments(held, bare, 64) == pytest.approx(3.0)
