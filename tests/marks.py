"""Which of a test's parameters `make test` runs, and which only `make test-long`."""

from collections.abc import Iterable
from typing import Any

import pytest


def few(values: Iterable[Any], *, count: int) -> list[Any]:
    """Parameters of a test: the first `count` values always, all others in the long tests. A tuple
    gives several arguments."""
    params: list[Any] = []
    for place, value in enumerate(values):
        arguments: Any = value if isinstance(value, tuple) else (value,)
        marks = () if place < count else (pytest.mark.long,)
        params.append(pytest.param(*arguments, marks=marks))
    return params
