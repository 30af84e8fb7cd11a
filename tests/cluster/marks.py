"""Marks of cases that are not in each run of the tests.

Must NOT be imported by what runs without pytest.
"""

import pytest

LONG = (pytest.mark.long,)
NIGHTLY = (pytest.mark.long, pytest.mark.nightly)
"""Of a case that is only a larger sample of others."""
