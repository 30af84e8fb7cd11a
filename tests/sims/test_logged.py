"""`python -m sims.logged`: output in a file, the same process."""

import subprocess
import sys
from pathlib import Path


def logged(path: Path, program: str) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-m", "sims.logged", str(path), sys.executable, "-c", program]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_both_outputs_go_to_the_file_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    program = (
        "import os, sys; print(os.getpid(), flush=True); print('err', file=sys.stderr); sys.exit(7)"
    )
    process = logged(path, program)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (7, b"")
    # Appended, and by the very process that we started.
    assert path.read_text() == f"before\n{process.pid}\nerr\n"


def test_no_descriptor_of_ours_is_left_in_the_command(tmp_path: Path) -> None:
    path = tmp_path / "log"
    process = logged(path, "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))")
    process.communicate(timeout=20)
    assert path.read_text() == "[0, 1, 2, 3]\n"  # 3 lists the folder.
