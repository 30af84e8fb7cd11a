"""Steps against slow references: wherever parts are cut, made ahead or not."""

import tracemalloc
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from lowcomm.methods import DiLoCoMethod
from lowcomm.numerics.operations import F32, nesterov_step
from lowcomm.numerics.state_digests import state_digest as whole_digest
from lowcomm.outer_state.replica import Replica
from peers.exchange.pieces import PIECE_ELEMENTS, spans
from protocols.types.ids import Stamp, TensorSpec
from tests.lowcomm.replicas import (
    BETA,
    LAYOUT,
    LINEAGE,
    LR,
    arrays,
    contributors,
    gaussian,
    slow_step,
    stamp,
    started,
    state_digest,
    two_codecs,
)

ONE = contributors(1)
CELLS = 2 * PIECE_ELEMENTS + 3
LARGE = (TensorSpec(0, "w", (CELLS,), 0),)
HALVES = (0, PIECE_ELEMENTS, CELLS)


@pytest.mark.parametrize("borders", [(0, 23), (0, 7, 7, 23), (0, 1, 22, 23)])
def test_a_step_takes_the_decoded_parts_wherever_they_were_cut(borders: tuple[int, ...]) -> None:
    replica = started(Replica(two_codecs(), LAYOUT))
    other = replica.version(1), [array.tobytes() for array in arrays(replica, 1)]
    outer, momentum = gaussian(0, 23), np.zeros(23, np.float32)
    for round_ in (1, 2, 3):
        mean = gaussian(10 + round_, 23)
        parts = [mean[a:b].astype("<f8").tobytes() for a, b in pairwise(borders)]
        outer, momentum = slow_step(outer, momentum, mean)
        digest = state_digest(outer, momentum)
        assert replica.apply(stamp(0, round_), borders, parts, ONE) == digest
        assert replica.version(0) == (round_, digest)
    assert [array.tobytes() for array in arrays(replica, 0)] == [
        outer.tobytes(),
        momentum.tobytes(),
    ]
    assert (replica.version(1), [array.tobytes() for array in arrays(replica, 1)]) == other


def large() -> Replica:
    """Of three cells; parts that begin with one."""
    replica = Replica(DiLoCoMethod(outer_lr=LR, outer_momentum=BETA), LARGE)
    replica.restore(0, 0, gaussian(1, CELLS), gaussian(2, CELLS), lineage=LINEAGE)
    return replica


def halves(mean: F32) -> list[bytes]:
    return [mean[first:last].tobytes() for first, last in pairwise(HALVES)]


def goes_ahead(replica: Replica, of: Stamp, parts: Sequence[bytes]) -> None:
    """All pieces of a result arrive."""
    for first, part in zip(HALVES, parts, strict=False):
        for start, stop in spans(len(part) // 4):
            piece = memoryview(part)[4 * start : 4 * stop]
            replica.ahead(of, first + start, piece, part, stop - start, ONE)


def steps(means: Sequence[F32]) -> tuple[F32, F32]:
    """All rounds of a large replica, by whole arrays."""
    outer, momentum = gaussian(1, CELLS), gaussian(2, CELLS)
    for mean in means:
        nesterov_step(outer, mean, momentum, outer, momentum, lr=LR, beta=BETA)
    return outer, momentum


@pytest.mark.parametrize("settles", [True, False])
@pytest.mark.parametrize("borders", [HALVES, (0, 9, CELLS)])
def test_a_version_is_known_before_its_momentum_is_made(
    borders: tuple[int, ...], *, settles: bool
) -> None:
    """With parts that begin between two cells, the digest needs the momentum. What comes of the
    next round before it is made, is made with the rest."""
    replica, means = large(), [gaussian(seed, CELLS) for seed in (3, 4, 5)]
    for round_, mean in enumerate(means, 1):
        parts = [mean[first:last].tobytes() for first, last in pairwise(borders)]
        if borders == HALVES:
            goes_ahead(replica, stamp(0, round_), parts)
        digest = replica.apply(stamp(0, round_), borders, parts, ONE)
        expected = steps(means[:round_])
        assert digest == whole_digest(*expected)
        if settles:
            replica.settle(0)
            lent = replica.lend_state(0, round_)
            assert [bytes(x) for x in lent] == [x.tobytes() for x in expected]
            del lent
    assert [x.tobytes() for x in arrays(replica, 0)] == [x.tobytes() for x in steps(means)]


def test_what_is_not_committed_leaves_the_momentum_as_it_is() -> None:
    replica, lost, mean = large(), gaussian(3, CELLS), gaussian(4, CELLS)
    goes_ahead(replica, stamp(0, 1), halves(lost))
    before = [gaussian(1, CELLS).tobytes(), gaussian(2, CELLS).tobytes()]
    assert [x.tobytes() for x in arrays(replica, 0)] == before
    goes_ahead(replica, stamp(0, 1, attempt=1), halves(mean)[:1])
    digest = replica.apply(stamp(0, 1, attempt=1), HALVES, halves(mean), ONE)
    assert digest == whole_digest(*steps([mean]))
    assert [x.tobytes() for x in arrays(replica, 0)] == [x.tobytes() for x in steps([mean])]


def test_a_result_that_comes_again_with_other_bytes_is_made_anew() -> None:
    """The first one was not the committed result: it was dropped, and asked for once more."""
    replica, lost, mean = large(), gaussian(3, CELLS), gaussian(4, CELLS)
    goes_ahead(replica, stamp(0, 1), halves(lost))
    digest = replica.apply(stamp(0, 1), HALVES, halves(mean), ONE)
    assert digest == whole_digest(*steps([mean]))
    assert [x.tobytes() for x in arrays(replica, 0)] == [x.tobytes() for x in steps([mean])]


def test_a_state_that_replaces_ours_needs_nothing_of_what_was_due() -> None:
    replica, mean = large(), gaussian(3, CELLS)
    goes_ahead(replica, stamp(0, 1), halves(mean))
    replica.apply(stamp(0, 1), HALVES, halves(mean), ONE)
    replica.restore(0, 7, gaussian(5, CELLS), gaussian(6, CELLS), lineage=LINEAGE)
    replica.settle(0)
    expected = [gaussian(5, CELLS).tobytes(), gaussian(6, CELLS).tobytes()]
    assert [x.tobytes() for x in arrays(replica, 0)] == expected


def test_beside_the_momentum_there_is_none() -> None:
    """Nor while a step is made: pieces of it, and those once."""
    replica, parts, peak = large(), halves(gaussian(3, CELLS)), 0
    for round_ in (1, 2):  # The first one makes what is kept for all.
        tracemalloc.start()
        goes_ahead(replica, stamp(0, round_), parts)
        replica.apply(stamp(0, round_), HALVES, parts, ONE)
        replica.settle(0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < PIECE_ELEMENTS
