"""Versions of a fragment: where ranks read them, which of them have memory, and those without
momentum."""

import os
from pathlib import Path

import numpy as np
import pytest

from lowcomm.checkpoints.checkpoint import CheckpointError, newest_checkpoint, read_checkpoint
from lowcomm.methods import DiLoCoMethod, StreamingDiLoCoMethod
from lowcomm.numerics.operations import F32, nesterov_step
from lowcomm.outer_state.replica import Replica
from peers.exchange.interfaces import Bytes
from peers.ipc.shared_memory import MOVE, Slots
from protocols.types.ids import Contributor, PeerId, TensorSpec
from tests.lowcomm.replicas import (
    LAYOUT,
    LINEAGE,
    LR,
    SHARED,
    SIZES,
    arrays,
    contributors,
    gaussian,
    keep,
    kept,
    placed,
    plain,
    share,
    shown,
    slow_step,
    stamp,
    started,
    state_digest,
    view,
)

NONE: F32 = np.empty(0, np.float32)
ONE = contributors(1)


def test_ranks_read_the_outer_parameters_where_they_were_made() -> None:
    replica = started(plain())
    places: list[int] = []
    for round_ in (1, 2, 3):
        replica.apply(stamp(0, round_), (0, 23), [gaussian(round_, 23).tobytes()], ONE)
        places.append(replica.place_result(0, full=True).place)
        assert replica.place_result(0, full=True).place == places[-1], (
            "ranks that are back take it too"
        )
        assert shown(replica, 0, places[-1]).tobytes() == arrays(replica, 0)[0].tobytes()
    assert places in ([0, 1, 0], [1, 0, 1])


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_ranks_that_are_slow_keep_their_base(rounds: int) -> None:
    """They train from what they were given last, however many rounds go by without them."""
    replica = started(plain())
    base, place = arrays(replica, 0)[0], replica.place_result(0, full=True).place
    for round_ in range(1, rounds + 1):
        replica.apply(stamp(0, round_), (0, 23), [gaussian(round_, 23).tobytes()], ONE)
        assert shown(replica, 0, place).tobytes() == base.tobytes()
    now = arrays(replica, 0)[0]
    assert placed(replica, 0, full=False).tobytes() == (now - base).tobytes()
    for round_ in range(rounds + 1, rounds + 4):
        replica.apply(stamp(0, round_), (0, 23), [gaussian(round_, 23).tobytes()], ONE)
        assert placed(replica, 0, full=True).tobytes() == arrays(replica, 0)[0].tobytes()
    assert_same_as_alone(replica, rounds + 3)


def assert_same_as_alone(replica: Replica, rounds: int) -> None:
    """What the ranks see has no influence on the outer state."""
    alone = plain()
    alone.initialise(0, view(gaussian(0, 23)))
    for round_ in range(1, rounds + 1):
        alone.apply(stamp(0, round_), (0, 23), [gaussian(round_, 23).tobytes()], ONE)
    assert replica.version(0) == alone.version(0)


def test_a_place_is_torn_from_the_first_byte_of_the_next_version_on() -> None:
    replica = started(plain())
    slots = SHARED[replica]
    old, mean = replica.place_result(0, full=True).place, gaussian(1, 23).tobytes()
    replica.apply(stamp(0, 1), (0, 23), [mean], ONE)
    new = replica.place_result(0, full=True).place
    replica.settle(0)
    slots.publish_result(0, old, 7)
    slots.publish_result(0, new, 8)
    replica.ahead(stamp(0, 2), 0, mean[:20], mean, 5, ONE)
    assert [slots.result_generation(0, place) for place in (old, new)] == [0, 8]


def test_a_state_that_was_there_before_the_ranks_is_what_they_get() -> None:
    replica = plain()
    replica.restore(0, 5, gaussian(3, 23), gaussian(4, 23), lineage=LINEAGE)
    replica.ahead(stamp(0, 6), 0, bytes(20), bytes(92), 5, ONE)
    share(replica)
    assert placed(replica, 0, full=True).tobytes() == gaussian(3, 23).tobytes()
    assert replica.apply(stamp(0, 6), (0, 23), [gaussian(7, 23).tobytes()], ONE)
    expected = slow_step(gaussian(3, 23), gaussian(4, 23), gaussian(7, 23))
    assert [array.tobytes() for array in arrays(replica, 0)] == [x.tobytes() for x in expected]


# Without momentum -----------------------------------------------------------------------------


def test_without_momentum_there_is_none_to_keep() -> None:
    diloco = DiLoCoMethod(outer_lr=0.4, outer_momentum=0.0)
    assert diloco.state_arrays == ("outer",)
    outer, mean = gaussian(1, 5), gaussian(2, 5)
    ours, momentum = np.zeros((2, 5), np.float32)
    diloco.outer_step(outer, NONE, mean, ours, NONE)
    nesterov_step(outer, mean, momentum, outer, momentum, lr=0.4, beta=0.0)
    assert ours.tobytes() == outer.tobytes()


def step(replica: Replica, round_: int) -> None:
    replica.apply(stamp(0, round_), (0, 23), [gaussian(round_, 23).tobytes()], ONE)


@pytest.mark.parametrize("counted", [True, False])
def test_what_is_lent_stays_and_the_ranks_see_what_they_would_see_otherwise(counted: bool) -> None:
    """Whatever rounds go by, and whether they count the ranks or not."""
    for lent_at in (0, 1, 2, 3):
        replica = started(plain())
        seen = arrays(replica, 0)[0]
        lent, before = tuple[Bytes, ...](), b""
        for round_ in range(1, 9):
            if round_ - 1 == lent_at:
                lent = replica.lend_state(0, lent_at)
                before = b"".join(lent)
                assert replica.check_state(0, 4, lent) == replica.version(0)[1]
            step(replica, round_)
            assert not lent or b"".join(lent) == before, round_
            if counted or round_ % 3 == 0:
                now = arrays(replica, 0)[0]
                wanted = now if counted else now - seen
                assert placed(replica, 0, full=counted).tobytes() == wanted.tobytes()
                seen = now
            if round_ == lent_at + 4:
                lent = ()
        assert_same_as_alone(replica, 8)


def test_what_is_lent_twice_stays_until_both_have_given_it_back() -> None:
    replica = started(plain())
    first, second = replica.lend_state(0, 0), replica.lend_state(0, 0)
    before = b"".join(first)
    del second
    for round_ in range(1, 5):
        step(replica, round_)
        assert b"".join(first) == before, round_
    assert_same_as_alone(replica, 4)


def test_a_part_of_what_is_lent_holds_it_too() -> None:
    replica = started(plain())
    lent = replica.lend_state(0, 0)
    assert all(isinstance(buffer, memoryview) for buffer in lent)
    cells = [memoryview(buffer)[4:12] for buffer in lent]
    before = [bytes(cell) for cell in cells]
    del lent  # A cell is on its way, and the copy was released.
    for round_ in range(1, 5):
        step(replica, round_)
        placed(replica, 0, full=True)
        assert [bytes(cell) for cell in cells] == before


def test_what_nobody_has_any_more_is_used_again() -> None:
    replica = started(plain())
    momentum = replica.lend_state(0, 0)[1]
    address = np.frombuffer(momentum, np.uint8).__array_interface__["data"]
    del momentum
    for round_ in (1, 2):
        step(replica, round_)
    again = replica.lend_state(0, 2)[1]
    assert np.frombuffer(again, np.uint8).__array_interface__["data"] == address


def test_what_was_made_ahead_in_the_only_place_left_is_made_again() -> None:
    """The ranks trained from version 1 meanwhile, and somebody reads it yet."""
    replica = started(plain())
    step(replica, 1)
    placed(replica, 0, full=True)
    lent = replica.lend_state(0, 1)
    for round_ in (2, 3):
        step(replica, round_)
    part = gaussian(4, 23).tobytes()
    replica.ahead(stamp(0, 4), 0, part, part, 23, ONE)
    assert placed(replica, 0, full=True).tobytes() == arrays(replica, 0)[0].tobytes()
    replica.apply(stamp(0, 4), (0, 23), [part], ONE)
    assert_same_as_alone(replica, 4)
    assert replica.check_state(0, 4, replica.lend_state(0, 4)) == replica.version(0)[1]
    assert len(lent) == 2


def test_of_two_versions_one_is_lent_and_the_other_copied() -> None:
    replica = started(plain())
    lent = [replica.lend_state(0, 0)]
    for round_ in range(1, 6):
        step(replica, round_)
        placed(replica, 0, full=True)
        lent.append(replica.lend_state(0, round_))
    alone = started(plain())
    for round_, state in enumerate(lent):
        assert b"".join(state) == b"".join(alone.lend_state(0, round_)), round_
        step(alone, round_ + 1)


def test_a_state_that_is_taken_is_shown_to_the_ranks_beside_what_is_lent() -> None:
    replica, other = started(plain()), started(plain())
    for round_ in range(1, 7):
        step(other, round_)
    for rounds in (0, 1, 2):
        for round_ in range(rounds):
            step(replica, round_ + 1)
            placed(replica, 0, full=True)
        lent = replica.lend_state(0, replica.version(0)[0])
        before = b"".join(lent)
        replica.adopt_state(0, 6, bytearray(b"".join(other.lend_state(0, 6))), lineage=LINEAGE)
        assert placed(replica, 0, full=True).tobytes() == arrays(other, 0)[0].tobytes()
        assert replica.version(0) == other.version(0)
        assert b"".join(lent) == before
        replica = started(plain())


def test_without_momentum_a_state_is_half_as_large(tmp_path: Path) -> None:
    config = DiLoCoMethod(outer_lr=LR, outer_momentum=0.0)
    donor, joiner = (Replica(config, LAYOUT) for _ in range(2))
    started(donor).apply(stamp(0, 1), (0, 23), [gaussian(7, 23).tobytes()], ONE)
    expected = np.asarray(gaussian(0, 23) - gaussian(7, 23) * np.float32(LR), np.float32)
    lent = donor.lend_state(0, donor.version(0)[0])
    assert b"".join(lent) == expected.tobytes()
    assert donor.state_bytes(0) == 4 * 23
    digest = state_digest(expected, NONE)
    assert joiner.check_state(0, 4, lent) == donor.version(0)[1] == digest
    joiner.adopt_state(0, 1, bytearray(b"".join(lent)), lineage=LINEAGE)
    assert joiner.version(0) == (1, digest)
    mean = gaussian(8, 23).tobytes()
    steps = [replica.apply(stamp(0, 2), (0, 23), [mean], ONE) for replica in (donor, joiner)]
    assert steps[0] == steps[1]
    kept(tmp_path, 2)  # With momentum: another method's.
    joiner.checkpoints = tmp_path
    assert joiner.adopt_kept(0, 2, lineage=LINEAGE) == ""


def test_a_checkpoint_without_momentum_is_read_without(tmp_path: Path) -> None:
    outer = [gaussian(k, size) for k, size in enumerate(SIZES)]
    path = keep(tmp_path, 4, outer, [NONE, NONE])
    assert newest_checkpoint(tmp_path) == (path, [])
    _, _, found = read_checkpoint(path)
    assert [pair.outer.tobytes() for pair in found] == [array.tobytes() for array in outer]
    assert [pair.momentum.size for pair in found] == [0, 0]


def test_a_state_half_with_momentum_is_not_written(tmp_path: Path) -> None:
    outer = [gaussian(k, size) for k, size in enumerate(SIZES)]
    with pytest.raises(CheckpointError, match="8 elements, the fragment 0"):
        keep(tmp_path, 4, outer, [outer[0], NONE])


class Turns:
    """A replica of three fragments that take turns, one in flight, and its ranks."""

    def __init__(self) -> None:
        self.size = 4096
        layout = [TensorSpec(f, f"block.{f}", (self.size,), 0) for f in range(3)]
        method = StreamingDiLoCoMethod(inner_steps=6, fragments=3, overlap_steps=0)
        self.replica = Replica(method, layout)
        self.slots = Slots.create(self.replica.shape(1))
        self.replica.share(self.slots)
        self.version = [0, 0, 0]
        for fragment in range(3):
            self.slots.contribution(fragment)[:] = view(gaussian(fragment, self.size))
            self.replica.initialise(fragment, self.slots.contribution(fragment))
        for fragment in range(3):
            self.place = self.replica.place_result(fragment, full=True).place

    @property
    def places_held(self) -> int:
        """Fragments' sizes that have memory beside the header."""
        header = self.slots.shape.header_bytes
        return (os.fstat(self.slots.fd).st_blocks * 512 - header) // (4 * self.size)

    def contribute(self, fragment: int) -> None:
        local = self.slots.contribution(fragment)
        local[:] = view(gaussian(9 + self.version[fragment], self.size))
        self.replica.contributions.take_local(fragment, local)
        self.replica.begin_contribution(fragment, f"m{fragment}")

    def commit(self, fragment: int, manifest: str) -> int:
        self.version[fragment] += 1
        mean = gaussian(3 + self.version[fragment], self.size)
        of = [Contributor(PeerId("p0.0"), 1, 1, manifest)]
        made = stamp(fragment, self.version[fragment])
        self.replica.apply(made, (0, self.size), [mean.tobytes()], of)
        return self.replica.place_result(fragment, full=True).place

    def shown(self, fragment: int, place: int) -> bytes:
        return bytes(self.slots.result(fragment, place))


def test_fragments_that_are_not_in_flight_hold_their_outer_parameters_alone() -> None:
    turns = Turns()
    assert turns.places_held == 3, "what the ranks contributed first is not held any more"
    for round_ in range(1, 4):
        for fragment in range(3):
            turns.contribute(fragment)
            place = turns.commit(fragment, f"m{fragment}")
            turns.replica.settle(fragment)
            # Three outer ones, the last one before, and the memory taken for the next in turn.
            assert turns.places_held <= 6
            outer_P, _ = arrays(turns.replica, fragment)
            assert turns.shown(fragment, place) == outer_P.tobytes(), (round_, fragment)
    assert turns.places_held == 5, "of one fragment: a contribution, and a next version"


def test_a_contribution_that_did_not_count_stays() -> None:
    turns = Turns()
    turns.contribute(1)
    written = bytes(turns.slots.contribution(1))
    turns.version[1] += 1
    others = [Contributor(PeerId("p1.0"), 1, 1, "another")]
    mean = gaussian(5, turns.size).tobytes()
    turns.replica.apply(stamp(1, 1), (0, turns.size), [mean], others)
    assert bytes(turns.slots.contribution(1)) == written
    assert turns.replica.place_result(1, full=False).place == MOVE


def test_a_result_that_ranks_may_not_have_taken_yet_stays() -> None:
    """Slow ranks, without whom the others made another round."""
    turns = Turns()
    turns.contribute(0)
    first = turns.commit(0, "m0")
    turns.replica.settle(0)
    before = turns.shown(0, first)
    second = turns.commit(0, "another")
    turns.replica.settle(0)
    assert second != first
    assert turns.shown(0, first) == before
