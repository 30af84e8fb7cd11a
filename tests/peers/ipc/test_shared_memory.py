"""Shared memory: both sides see the same bytes, and nobody takes torn ones for whole."""

import os
from pathlib import Path

import pytest

from peers.ipc.shared_memory import COPIES, MOVE, Slots, SlotsError, SlotsShape, is_memory

SHAPE = SlotsShape(ranks=2, fragment_bytes=(12, 8192))


def attach(slots: Slots, shape: SlotsShape = SHAPE) -> Slots:
    return Slots.attach(os.dup(slots.fd), shape)


def test_both_sides_see_the_same_bytes() -> None:
    daemon = Slots.create(SHAPE)
    rank = attach(daemon)
    try:
        for fragment, size in enumerate(SHAPE.fragment_bytes):
            rank.contribution(fragment)[:] = b"c" * size
            for place in (0, 1, MOVE):
                daemon.begin_result(fragment, place)
                daemon.result(fragment, place)[:] = bytes([place + 10]) * size
            assert daemon.contribution(fragment) == b"c" * size
            for place in (0, 1, MOVE):
                assert rank.result(fragment, place) == bytes([place + 10]) * size
    finally:
        rank.close()
        daemon.close()


def test_a_rank_cannot_write_what_the_daemon_goes_on_with() -> None:
    daemon = Slots.create(SHAPE)
    rank = attach(daemon)
    for place in (0, 1, MOVE):
        daemon.begin_result(1, place)
        with pytest.raises(TypeError, match="read-only"):
            rank.result(1, place)[0] = 1
    rank.close()
    daemon.close()


def test_what_parameters_moved_by_takes_memory_when_it_is_first_written() -> None:
    slots = Slots.create(SHAPE)
    before = os.fstat(slots.fd).st_blocks * 512
    assert before == SHAPE.present_bytes
    for _ in range(2):
        slots.begin_result(1, MOVE)
        slots.result(1, MOVE)[:] = b"m" * 8192
        assert os.fstat(slots.fd).st_blocks * 512 == before + 8192
    slots.close()


def test_the_next_ranks_contribute_elsewhere_and_what_the_last_ones_wrote_stays() -> None:
    daemon = Slots.create(SHAPE)
    before = os.fstat(daemon.fd).st_blocks * 512
    lost = attach(daemon)
    lost.contribution(1)[:] = b"l" * 8192
    needed = daemon.contribution(1)
    daemon.contribute_elsewhere(1)
    assert daemon.places == [0, 1]
    assert os.fstat(daemon.fd).st_blocks * 512 == before + 8192
    rank = attach(daemon)
    rank.places = list(daemon.places)
    rank.contribution(0)[:] = b"x" * 12
    rank.contribution(1)[:] = b"n" * 8192
    assert needed == b"l" * 8192
    assert daemon.contribution(1) == b"n" * 8192
    assert daemon.contribution(0) == b"x" * 12
    daemon.contribute_elsewhere(1)
    assert daemon.contribution(1) == b"l" * 8192, "there are two places"
    assert os.fstat(daemon.fd).st_blocks * 512 == before + 8192
    del needed
    for slots in (lost, rank, daemon):
        slots.close()


def held(slots: Slots) -> int:
    return os.fstat(slots.fd).st_blocks * 512


def test_only_fragments_in_flight_have_memory_for_it() -> None:
    """All contributions and both copies of results had it, all the time."""
    page, shape = 8192, SlotsShape(2, (8192, 8192, 8192), is_lasting=False)
    daemon = Slots.create(shape)
    rank = attach(daemon, shape)
    present = shape.header_bytes + shape.model_bytes
    assert held(daemon) == present, "the first copies of results"
    rank.contribution(1)[:] = b"c" * page
    assert held(daemon) == present + page
    assert daemon.contribution(1) == b"c" * page
    daemon.begin_result(1, 1)
    assert held(daemon) == present + 2 * page
    daemon.result(1, 1)[:] = b"n" * page
    daemon.publish_result(1, 1, 5)
    daemon.forget_contribution(1, 0)
    assert held(daemon) == present + page
    daemon.publish_result(1, 0, 4)
    daemon.forget_result(1, 0)
    assert held(daemon) == present
    assert rank.result_generation(1, 0) == 0, "who still reads there finds it torn"
    assert rank.result(1, 1) == b"n" * page
    assert rank.result_generation(1, 1) == 5
    for _ in range(2):
        daemon.expect_contribution(2)
        daemon.give_memory(2, 1)
        assert held(daemon) == present + 2 * page
    rank.contribution(1)[:] = b"d" * page
    assert daemon.contribution(1) == b"d" * page
    rank.close()
    daemon.close()


def test_what_lasts_is_not_forgotten() -> None:
    slots = Slots.create(SHAPE)
    slots.contribution(1)[:] = b"c" * 8192
    slots.publish_result(1, 0, 3)
    slots.forget_contribution(1, 0)
    slots.forget_result(1, 0)
    slots.expect_contribution(1)
    assert held(slots) == SHAPE.present_bytes
    assert slots.contribution(1) == b"c" * 8192
    assert slots.result_generation(1, 0) == 3
    slots.close()


def test_all_ranks_must_be_done_with_the_same_generation() -> None:
    slots = Slots.create(SHAPE)
    slots.set_done(1, 5, 0)
    assert not slots.all_done(1, 5)
    slots.set_done(1, 3, 1)
    assert not slots.all_done(1, 5), "rank 1 is still in the generation before"
    slots.set_done(1, 5, 1)
    assert slots.all_done(1, 5)
    for fragment, generation in ((0, 5), (1, 7), (1, 4)):
        assert not slots.all_done(fragment, generation)
    slots.clear_done(1, 0)
    assert not slots.all_done(1, 5), "rank 0 writes again"
    slots.close()


def test_a_result_is_torn_while_it_is_written() -> None:
    slots = Slots.create(SHAPE)
    assert slots.result_generation(0, 1) == 0
    slots.publish_result(0, 1, 7)
    assert slots.result_generation(0, 1) == 7
    for other in (0, MOVE):
        slots.begin_result(0, other)
        slots.publish_result(0, other, 8)
        assert slots.result_generation(0, 1) == 7, "the other places are not touched"
    slots.begin_result(0, 1)
    assert slots.result_generation(0, 1) == 0, "a reader of generation 7 finds it torn"
    slots.publish_result(0, 1, 9)
    assert slots.result_generation(0, 1) == 9
    slots.close()


def test_void_forgets_the_dead_ranks_and_keeps_the_data() -> None:
    slots = Slots.create(SHAPE)
    slots.count_step(0, 4)
    slots.count_step(1, 5)
    assert (slots.step_of_rank(0), slots.step_of_rank(1)) == (4, 5)
    slots.contribution(0)[:] = b"x" * 12
    for rank in range(SHAPE.ranks):
        slots.set_done(0, 1, rank)
        slots.set_done(1, 2, rank)
    slots.publish_result(1, 0, 2)

    slots.void()

    assert (slots.step_of_rank(0), slots.step_of_rank(1)) == (0, 0)
    assert not slots.all_done(0, 1)
    assert not slots.all_done(1, 2)
    assert slots.contribution(0) == b"x" * 12
    assert slots.result_generation(1, 0) == 2
    slots.close()


def test_words_of_many_ranks_do_not_overlap() -> None:
    shape = SlotsShape(ranks=11, fragment_bytes=(4, 4, 4))
    slots = Slots.create(shape)
    for rank in range(11):
        slots.count_step(rank, 100 + rank)
        for fragment in range(3):
            slots.set_done(fragment, (1 << 40) + fragment, rank)
            for place in range(COPIES):
                slots.publish_result(fragment, place, (1 << 40) + place)
            slots.contribution(fragment)[:] = b"abcd"
    assert [slots.step_of_rank(rank) for rank in range(11)] == list(range(100, 111))
    for fragment in range(3):
        assert slots.all_done(fragment, (1 << 40) + fragment)
        for place in range(COPIES):
            assert slots.result_generation(fragment, place) == (1 << 40) + place
    slots.close()


@pytest.mark.parametrize(
    "shape",
    [
        SlotsShape(ranks=2, fragment_bytes=(12, 16384)),
        SlotsShape(ranks=3, fragment_bytes=(12, 8192)),
        SlotsShape(ranks=2, fragment_bytes=(8192,)),
        SlotsShape(ranks=2, fragment_bytes=(8192, 12)),
    ],
)
def test_another_shape_is_refused(shape: SlotsShape) -> None:
    slots = Slots.create(SHAPE)
    with pytest.raises(SlotsError):
        attach(slots, shape)
    slots.close()


def test_a_file_that_may_shrink_is_refused() -> None:
    fd = os.memfd_create("plain", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, SHAPE.total_bytes)
    with pytest.raises(SlotsError, match="sealed"):
        Slots.attach(fd, SHAPE)
    reading, writing = os.pipe()
    with pytest.raises(SlotsError, match="bytes"):
        Slots.attach(reading, SHAPE)
    os.close(writing)


def test_a_file_without_a_name_is_shared_memory_and_has_all_its_blocks(tmp_path: Path) -> None:
    alone = SlotsShape(ranks=1, fragment_bytes=(12, 1 << 20))
    daemon = Slots.create(alone, tmp_path)
    blocks = os.fstat(daemon.fd).st_blocks
    assert blocks * 512 >= alone.total_bytes
    assert not is_memory(daemon.fd)
    rank = attach(daemon, alone)
    rank.contribution(1)[:] = b"c" * (1 << 20)
    for place in (0, 1, MOVE):
        daemon.begin_result(1, place)
        daemon.result(1, place)[:] = bytes([place + 10]) * (1 << 20)
        assert rank.result(1, place) == bytes([place + 10]) * (1 << 20)
        daemon.forget_result(1, place)
    assert daemon.contribution(1) == b"c" * (1 << 20)
    assert os.fstat(daemon.fd).st_blocks == blocks
    assert not list(tmp_path.iterdir())
    rank.close()
    daemon.close()


def test_a_file_with_a_name_is_refused(tmp_path: Path) -> None:
    named = tmp_path / "named"
    named.write_bytes(bytes(SHAPE.total_bytes))
    with pytest.raises(SlotsError, match="without a name"):
        Slots.attach(os.open(named, os.O_RDWR), SHAPE)


def test_the_size_cannot_change() -> None:
    slots = Slots.create(SHAPE)
    for size in (0, SHAPE.total_bytes + 4096):
        with pytest.raises(PermissionError):
            os.ftruncate(slots.fd, size)
    slots.close()


@pytest.mark.parametrize(("ranks", "sizes"), [(0, (4,)), (1, ()), (1, (6,)), (1, (0,)), (1, (-4,))])
def test_a_shape_that_cannot_be_is_refused(ranks: int, sizes: tuple[int, ...]) -> None:
    with pytest.raises(SlotsError):
        SlotsShape(ranks, sizes)


def test_close_leaves_views_that_are_still_held() -> None:
    slots = Slots.create(SHAPE)
    view = slots.result(0, 1)
    view[:] = b"y" * 12
    fd = slots.fd
    slots.close()
    slots.close()
    assert view == b"y" * 12
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
