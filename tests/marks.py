"""Which of a test's parameters `make test` runs, and which only `make test-long`."""

from collections.abc import Iterable
from typing import Any, cast

import pytest


def few(values: Iterable[Any], *, count: int) -> list[Any]:
    """Parameters of a test: the first `count` values always, all others in the long tests. A tuple
    gives several arguments."""
    later = pytest.mark.long
    return [
        pytest.param(*each, marks=() if place < count else later)
        for place, each in enumerate(as_arguments(value) for value in values)
    ]


def as_arguments(value: Any) -> tuple[Any, ...]:
    """A tuple as it is, and any other value as the only argument."""
    return cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
