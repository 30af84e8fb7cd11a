"""Environments are kept, and found again by what is in them."""

import sys
from pathlib import Path

import pytest

from benchmarks.exchanging import venvs
from protocols.types.errors import LowcommError


def test_a_name_says_what_is_in_it() -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert venvs.environment_name(("a==1", "b==2.0")) == f"a-1-b-2.0-{version}"


def test_a_complete_environment_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    directory = venvs.cache_directory() / venvs.environment_name(("a==1",))
    directory.mkdir(parents=True)
    (directory / venvs.MADE).write_text(venvs.host_paths(), encoding="utf-8")
    told: list[str] = []
    assert venvs.python_with(("a==1",), tell=told.append) == str(directory / "bin" / "python")
    assert told == []


def test_what_cannot_be_made_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(venvs.sys, "executable", "false")
    told: list[str] = []
    with pytest.raises(LowcommError, match="no environment for a==1: ") as caught:
        venvs.python_with(("a==1",), tell=told.append)
    assert "\n" not in str(caught.value)
    assert len(told) == 1
