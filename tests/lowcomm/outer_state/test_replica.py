"""The outer state of a node against slow references, one scalar operation at a time."""

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowcomm.methods import DiLoCoMethod, LocalSGDMethod, RoundMethod
from lowcomm.numerics.arrays import LargeArrays
from lowcomm.numerics.operations import WeightsError
from lowcomm.outer_state.replica import Replica
from lowcomm.startup.agreement import common_grain
from peers.exchange.interfaces import SlicesError
from peers.ipc.shared_memory import Slots
from protocols.types.ids import TensorSpec
from tests.lowcomm.replicas import (
    LAYOUT,
    LINEAGE,
    SIZES,
    arrays,
    contributors,
    cut,
    encoded,
    gaussian,
    kept,
    placed,
    plain,
    reduced,
    slow_mean,
    slow_step,
    stamp,
    started,
    state_digest,
    two_codecs,
    view,
)

ONE = contributors(1)
"""Of a mean that is all there is in a result."""


def test_the_first_parameters_are_version_zero() -> None:
    replica = plain()
    assert replica.sizes == SIZES
    assert replica.version(0) == (0, "")
    first = gaussian(1, 23)
    expected = state_digest(first, np.zeros(23, np.float32))
    assert replica.initialise(0, view(first)) == expected
    assert replica.version(0) == (0, expected)
    assert replica.version(1) == (0, "")
    first[:] = 0  # The ranks write their next contribution there.
    outer, momentum = arrays(replica, 0)
    assert outer.tobytes() == gaussian(1, 23).tobytes()
    assert momentum.tobytes() == bytes(4 * 23)


def test_a_full_result_is_the_outer_parameters_and_the_next_base() -> None:
    replica = started(plain())
    replica.apply(stamp(0, 1), (0, 23), [gaussian(7, 23).tobytes()], ONE)
    outer, _ = arrays(replica, 0)
    assert placed(replica, 0, full=True).tobytes() == outer.tobytes()
    replica.contributions.take_local(0, view(outer))
    assert encoded(replica, 0) == bytes(4 * 23)  # Nobody has trained since.


def test_a_delta_moves_the_ranks_and_keeps_what_they_learned() -> None:
    """Local parameters plus the delta contribute what the local ones did, to the new base."""
    replica = started(plain())
    old = gaussian(0, 23)
    replica.apply(stamp(0, 1), (0, 23), [gaussian(7, 23).tobytes()], ONE)
    new, _ = arrays(replica, 0)
    delta = placed(replica, 0, full=False).copy()
    assert delta.tobytes() == np.array([a - b for a, b in zip(new, old, strict=True)]).tobytes()
    local = gaussian(8, 23) + delta
    replica.contributions.take_local(0, view(local))
    assert encoded(replica, 0) == (new - local).tobytes()
    delta = placed(replica, 0, full=False)
    assert delta.tobytes() == bytes(4 * 23)  # Nothing was committed since.


@pytest.mark.parametrize("borders", [(0, 23), (0, 1, 1, 8, 23), (0, 22, 23)])
def test_parts_are_cut_from_the_bytes_of_the_whole(borders: tuple[int, ...]) -> None:
    replica = started(Replica(two_codecs(), LAYOUT))
    replica.contributions.take_local(0, view(gaussian(5, 23)))
    whole = (gaussian(0, 23) - gaussian(5, 23)).astype("<f2")
    assert encoded(replica, 0) == whole.tobytes()
    for start, stop in pairwise(borders):
        piece = cut(replica, encoded(replica, 0), start, stop)
        assert piece == whole[start:stop].tobytes()
        assert len(piece) == replica.contribution_bytes(0, stop - start)


@pytest.mark.parametrize("size", [1, 3, 23])
@pytest.mark.parametrize("tokens", [(5,), (3, 0), (1, 2, 4), (7, 7, 7, 1000)])
def test_a_mean_is_that_of_the_slices_in_their_order(size: int, tokens: tuple[int, ...]) -> None:
    slices = [gaussian(i, size) for i in range(len(tokens))]
    payloads = [values.tobytes() for values in slices]
    expected = slow_mean(slices, tokens)
    without_limit = Replica(DiLoCoMethod(weight_max=0.0), LAYOUT)
    assert reduced(without_limit, size, payloads, contributors(*tokens)) == expected.tobytes()
    cut_off = slow_mean(slices, [min(count, 70) for count in tokens])
    assert reduced(plain(), size, payloads, contributors(*tokens)) == cut_off.tobytes()
    assert payloads == [values.tobytes() for values in slices], "they may be summed again"


def test_slices_come_in_one_codec_and_their_mean_goes_in_another() -> None:
    replica = Replica(two_codecs(), LAYOUT)
    slices = [gaussian(i, 5).astype("<f2") for i in range(2)]
    payload = reduced(replica, 5, [x.tobytes() for x in slices], contributors(1, 3))
    mean = slow_mean([x.astype(np.float32) for x in slices], (1, 3))
    assert payload == mean.astype("<f8").tobytes()
    assert len(payload) == replica.result_bytes(0, 5) == 40
    assert replica.contribution_bytes(0, 5) == 10


def test_a_slice_or_a_weight_that_cannot_be_is_the_senders_fault() -> None:
    with pytest.raises(SlicesError, match="19 bytes for 5 values") as caught:
        reduced(plain(), 5, [bytes(20), bytes(19)], contributors(1, 1))
    assert caught.value.numbers == (1,)
    with pytest.raises(WeightsError):
        reduced(plain(), 5, [bytes(20)], contributors(0))


@pytest.mark.parametrize("fragment", [0, 1])
def test_a_state_moves_to_another_replica_bit_by_bit(fragment: int) -> None:
    donor, joiner, size = started(plain()), plain(), SIZES[fragment]
    donor.apply(stamp(fragment, 4), (0, size), [gaussian(7, size).tobytes()], ONE)
    lent = donor.lend_state(fragment, donor.version(fragment)[0])
    outer, momentum = arrays(donor, fragment)
    donor.apply(stamp(fragment, 5), (0, size), [gaussian(8, size).tobytes()], ONE)
    payload = bytearray(b"".join(lent))
    assert payload == outer.tobytes() + momentum.tobytes()
    assert len(payload) == joiner.state_bytes(fragment) == 8 * size
    digest = joiner.check_state(fragment, 1, [payload])
    assert digest == state_digest(outer, momentum) == joiner.check_state(fragment, 1, lent)
    joiner.adopt_state(fragment, 4, payload, lineage=LINEAGE)
    assert joiner.version(fragment) == (4, digest)
    assert joiner.version(1 - fragment) == (0, "")
    assert [x.tobytes() for x in arrays(joiner, fragment)] == [outer.tobytes(), momentum.tobytes()]
    mean = gaussian(8, size).tobytes()
    assert joiner.apply(stamp(fragment, 5), (0, size), [mean], ONE) == donor.version(fragment)[1]


def test_a_state_that_stays_the_caller_s_is_copied() -> None:
    donor, joiner, size = started(plain()), plain(), SIZES[0]
    donor.apply(stamp(0, 4), (0, size), [gaussian(7, size).tobytes()], ONE)
    payload = bytearray(b"".join(donor.lend_state(0, 4)))
    joiner.adopt_state(0, 4, payload, lineage=LINEAGE, kept=True)
    payload[:] = bytes(len(payload))  # Cells of the next cut, say.
    assert [x.tobytes() for x in arrays(joiner, 0)] == [x.tobytes() for x in arrays(donor, 0)]


def test_a_state_s_digest_can_be_ended_before_each_cell() -> None:
    replica, left = plain(), [None]
    payload = bytes(replica.state_bytes(1))
    assert replica.check_state(1, 1, [payload], left.pop) != ""

    def ends() -> None:
        raise InterruptedError

    assert left == []
    with pytest.raises(InterruptedError):
        replica.check_state(1, 1, [payload], ends)


def test_a_state_of_another_size_has_no_digest() -> None:
    replica = plain()
    assert replica.check_state(1, 1, [bytes(64)]) != ""
    for fragment, payload in ((1, bytes(63)), (1, b""), (0, bytes(64)), (2, bytes(64)), (2, b"")):
        assert replica.check_state(fragment, 1, [payload]) == ""
    assert replica.state_bytes(2) == 0


def test_a_checkpoint_is_taken_up_where_it_was() -> None:
    replica = plain()
    outer, momentum = gaussian(1, 8), gaussian(2, 8)
    digest = replica.restore(1, 12, outer, momentum, lineage=LINEAGE)
    assert replica.version(1) == (12, digest)
    assert digest == state_digest(outer, momentum)
    outer[:] = 0
    assert arrays(replica, 1)[0].tobytes() == gaussian(1, 8).tobytes()
    assert arrays(replica, 1)[1].tobytes() == momentum.tobytes()


def test_the_state_of_the_newest_checkpoint_is_taken_up_if_it_is_of_that_round(
    tmp_path: Path,
) -> None:
    kept(tmp_path, 3)
    outer, momentum = kept(tmp_path, 4)
    replica = started(plain())
    replica.checkpoints = tmp_path
    before = [array.tobytes() for f in (0, 1) for array in arrays(replica, f)]
    for fragment, round_ in ((0, 3), (0, 5), (2, 4)):
        assert replica.adopt_kept(fragment, round_, lineage=LINEAGE) == ""
    assert [array.tobytes() for f in (0, 1) for array in arrays(replica, f)] == before
    for fragment in (0, 1):
        digest = replica.adopt_kept(fragment, 4, lineage=LINEAGE)
        assert digest == state_digest(outer[fragment], momentum[fragment])
        assert replica.version(fragment) == (4, digest)
        found = [array.tobytes() for array in arrays(replica, fragment)]
        assert found == [outer[fragment].tobytes(), momentum[fragment].tobytes()]


def test_a_checkpoint_that_is_not_there_or_not_ours_gives_nothing(tmp_path: Path) -> None:
    replica = plain()
    assert replica.adopt_kept(0, 4, lineage=LINEAGE) == ""  # No directory.
    replica.checkpoints = tmp_path
    assert replica.adopt_kept(0, 4, lineage=LINEAGE) == ""  # An empty one.
    kept(tmp_path, 4)
    assert replica.adopt_kept(0, 4, lineage=LINEAGE) != ""
    other = Replica(DiLoCoMethod(), [TensorSpec(0, "a", (5,), 0)])
    other.checkpoints = tmp_path
    assert other.adopt_kept(0, 4, lineage=LINEAGE) == ""  # Another model's.
    with (tmp_path / "round-000004" / "model.safetensors").open("r+b") as file:
        file.truncate(100)
    assert replica.adopt_kept(0, 4, lineage=LINEAGE) == ""


def test_peers_that_exchange_parts_end_with_equal_bits() -> None:
    """A whole round of three, each the owner of one part, as the driver plays it."""
    peers = [started(plain()) for _ in range(3)]
    tokens, borders = (300, 100, 200), (0, 9, 16, 23)
    wholes: list[bytes] = []
    for number, peer in enumerate(peers):
        peer.contributions.take_local(0, view(gaussian(20 + number, 23)))
        wholes.append(encoded(peer, 0))
    parts: list[bytes] = []
    for owner, (start, stop) in zip(peers, pairwise(borders), strict=True):
        slices = [cut(owner, whole, start, stop) for whole in wholes]
        parts.append(reduced(owner, stop - start, slices, contributors(*tokens)))
    assert len({peer.apply(stamp(0, 1), borders, parts, ONE) for peer in peers}) == 1
    mean = slow_mean([gaussian(0, 23) - gaussian(20 + i, 23) for i in range(3)], tokens)
    expected, _ = slow_step(gaussian(0, 23), np.zeros(23, np.float32), mean)
    assert arrays(peers[0], 0)[0].tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("contribution", "result"), [("int8", "int8"), ("fp4", "bf16"), ("ternary", "fp16")]
)
def test_owner_and_receiver_step_by_the_same_decoded_bytes(contribution: str, result: str) -> None:
    """A round of two peers with parts cut on the grain of both codecs, as `startup` cuts them."""
    named: dict[str, Any] = {"contribution_codec": contribution, "result_codec": result}
    made, size = DiLoCoMethod(**named), 2500
    peers = [Replica(made, (TensorSpec(0, "w", (size,), 0),)) for _ in range(2)]
    borders = (0, common_grain(made), size)
    wholes: list[bytes] = []
    for seed, replica in enumerate(peers):
        replica.initialise(0, view(np.zeros(size, np.float32)))
        replica.contributions.take_local(0, view(gaussian(seed, size)))
        wholes.append(encoded(replica, 0))
    parts: list[bytes] = []
    for owner, (start, stop) in zip(peers, pairwise(borders), strict=True):
        slices = [cut(owner, whole, start, stop) for whole in wholes]
        assert len(slices[0]) == owner.contribution_bytes(0, stop - start)
        parts.append(reduced(owner, stop - start, slices, contributors(3, 5)))
    assert len({replica.apply(stamp(0, 1), borders, parts, ONE) for replica in peers}) == 1
    outer, _ = arrays(peers[0], 0)
    exact = slow_mean([-gaussian(seed, size) for seed in range(2)], (3, 5))
    assert np.corrcoef(outer, -exact)[0, 1] > 0.5


def files_in(directory: Path) -> int:
    """Files without names there that this process has open."""
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return sum(str(directory) in os.readlink(link) for link in links if link.is_symlink())


def digests_of(replica: Replica) -> list[str]:
    """Of all states in three rounds, the last two of them beside lent ones, of an adopted state and
    of one from a checkpoint."""
    slots = Slots.create(replica.shape(1), replica.arrays.directory)
    replica.share(slots)
    sizes = list(enumerate(SIZES))
    found = [replica.initialise(f, view(gaussian(f, size))) for f, size in sizes]
    lent: list[object] = []
    for round_ in (1, 2, 3):
        name = f"m{round_}"
        term = [replace(contributors(1)[0], manifest=name)]
        for fragment, size in sizes:
            replica.place_result(fragment, full=round_ != 2)
            slots.contribution(fragment)[:] = view(gaussian(10 * round_ + fragment, size))
            replica.contributions.take_local(fragment, slots.contribution(fragment))
            whole = encoded(replica, fragment, name)
            part = reduced(replica, size, [whole], term)
            found.append(replica.apply(stamp(fragment, round_), (0, size), [part], term))
            replica.settle(fragment)
            lent.append(replica.lend(fragment))
    for fragment, _ in sizes:
        buffer = replica.arrays.buffer(replica.state_bytes(fragment))
        buffer[:] = view(gaussian(50 + fragment, len(buffer) // 4))
        replica.adopt_state(fragment, 4, buffer, lineage=LINEAGE)
        found += [replica.version(fragment)[1], replica.adopt_kept(fragment, 7, lineage=LINEAGE)]
    found += [arrays(replica, fragment)[0].tobytes().hex() for fragment, _ in sizes]
    slots.close()
    return found


@pytest.mark.parametrize(
    "method", [two_codecs(), DiLoCoMethod(contribution_codec="topk"), LocalSGDMethod()]
)
def test_a_state_in_files_has_the_bits_of_one_in_memory(
    method: RoundMethod, tmp_path: Path
) -> None:
    kept(tmp_path / "kept", 7)
    files = tmp_path / "files"
    files.mkdir()
    one = Replica(method, LAYOUT)
    one.checkpoints = tmp_path / "kept"
    in_memory = digests_of(one)
    assert not files_in(files)
    other = Replica(method, LAYOUT, LargeArrays(files))
    other.checkpoints = one.checkpoints
    assert digests_of(other) == in_memory
    assert files_in(files) >= 2 * len(SIZES), "its arrays lie there, to the end"
    assert not list(files.iterdir()), "and a crash leaves nothing"
