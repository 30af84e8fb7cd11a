"""The bugs of regressions.toml, and their seeds for tests that play them again."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.marks import NIGHTLY

REGRESSIONS = Path(__file__).parent / "regressions.toml"


def read_regressions() -> list[dict[str, Any]]:
    """All entries of regressions.toml, in file order: the bug that was found first comes first."""
    return tomllib.loads(REGRESSIONS.read_text("utf-8"))["regression"]


def failed_once(sweep: str) -> tuple[int, ...]:
    """The seeds of this sweep that are replayed, in file order: the newest one comes last."""
    entries = [x for x in read_regressions() if x["sweep"] == sweep and x.get("replay", True)]
    return tuple(seed for entry in entries for seed in entry["seeds"])


def replayed(seeds: Sequence[int], *, newest: int, recent: int) -> pytest.MarkDecorator:
    """Runs the test with each `seed`: with the `newest` last ones always, with the `recent` ones
    before them in the long tests, and with all others, which may draw other faults by now, in the
    nightly ones."""
    sure, begin = len(seeds) - newest, len(seeds) - newest - recent
    old = [pytest.param(seed, marks=NIGHTLY) for seed in seeds[:begin]]
    later = [pytest.param(seed, marks=pytest.mark.long) for seed in seeds[begin:sure]]
    return pytest.mark.parametrize("seed", [*old, *later, *seeds[sure:]])
