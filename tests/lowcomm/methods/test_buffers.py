"""Floating buffers become the mean, integers those of one node, wherever pieces are cut."""

import numpy as np
import pytest

from lowcomm.methods import DecoupledDiLoCoMethod, DiLoCoMethod, NoLoCoMethod, RoundMethod
from lowcomm.methods.buffers import BufferMethod, buffers_fragment, in_flight, methods_of
from lowcomm.outer_state.replica import Replica
from protocols.types.ids import TensorSpec
from tests.lowcomm.replicas import contributors, gaussian, share, slow_mean, stamp, view

LAYOUT = (
    TensorSpec(0, "0.weight", (3, 2), 0),
    TensorSpec(1, "1.running_mean", (3,), 0, "buffer"),
    TensorSpec(1, "1.num_batches_tracked", (), 3, "counter"),
    TensorSpec(1, "2.running_var", (4,), 4, "buffer"),
    TensorSpec(1, "2.table", (2,), 8, "counter"),
)
SIZE = 10
COUNTERS = [3, 8, 9]
FLOATING = [place for place in range(SIZE) if place not in COUNTERS]
TOKENS = (20, 30, 30)


def buffers_of(method: RoundMethod) -> BufferMethod:
    found = methods_of(method, LAYOUT)[1]
    assert isinstance(found, BufferMethod)
    return found


def values() -> list[np.ndarray]:
    found = [gaussian(seed, SIZE) for seed in range(3)]
    for number, each in enumerate(found):
        each[COUNTERS] = (1 << 24) - number
    return found


@pytest.mark.parametrize("cut", range(1, SIZE))
def test_integers_come_from_the_most_tokens_and_of_equals_from_the_lowest_id(cut: int) -> None:
    given, out = values(), np.empty(SIZE, np.float32)
    method = buffers_of(DiLoCoMethod())
    for here in (slice(0, cut), slice(cut, SIZE)):
        pieces = [each[here].copy() for each in given]
        method.combine_at(here.start, pieces, contributors(*TOKENS), out[here])
    assert out[COUNTERS].tolist() == given[1][COUNTERS].tolist()
    assert out[FLOATING].tolist() == slow_mean(given, TOKENS)[FLOATING].tolist()


def test_a_run_that_distrusts_contributions_takes_a_trimmed_mean() -> None:
    given, out = values(), np.empty(SIZE, np.float32)
    given[2][FLOATING] = 1e30
    method = buffers_of(DiLoCoMethod(aggregate="clipped_mean"))
    method.combine_at(0, given, contributors(*TOKENS), out)
    assert out[FLOATING].max() < 10


def test_weights_are_those_of_the_runs_method() -> None:
    given = contributors(10, 1000)
    for method in (DiLoCoMethod(weight_max=2), NoLoCoMethod(), DecoupledDiLoCoMethod()):
        assert buffers_of(method).weights(given) == method.weights(given)


def test_buffers_are_in_flight_beside_the_fragments_of_the_method() -> None:
    assert buffers_fragment(LAYOUT) == 1
    assert buffers_fragment(LAYOUT[:1]) is None
    assert (in_flight(DiLoCoMethod(), LAYOUT), in_flight(DiLoCoMethod(), LAYOUT[:1])) == (2, 1)


@pytest.mark.parametrize("codec", ["fp32", "int4", "topk2bit"])
def test_buffers_travel_exactly_with_every_codec_and_all_nodes_have_the_same(codec: str) -> None:
    """The values themselves travel, so a base that another node left long ago does no harm."""
    method = DiLoCoMethod(contribution_codec=codec)  # type: ignore[arg-type]
    replicas = [Replica(method, LAYOUT) for _ in range(3)]
    kept = [share(replica) for replica in replicas]  # They hold the memory.
    given, terms = values(), contributors(*TOKENS)
    slices: list[memoryview] = []
    for number, replica in enumerate(replicas):
        replica.initialise(0, view(gaussian(7, 6)))
        replica.initialise(1, view(gaussian(8 + number, SIZE)))
        replica.contributions.take_local(1, view(given[number].copy()))
        place = replica.begin_contribution(1, f"{number}")
        slices.append(memoryview(bytearray(4 * SIZE)) if place is None else place)
        replica.encode(1, 0, SIZE, slices[-1])
        assert replica.contribution_bytes(1, SIZE) == 4 * SIZE
    layers = replicas[0].layers(1, 3)
    result = bytearray(layers * replicas[0].result_bytes(1, SIZE))
    replicas[0].reduce(1, SIZE, slices, terms, memoryview(result))
    digests = {each.apply(stamp(1, 1), (0, SIZE), [bytes(result)], terms) for each in replicas}
    outer_P, momentum_P = replicas[2].lend(1)
    assert len(digests) == 1
    assert outer_P[COUNTERS].tolist() == given[1][COUNTERS].tolist()
    assert outer_P[FLOATING].tolist() == slow_mean(given, TOKENS)[FLOATING].tolist()
    assert not momentum_P.any()
    for slots in kept:
        slots.close()
