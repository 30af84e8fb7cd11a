"""The nodes' contributions, and the error of their results.

They lie in memory files that workers read and write, so that neither the disk nor a worker's own
memory is affected. Must NOT know which system moved the data.
"""

import contextlib
import mmap
import os
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import xxhash

from benchmarks.exchanging.worker import F32, blocks

SEED = 20251122


@dataclass(frozen=True, slots=True)
class Checked:
    """The check of one exchange; the errors are those of the worst result."""

    digests: int
    mean_square: float
    mean_error: float


@dataclass(frozen=True, slots=True)
class PayloadFiles:
    """By node: arrays fp32 [elements], and the paths under which other processes open them."""

    sources: tuple[F32, ...]
    results: tuple[F32, ...]
    source_paths: tuple[str, ...]
    result_paths: tuple[str, ...]

    def check(self, sign: int) -> Checked:
        """Check all results, after the workers contributed `sign` x their sources."""
        distinct = {xxhash.xxh3_128_hexdigest(result.data): result for result in self.results}
        errors = [self._error(result, sign) for result in distinct.values()]
        return Checked(len(distinct), *max(errors))

    def _error(self, result: F32, sign: int) -> tuple[float, float]:
        """(mean of the squared error, mean error), computed in fp64."""
        squares = total = 0.0
        for block in blocks(result.size):
            mean = np.zeros(block.stop - block.start, np.float64)
            for source in self.sources:
                np.add(mean, source[block], out=mean)
            mean *= sign / len(self.sources)
            np.subtract(result[block], mean, out=mean)
            total += float(mean.sum())
            squares += float(np.square(mean, out=mean).sum())
        return squares / result.size, total / result.size


@contextlib.contextmanager
def payloads(peers: int, elements: int) -> Generator[PayloadFiles]:
    """Sources of normal numbers, N(0, 1), the same in every run, and empty results."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(_file(4 * elements)) for _ in range(2 * peers)]
        arrays = tuple(array for array, _ in files)
        paths = tuple(path for _, path in files)
        for node, source in enumerate(arrays[:peers]):
            np.random.default_rng((SEED, node)).standard_normal(out=source, dtype=np.float32)
        yield PayloadFiles(arrays[:peers], arrays[peers:], paths[:peers], paths[peers:])


@contextlib.contextmanager
def _file(size: int) -> Generator[tuple[F32, str]]:
    descriptor = os.memfd_create("lowcomm-benchmark", os.MFD_CLOEXEC)
    try:
        os.truncate(descriptor, size)
        # Not closed: arrays of it may still be in use; it is freed with the last of them.
        array = np.frombuffer(mmap.mmap(descriptor, size), np.float32)
        yield array, f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def sign_of(exchange: int) -> int:
    """The sign of an exchange's contributions; it alternates, so that outer parameters do not
    drift."""
    return 1 if exchange % 2 == 0 else -1
