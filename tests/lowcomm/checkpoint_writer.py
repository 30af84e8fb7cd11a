"""A process that writes checkpoints and dies of it: test_checkpoint.py starts this script.

endless DIRECTORY    write and prune, round after round, until somebody kills it
crash DIRECTORY      die before the n-th file operation, for every n; check what is left
full DIRECTORY       write when the disk takes no more than 64 KiB a file
"""

import os
import resource
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np

from lowcomm.checkpoints.checkpoint import (
    CheckpointCut,
    CheckpointError,
    FragmentCut,
    LayoutEntry,
    PeerCut,
    newest_checkpoint,
    prune,
    read_checkpoint,
    write_checkpoint,
)
from lowcomm.numerics.operations import F32
from lowcomm.numerics.state_digests import state_digest

OPERATIONS = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir"}
LARGE, SMALL = 1 << 18, 64


def state(number: int, seed: int, elements: int) -> tuple[F32, F32]:
    """Outer parameters and momentum, other ones for each (number, seed)."""
    start = np.uint32(7919 * (number + 1000 * seed))
    words = (np.arange(2 * elements, dtype=np.uint32) + start) * np.uint32(2654435761)
    outer, momentum = np.split(words.astype(np.float32), 2)
    return outer, momentum


def write(directory: Path, number: int, elements: int, seed: int = 0) -> Path:
    """The checkpoint of round `number`, whose content depends on (number, seed)."""
    outer, momentum = state(number, seed, elements)
    layout: list[LayoutEntry] = [("weight", (elements // 2, 2), 0)]
    place = FragmentCut(
        version=number,
        inner_step=20 * number,
        tokens=seed,
        state_digest=state_digest(outer, momentum),
    )
    cut = CheckpointCut(
        log_index=number,
        lineage="00ff",
        run_digest="0" * 32,
        fragments=(place,),
        own=PeerCut(peer="alpha.00000001", incarnation=1, data_slot=0, rank_state=""),
    )
    return write_checkpoint(directory, cut, [layout], [outer], [momentum])


def check(directory: Path, elements: int) -> tuple[int, list[str]]:
    """Load the newest checkpoint, assert its content, and return its round; why others are not."""
    path, reasons = newest_checkpoint(directory)
    assert path is not None, reasons
    cut, _, (arrays,) = read_checkpoint(path)
    for found, expected in zip(
        arrays, state(cut.round, cut.fragments[0].tokens, elements), strict=True
    ):
        assert found.tobytes() == expected.tobytes()
    return cut.round, reasons


def endless(directory: Path) -> None:
    path, _ = newest_checkpoint(directory)
    start = read_checkpoint(path)[0].round if path else 0
    for number in count(start + 1):
        write(directory, number, LARGE)
        if number == start + 1:
            sys.stdout.write("ready\n")
            sys.stdout.flush()
        write(directory, number, LARGE, seed=1)
        prune(directory, keep=2)


def crash(directory: Path) -> None:
    newest = 3
    for n in count():
        place = directory / str(n)
        write(place, 3, SMALL)
        pid = os.fork()
        if pid == 0:
            sys.addaudithook(dying_at(n))
            write(place, 4, SMALL)
            write(place, 4, SMALL, seed=1)
            prune(place, keep=1)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, 9), "the writer failed by itself"
        found, _ = check(place, SMALL)
        assert found >= newest, "a later crash lost what an earlier one had left"
        newest = found
        write(place, 5, SMALL)
        assert check(place, SMALL)[0] == 5
        prune(place, keep=1)
        assert check(place, SMALL) == (5, [])
        assert [path.name for path in place.iterdir()] == ["round-000005"]
        if status == 0:
            assert newest == 4
            sys.stdout.write(f"{n}\n")
            return


def dying_at(n: int) -> Callable[[str, tuple[object, ...]], None]:
    """An audit hook that ends the process, as kill -9 would, before file operation n."""
    seen = count()

    def hook(event: str, _: tuple[object, ...]) -> None:
        if event in OPERATIONS and next(seen) == n:
            os._exit(9)

    return hook


def full(directory: Path) -> None:
    write(directory, 1, SMALL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))
    try:
        write(directory, 2, LARGE)
    except CheckpointError as error:
        sys.stdout.write(str(error))
    assert check(directory, SMALL) == (1, [])


if __name__ == "__main__":
    {"endless": endless, "crash": crash, "full": full}[sys.argv[1]](Path(sys.argv[2]))
