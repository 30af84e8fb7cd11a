"""The processes below one that this test has started."""

import os
import subprocess
import sys

from sims.cluster.process_tree import children, descendants

PROGRAM = """
import subprocess, sys
inner = subprocess.Popen([sys.executable, "-c", "input()"], start_new_session=True)
print(inner.pid, flush=True)
inner.wait()
"""


def test_descendants_are_found_in_other_sessions_too_and_children_only_one_below() -> None:
    argv = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as outer:
        assert outer.stdout is not None
        inner = int(outer.stdout.readline())
        assert children(outer.pid) == {inner}
        assert children(inner) == set()
        assert outer.pid in children(os.getpid())
        assert inner not in children(os.getpid())
        assert {outer.pid, inner} <= descendants(os.getpid())
        outer.communicate(b"\n")
    assert descendants(outer.pid) == set()
