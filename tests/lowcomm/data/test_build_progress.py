"""When a build shows how far it is, and how it is stopped."""

import pytest

from lowcomm.data import build_progress
from lowcomm.data.build_progress import BuildProgress, BuildStoppedError


def test_it_is_shown_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(build_progress, "SHOWN_S", 3600.0)
    progress = BuildProgress(shown.append)
    progress.count(10**6)
    assert shown == []
    monkeypatch.setattr(build_progress, "SHOWN_S", -1.0)
    progress = BuildProgress(shown.append)
    progress.count(10**6)
    progress.count(2 * 10**6)
    assert shown == ["1 MB of text are read", "3 MB of text are read"]


def test_stopped_it_goes_no_further() -> None:
    progress = BuildProgress()
    progress.raise_if_stopped()
    progress.count(1)
    progress.request_stop()
    for goes_on in (progress.raise_if_stopped, lambda: progress.count(1)):
        with pytest.raises(BuildStoppedError, match="the node ends before"):
            goes_on()
