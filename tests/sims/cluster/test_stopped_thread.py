"""One thread of a process is stopped, and the others go on."""

import subprocess
import sys

import pytest

from protocols.types.errors import LowcommError
from sims.cluster.stopped_thread import CANNOT_TRACE, resume_thread, stop_thread, thread_of

TWO_THREADS = """
import sys, threading
from pathlib import Path
def tick(name):
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
    go = threading.Event()
    for number in range(10**9):
        go.wait(0.01)
        sys.stdout.write(f"{name}\\n")
        sys.stdout.flush()
threading.Thread(target=tick, args=("one",), daemon=True).start()
tick("two")
"""


def test_only_the_named_thread_stops_and_it_goes_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TWO_THREADS], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout)
            assert {next(lines).strip() for _ in range(20)} == {"one", "two"}
            thread = thread_of(process.pid, "one")
            try:
                stop_thread(process.pid, thread)
            except LowcommError as error:
                if not str(error).startswith(CANNOT_TRACE):
                    raise
                pytest.skip(str(error))
            late = [next(lines).strip() for _ in range(60)][-40:]
            assert set(late) == {"two"}
            resume_thread(thread)
            late = [next(lines).strip() for _ in range(60)][-40:]
            assert set(late) == {"one", "two"}
            with pytest.raises(LowcommError, match="no thread named three"):
                thread_of(process.pid, "three")
        finally:
            process.kill()
