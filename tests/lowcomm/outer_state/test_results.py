"""What lies in a result, and what every peer makes of it: the same bits, summed there or here."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from lowcomm.codecs import codec
from lowcomm.codecs.codec import Codec, CodecError
from lowcomm.codecs.fp32 import Fp32
from lowcomm.methods import DiLoCoMethod, RoundMethod
from lowcomm.numerics.operations import F32
from lowcomm.outer_state.replica import Replica
from lowcomm.outer_state.results import PieceScratch, Results
from lowcomm.startup.agreement import common_grain
from peers.checks.samples import PartSample
from peers.exchange.interfaces import SlicesError
from peers.exchange.pieces import PIECE_ELEMENTS
from protocols.rounds.owner_checks import block_elements
from protocols.types.errors import LowcommError
from protocols.types.ids import PartBlocks, TensorSpec
from tests.lowcomm.replicas import (
    LINEAGE,
    Coded,
    arrays,
    contributors,
    cut,
    encoded,
    gaussian,
    placed,
    share,
    slow_mean,
    stamp,
    view,
)

TOKENS = (300, 100, 200)
GATHERED = ("topk", "topk2bit", "2bit", "sign", "powersgd", "int8", "fp32")
SIZE = 9000


def payload_of(one: Codec, values_P: F32) -> bytes:
    out = bytearray(one.encoded_bytes(values_P.size))
    one.encode(values_P, out)
    return bytes(out)


def gathered(one: Codec) -> Results:
    return Results(Coded(codec=one))


def result_of(one: Results, elements: int, slices: Sequence[bytes]) -> bytes:
    out = bytearray(b"\xff" * (one.layers(len(slices)) * one.layer_bytes(elements)))
    terms = contributors(*TOKENS[: len(slices)])
    one.make(elements, slices, terms, memoryview(out), PieceScratch())
    return bytes(out)


@pytest.mark.parametrize("name", GATHERED)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_is_gathered_lies_there_in_its_order_and_has_the_mean_of_a_sum(
    name: str, count: int
) -> None:
    one = codec(name)
    slices = [payload_of(one, gaussian(seed, SIZE)) for seed in range(count)]
    gather, total = gathered(one), Results(Coded(codec=one, mean_codec=Fp32()))
    found, summed = result_of(gather, SIZE, slices), result_of(total, SIZE, slices)
    assert found == b"".join(slices)
    assert (gather.layers(count), total.layers(count)) == (count, 1)
    terms, scratch = contributors(*TOKENS[:count]), PieceScratch()
    mean = gather.mean(found, SIZE, terms, scratch).tobytes()
    assert mean == total.mean(summed, SIZE, terms, scratch).tobytes() == summed
    decoded = [np.empty(SIZE, np.float32) for _ in slices]
    for payload, values in zip(slices, decoded, strict=True):
        one.decode(payload, values)
    assert mean == slow_mean(decoded, TOKENS[:count]).tobytes()


def test_other_weights_and_another_order_are_another_mean() -> None:
    one = gathered(codec("topk"))
    slices = [payload_of(codec("topk"), gaussian(seed, SIZE)) for seed in range(3)]
    found = {
        one.mean(b"".join(order), SIZE, contributors(*tokens), PieceScratch()).tobytes()
        for order, tokens in (
            (slices, TOKENS),
            (slices, (300, 100, 201)),
            (slices[::-1], TOKENS),
        )
    }
    assert len(found) == 3


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_slice_that_is_none_is_refused_by_its_owner_and_by_whom_it_would_reach(
    broken: int,
) -> None:
    one = gathered(codec("topk"))
    slices = [payload_of(codec("topk"), gaussian(seed, SIZE)) for seed in range(3)]
    slices[broken] = b"\xff" * len(slices[broken])  # Indices that do not ascend.
    with pytest.raises(SlicesError, match="indices") as caught:
        result_of(one, SIZE, slices)
    assert caught.value.numbers == (broken,)
    with pytest.raises(CodecError, match="indices"):
        one.mean(b"".join(slices), SIZE, contributors(*TOKENS), PieceScratch())


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("name", ["fp32", "int8", "topk2bit"])
@pytest.mark.parametrize("broken", [(0,), (2,), (0, 1)])
def test_what_is_not_finite_is_named(name: str, broken: tuple[int, ...], gathers: bool) -> None:
    one = codec(name)
    values = [gaussian(seed, SIZE) for seed in range(3)]
    for number, wrong in zip(broken, (np.nan, np.inf), strict=False):
        values[number][number * 700] = np.float32(wrong)
    slices = [payload_of(one, each) for each in values]
    results = gathered(one) if gathers else Results(Coded(codec=one, mean_codec=Fp32()))
    with pytest.raises(SlicesError, match="not finite") as caught:
        result_of(results, SIZE, slices)
    assert caught.value.numbers == broken


@pytest.mark.parametrize("gathers", [False, True])
def test_if_nothing_is_finite_there_is_a_result_all_the_same(gathers: bool) -> None:
    """The run has diverged; a round that cannot end would help nobody."""
    one, values = codec("fp32"), [np.full(SIZE, np.nan, np.float32) for _ in range(2)]
    results = gathered(one) if gathers else Results(Coded(codec=one, mean_codec=Fp32()))
    found = result_of(results, SIZE, [payload_of(one, each) for each in values])
    assert np.isnan(np.frombuffer(found, np.float32)).all()


def test_a_trimmed_mean_needs_no_attempt_without_what_it_trims() -> None:
    values = [gaussian(seed, SIZE) for seed in range(3)]
    values[1][:] = np.nan
    one = codec("fp32")
    method = Coded(codec=one, mean_codec=Fp32(), aggregate="trimmed_mean")
    found = result_of(Results(method), SIZE, [payload_of(one, each) for each in values])
    assert np.isfinite(np.frombuffer(found, np.float32)).all()


@pytest.mark.parametrize("layers", [0, 1, 2, 4])
def test_a_result_of_another_number_of_slices_is_none(layers: int) -> None:
    one = gathered(codec("int8"))
    payload = payload_of(codec("int8"), gaussian(1, SIZE)) * layers
    with pytest.raises((LowcommError, AssertionError)):
        one.mean(payload, SIZE, contributors(*TOKENS), PieceScratch())


def test_a_piece_is_cut_from_a_part_with_all_its_layers() -> None:
    one, elements = gathered(codec("int8")), PIECE_ELEMENTS + 700
    sizes = (one.layer_bytes(PIECE_ELEMENTS), one.layer_bytes(700))
    part = b"".join(
        bytes([layer + 9 * piece]) * sizes[piece] for piece in (0, 1) for layer in (1, 2)
    )
    assert bytes(one.cut(part, 0, PIECE_ELEMENTS, 2)) == b"\1" * sizes[0] + b"\2" * sizes[0]
    assert bytes(one.cut(part, PIECE_ELEMENTS, elements, 2)) == part[2 * sizes[0] :]


@pytest.mark.parametrize("name", GATHERED)
@pytest.mark.parametrize("ahead", [False, True])
def test_a_round_by_gather_ends_with_equal_bits_wherever_parts_are_cut(
    name: str, ahead: bool
) -> None:
    """Three peers as the driver plays them; one of them makes the step ahead, or not."""
    grain = common_grain(gathering(name))
    size = max(SIZE, 2 * grain + 900)
    digests = {
        played(
            replicas_of(gathering(name), 3, size),
            (0, *borders, size),
            ahead=ahead,
            least=0.2 if name == "powersgd" else 0.3,  # Of noise 4 of 256 columns keep 4 %.
        )
        for borders in ((), (grain,), (grain, 2 * grain))
    }
    assert len(digests) == 1


def gathering(name: Any) -> DiLoCoMethod:
    return DiLoCoMethod(contribution_codec=name, result_codec="gather")


def made_of(count: int, name: str) -> list[Replica]:
    return replicas_of(gathering(name), count)


def replicas_of(method: RoundMethod, count: int, size: int = SIZE) -> list[Replica]:
    replicas = [Replica(method, (TensorSpec(0, "w", (size,), 0),)) for _ in range(count)]
    for seed, replica in enumerate(replicas):
        share(replica)
        replica.initialise(0, view(np.zeros(size, np.float32)))
        replica.contributions.take_local(0, view(gaussian(seed, size)))
    return replicas


def played(
    replicas: Sequence[Replica], borders: tuple[int, ...], *, ahead: bool, least: float = 0.3
) -> str:
    """The state's digest after a round; every part is one piece. `least`: how much of the mean is
    left in it, as a correlation."""
    wholes = [encoded(replica, 0) for replica in replicas]
    terms, parts = contributors(*TOKENS), list[bytes]()
    for start, stop in pairwise(borders):
        slices = [cut(replicas[0], whole, start, stop) for whole in wholes]
        layers = replicas[0].layers(0, len(slices))
        out = bytearray(layers * replicas[0].result_bytes(0, stop - start))
        replicas[0].reduce(0, stop - start, slices, terms, memoryview(out))
        parts.append(bytes(out))
    if ahead:
        for (start, stop), part in zip(pairwise(borders), parts, strict=True):
            replicas[0].ahead(stamp(0, 1), start, part, part, stop - start, terms)
    found = {replica.apply(stamp(0, 1), borders, parts, terms) for replica in replicas}
    assert len(found) == 1
    given = [-gaussian(seed, borders[-1]) for seed in range(3)]
    exact = np.average(given, axis=0, weights=TOKENS)
    assert np.corrcoef(arrays(replicas[0], 0)[0], -exact)[0, 1] > least
    return found.pop()


@pytest.mark.parametrize("aggregate", ["trimmed_mean", "clipped_mean", "centred_clipping"])
def test_whatever_is_made_of_contributions_it_has_the_same_bits_everywhere(aggregate: Any) -> None:
    """Summed by owners, or by everybody in a gather, wherever parts are cut."""
    digests: set[str] = set()
    for result in ("fp32", "gather"):
        method = DiLoCoMethod(aggregate=aggregate, result_codec=result, outer_momentum=0.5)
        grain = common_grain(method)
        assert grain == (1 if aggregate == "trimmed_mean" else 4096)
        border = max(grain, 1000)
        for borders in ((), (border,), (border, 2 * border)):
            made = replicas_of(method, 3)
            digests.add(played(made, (0, *borders, SIZE), ahead=True))
    assert len(digests) == 1
    assert digests != {played(replicas_of(DiLoCoMethod(), 3), (0, SIZE), ahead=True)}


@pytest.mark.parametrize("round_", [1, 3])
def test_a_piece_that_no_codec_reads_is_refused_also_where_nothing_is_made_of_it(
    round_: int,
) -> None:
    """Of another round than the next one, say: the step cannot refuse it."""
    (one,) = made_of(1, "topk")
    damaged = bytes(one.result_bytes(0, SIZE) - 1)
    with pytest.raises(CodecError):
        one.ahead(stamp(0, round_), 0, damaged, damaged, SIZE, contributors(1))


# What is left out -------------------------------------------------------------------------------


def idle(replica: Replica) -> F32:
    """What the ranks contribute when they have not moved since they got the outer parameters."""
    replica.contributions.take_local(0, view(placed(replica, 0, full=True).copy()))
    decoded = np.empty(SIZE, np.float32)
    codec("topk").decode(encoded(replica, 0, "next"), decoded)
    return decoded


@pytest.mark.parametrize("fate", ["counted", "not", "counted, then another state"])
def test_what_was_left_out_goes_into_the_next_contribution_if_this_one_counted(fate: str) -> None:
    one, donor = made_of(2, "topk")
    first = encoded(one, 0, "mine")
    term = replace(contributors(1)[0], manifest="others'" if fate == "not" else "mine")
    one.apply(stamp(0, 1), (0, SIZE), [first], [term])
    if fate == "counted, then another state":
        state = bytearray(b"".join(donor.lend_state(0, donor.version(0)[0])))
        one.adopt_state(0, 1, state, lineage=LINEAGE)
    said, wanted = np.empty(SIZE, np.float32), np.zeros(SIZE, np.float32)
    codec("topk").decode(first, said)
    if fate == "counted":
        residue = -gaussian(0, SIZE) - said
        codec("topk").decode(payload_of(codec("topk"), residue), wanted)
        assert wanted.any()
    assert idle(one).tobytes() == wanted.tobytes()


def test_a_run_may_go_without_error_feedback() -> None:
    made = DiLoCoMethod(contribution_codec="topk", feedback_decay=0.0)
    one = Replica(made, (TensorSpec(0, "w", (SIZE,), 0),))
    share(one)
    one.contributions.take_local(0, view(gaussian(0, SIZE)))
    first = encoded(one, 0, "mine")
    one.apply(stamp(0, 1), (0, SIZE), [first], [replace(contributors(1)[0], manifest="mine")])
    assert not idle(one).any()


AGGREGATES = ("mean", "trimmed_mean", "clipped_mean", "centred_clipping")
SUMMED = ("fp32", "bf16", "fp16", "int8", "int4", "fp4", "ternary")
RESULTS = ("fp32", "bf16", "fp16", "int8", "int4", "fp4")


@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize(
    ("contribution", "result"),
    [*((name, "fp32") for name in SUMMED), *(("fp32", name) for name in RESULTS[1:])],
)
def test_blocks_of_a_result_follow_from_the_same_blocks_of_the_slices(
    aggregate: Any, contribution: Any, result: Any
) -> None:
    """So a receiver can check an owner with a few blocks, bit by bit."""
    method = DiLoCoMethod(
        name="diloco",
        aggregate=aggregate,
        contribution_codec=contribution,
        result_codec=result,
    )
    block = block_elements(common_grain(method))
    elements = 6 * block + block // 2
    one, coder = Results(method), method.codec
    slices = [payload_of(coder, gaussian(seed, elements)) for seed in range(3)]
    whole = result_of(one, elements, slices)
    for blocks in ((1, 4), (0, 3, 6)):
        sample = PartSample(PartBlocks(0, blocks), 0, elements, block)
        cut_slices = [sample.cut_blocks(each, coder.encoded_bytes(block)) for each in slices]
        expected = sample.cut_blocks(whole, one.layer_bytes(block))
        assert result_of(one, sample.elements, cut_slices) == expected
