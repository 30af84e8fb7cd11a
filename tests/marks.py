"""Which cases `make test` runs, which only `make test-long`, and which only `make nightly`.

Must NOT be imported by what runs without pytest.
"""

from collections.abc import Iterable
from typing import Any, cast

import pytest

LONG = (pytest.mark.long,)
NIGHTLY = (pytest.mark.long, pytest.mark.nightly)
"""Of a case that is only a larger sample of others."""


def few(values: Iterable[Any], *, count: int) -> list[Any]:
    """Parameters of a test: the first `count` values always, all others in the long tests. A tuple
    gives several arguments."""
    return [
        pytest.param(*each, marks=() if place < count else LONG)
        for place, each in enumerate(as_arguments(value) for value in values)
    ]


def as_arguments(value: Any) -> tuple[Any, ...]:
    """A tuple as it is, and any other value as the only argument."""
    return cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
