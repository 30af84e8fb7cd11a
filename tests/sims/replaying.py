"""Seeds that showed a bug once, for a test that plays them again."""

from collections.abc import Sequence

import pytest


def replayed(seeds: Sequence[int], *, newest: int) -> pytest.MarkDecorator:
    """Runs the test with each `seed`; with all but the `newest` last ones it is a long test."""
    older = [pytest.param(seed, marks=pytest.mark.long) for seed in seeds[:-newest]]
    return pytest.mark.parametrize("seed", [*older, *seeds[-newest:]])
