"""Contributions are known, and so is what their mean has to be."""

import numpy as np
import pytest

from benchmarks.exchanging.payloads import payloads, sign_of
from benchmarks.exchanging.worker import BLOCK_ELEMENTS, blocks, read_source, signed_source

ELEMENTS = BLOCK_ELEMENTS + 1000


def test_the_mean_has_no_error_and_a_difference_is_seen() -> None:
    with payloads(3, ELEMENTS) as made:
        mean = np.mean(np.stack(made.sources), axis=0, dtype=np.float64).astype(np.float32)
        for result in made.results:
            result[:] = -mean
        checked = made.check(-1)
        assert checked.digests == 1
        assert checked.mean_square < 1e-14
        made.results[1][-1] += 1000.0
        checked = made.check(-1)
        assert checked.digests == 2
        assert checked.mean_square == pytest.approx(1e6 / ELEMENTS, rel=1e-4)
        assert checked.mean_error == pytest.approx(1000 / ELEMENTS, rel=1e-3)


def test_sources_are_normal_and_differ() -> None:
    with payloads(2, ELEMENTS) as made:
        first, second = made.sources
        assert abs(float(first.mean())) < 0.01
        assert abs(float(first.std()) - 1.0) < 0.01
        assert not np.array_equal(first, second)


def test_a_worker_reads_what_the_harness_made() -> None:
    with payloads(2, ELEMENTS) as made:
        whole, piece = np.empty(ELEMENTS, np.float32), np.empty(7, np.float32)
        signed_source(made.source_paths[1], whole, -1)
        assert np.array_equal(whole, -made.sources[1])
        read_source(made.source_paths[1], piece, start=ELEMENTS - 7)
        assert np.array_equal(piece, made.sources[1][-7:])


def test_blocks_cover_all_once() -> None:
    covered = [n for block in blocks(ELEMENTS) for n in (block.start, block.stop)]
    assert covered == [0, BLOCK_ELEMENTS, BLOCK_ELEMENTS, ELEMENTS]
    assert [sign_of(exchange) for exchange in range(3)] == [1, -1, 1]
