"""Arrays in files, named and shaped as the model's parameters."""

from pathlib import Path

import numpy as np
import pytest

from lowcomm.checkpoints.tensor_files import CheckpointError, LayoutEntry, read_arrays, write_arrays


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([("a", (23,), 0), ("a", (0,), 23)], "two parameters are named a"),
        ([("a", (22,), 0)], "the layout has 22 elements, the fragment 23"),
        ([("a", (11,), 0), ("b", (11,), 12)], "b begins at element 12, expected 11"),
        ([("a", (24,), 0)], "the layout has 24 elements, the fragment 23"),
    ],
)
def test_a_layout_that_does_not_fit_is_not_written(
    tmp_path: Path, entries: list[LayoutEntry], why: str
) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(CheckpointError, match=why):
        write_arrays(path, [entries], [np.ones(23, np.float32)])
    assert not path.exists()


def test_what_is_written_is_read_parameter_by_parameter(tmp_path: Path) -> None:
    path, layout = tmp_path / "model.safetensors", [[("a", (2, 3), 0), ("b", (), 6)]]
    array = np.arange(7, dtype=np.float32)
    write_arrays(path, layout, [array])
    (found,) = read_arrays(path, layout)
    assert found.tobytes() == array.tobytes()
    (swapped,) = read_arrays(path, [[("b", (), 0), ("a", (2, 3), 1)]])
    assert swapped.tolist() == [6, 0, 1, 2, 3, 4, 5], "each at its own offset"
