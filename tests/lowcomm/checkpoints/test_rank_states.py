"""Which states of ranks are complete, and which one goes with a checkpoint."""

from pathlib import Path

import pytest

from lowcomm.checkpoints.rank_states import RANK_STATES, complete_for, newest_rank_state, round_of


def write(directory: Path, round_: int, *names: str) -> Path:
    place = directory / RANK_STATES / f"round-{round_:06d}"
    place.mkdir(parents=True, exist_ok=True)
    for name in names:
        (place / name).touch()
    return place


def test_a_state_is_complete_for_the_ranks_that_all_wrote(tmp_path: Path) -> None:
    ones, halves = "rank-0-of-1.safetensors", "rank-0-of-2.safetensors"
    place = write(tmp_path, 3, halves, ".rank-1-of-2.safetensors.writing", "notes")
    assert not complete_for(place)
    write(tmp_path, 3, "rank-1-of-2.safetensors", ones, "rank-2-of-3.safetensors")
    assert complete_for(place) == {1, 2}
    assert not complete_for(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("round-999999", 999_000),
        ("round-1000000", 999_000),
        ("round-1000001", 1_000_001),
        ("round-2000000", 1_000_001),
        ("round-998999", None),
        ("", None),
    ],
)
def test_rounds_are_compared_as_numbers(name: str, found: int | None, tmp_path: Path) -> None:
    for round_ in (999_000, 1_000_001):
        write(tmp_path, round_, "rank-0-of-1.safetensors")
    write(tmp_path, 999_500, "rank-0-of-2.safetensors")  # Its other rank was lost.
    (tmp_path / RANK_STATES / "round-notes").mkdir()
    path = newest_rank_state(tmp_path, name)
    assert (None if path is None else round_of(path.name)) == found
