"""What a daemon needs, and what it is told when it may not have it."""

from pathlib import Path

import pytest

from lowcomm.methods import DiLoCoMethod, RoundMethod, StreamingDiLoCoMethod
from lowcomm.startup.memory_budget import check_disk, check_memory, file_bytes, needed_bytes
from protocols.types.errors import ConfigError
from protocols.types.ids import TensorSpec


def eight(elements: int) -> list[TensorSpec]:
    return [TensorSpec(fragment, f"a{fragment}", (elements // 8,), 0) for fragment in range(8)]


def streaming(overlap_steps: int = 1) -> StreamingDiLoCoMethod:
    return StreamingDiLoCoMethod(inner_steps=16, fragments=8, overlap_steps=overlap_steps)


def test_memory_is_refused_with_both_figures() -> None:
    made = DiLoCoMethod()
    needed = needed_bytes([TensorSpec(0, "a", (30,), 0)], made, peers=9)
    assert needed == 4 * 30 * (2 + 2 + 4 + 2)
    check_memory(needed, memory_max_bytes=needed, free_bytes=0)
    check_memory(needed, memory_max_bytes=0, free_bytes=-(-10 * needed // 9))
    for limit, free in ((needed - 1, 1 << 60), (0, 10 * needed // 9 - 2)):
        with pytest.raises(ConfigError, match=r"^the daemon needs about 0\.00 GiB"):
            check_memory(needed, memory_max_bytes=limit, free_bytes=free)
    billion = needed_bytes([TensorSpec(0, "a", (1 << 30,), 0)], made, peers=1)
    with pytest.raises(ConfigError) as caught:
        check_memory(billion, memory_max_bytes=0, free_bytes=3 << 30)
    assert str(caught.value) == (
        "the daemon needs about 40.00 GiB for this model and may use 2.70 GiB (90 % of what is "
        "free): end other programs, take a smaller model or more run.method.fragments, set "
        'node.outer_state = "file" if the disk is fast, or set node.memory_max_bytes higher if the '
        "machine has it"
    )
    with pytest.raises(ConfigError, match=r"run\.method\.fragments, or set node\.memory_max_bytes"):
        check_memory(billion, memory_max_bytes=1, free_bytes=0, in_file=True)


@pytest.mark.parametrize("method", [DiLoCoMethod(), streaming()])
@pytest.mark.parametrize("joins", [False, True])
def test_a_model_of_1_gib_is_accepted_with_22_gib_free(method: RoundMethod, joins: bool) -> None:
    """It was refused: 60 bytes a parameter were demanded, of half of what was free."""
    layout = eight(1 << 28) if method.name != "diloco" else [TensorSpec(0, "a", (1 << 28,), 0)]
    needed = needed_bytes(layout, method, peers=2, joins=joins)
    check_memory(needed, memory_max_bytes=0, free_bytes=22 << 30)


def test_only_fragments_in_flight_are_counted_beyond_the_state() -> None:
    elements = 1 << 20
    assert needed_bytes(eight(elements), streaming(), peers=2) == 13 * elements
    assert needed_bytes(eight(elements), streaming(overlap_steps=3), peers=2) == 17 * elements
    assert needed_bytes(eight(elements), streaming(), peers=2, joins=True) == 16.5 * elements
    assert [streaming(overlap).in_flight(8) for overlap in (0, 1, 2, 3, 4, 15)] == [
        1,
        1,
        2,
        2,
        3,
        8,
    ]
    assert DiLoCoMethod().in_flight(1) == 1


@pytest.mark.parametrize("peers", [1, 2, 9])
def test_a_gather_needs_memory_for_what_each_contributes(peers: int) -> None:
    layout = [TensorSpec(0, "a", (9000,), 0)]
    made = DiLoCoMethod(contribution_codec="fp32", result_codec="gather")
    assert needed_bytes(layout, made, peers=peers) == 4 * (8 + 2 * peers) * 9000
    sparse = DiLoCoMethod(contribution_codec="topk")
    result = peers * sparse.codec.encoded_bytes(9000)
    assert needed_bytes(layout, sparse, peers=peers) == 4 * (8 + 5) * 9000 + 2 * result


def test_arrays_in_files_need_disk_and_no_memory() -> None:
    elements = 1 << 20
    layout = [TensorSpec(0, "a", (elements,), 0)]
    made = DiLoCoMethod()
    for joins in (False, True):  # What a joiner receives lies in files too.
        needed = needed_bytes(layout, made, peers=2, joins=joins, in_file=True)
        assert needed == 4 * (1 + 2) * elements, "slices of the others, and two results"
    assert needed_bytes(eight(elements), streaming(), peers=2, in_file=True) == 12 * elements // 8
    assert file_bytes(layout, made) == 4 * (5 + 3 * len(made.state_arrays)) * elements
    feedback = DiLoCoMethod(contribution_codec="topk")
    assert file_bytes(layout, feedback) == file_bytes(layout, made) + 4 * 5 * elements


def test_a_disk_without_room_is_refused_with_both_figures() -> None:
    place = Path("runs/alpha")
    check_disk(3 << 30, free_bytes=3 << 30, directory=place)
    with pytest.raises(ConfigError) as caught:
        check_disk(3 << 30, free_bytes=1 << 30, directory=place)
    assert str(caught.value) == (
        'node.outer_state is "file", for which this model needs about 3.00 GiB of disk, and 1.00 '
        "GiB are free in runs/alpha: free space there, set node.directory to a place on another "
        'disk, or node.outer_state = "memory"'
    )
