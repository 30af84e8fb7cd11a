"""The file of frozen tensors: written once, and never half."""

from pathlib import Path

from lowcomm.checkpoints.frozen_file import FROZEN, path_to_write, publish


def test_it_has_its_name_once_all_ranks_have_written_it(tmp_path: Path) -> None:
    path = Path(path_to_write(tmp_path))
    path.write_bytes(b"half")
    assert not (tmp_path / FROZEN).exists()
    assert path_to_write(tmp_path) == str(path), "the ranks of this attempt were lost"
    path.write_bytes(b"whole")
    publish(tmp_path)
    assert (tmp_path / FROZEN).read_bytes() == b"whole"
    assert [each.name for each in tmp_path.iterdir()] == [FROZEN]
    assert path_to_write(tmp_path) == ""


def test_without_room_on_the_disk_there_is_none(tmp_path: Path) -> None:
    publish(tmp_path)
    assert list(tmp_path.iterdir()) == []
