"""What is on the disk when we say so."""

from pathlib import Path

import pytest

from lowcomm.durable import make_empty, sync


def test_a_new_directory_is_empty_whatever_was_there(tmp_path: Path) -> None:
    made = tmp_path / "deep" / "new"
    make_empty(made)
    (made / "torn").write_text("half", encoding="utf-8")
    make_empty(made)
    assert list(made.iterdir()) == []
    sync(made)


def test_what_is_not_there_cannot_be_on_the_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sync(tmp_path / "missing")
