"""What is moved, and what is drawn."""

import xml.etree.ElementTree as ET

import pytest

from benchmarks.peers import chart, main, moved_bytes
from protocols.types.errors import ConfigError


def test_what_all_but_the_owner_contribute_and_get_is_moved() -> None:
    assert moved_bytes(2, 1 << 20, "fp32") == 8 << 20
    assert moved_bytes(16, 1 << 20, "fp32") == 15 * (8 << 20)
    assert moved_bytes(2, 1 << 20, "int8") < 1.02 * (2 << 20)


@pytest.mark.parametrize("typed", ["", "1", "2,x", "17"])
def test_a_number_of_peers_that_cannot_be_is_said_before_anything_starts(typed: str) -> None:
    with pytest.raises(ConfigError, match=f"--peers {typed}: give numbers from 2 to 16"):
        main(numbers=typed)


def test_the_chart_is_a_file_of_its_own() -> None:
    rows = [{"peers": n, "theory_s": float(n), "data_path_s": 1.1 * n} for n in (2, 4)]
    drawn = ET.fromstring(chart(rows, what="1 MiB"))
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    lines = drawn.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2
