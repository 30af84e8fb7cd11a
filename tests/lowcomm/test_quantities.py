"""Quantities as people write them."""

import pytest

from lowcomm.quantities import COUNT, RATE, SHARE, SIZE, TIME, Units, parse, show
from protocols.types.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "units", "value"),
    [
        ("100mbit", RATE, 1e8),
        ("1.5 Gbit", RATE, 1.5e9),
        (" 64kbit ", RATE, 64e3),
        ("50ms", TIME, 0.05),
        ("200us", TIME, 0.0002),
        (".5s", TIME, 0.5),
        ("1%", SHARE, 0.01),
        ("0", TIME, 0.0),
        ("64GiB", SIZE, 64 * 2**30),
        ("1.3B", COUNT, 1.3e9),
        ("857216", COUNT, 857216.0),
        ("0.0", SHARE, 0.0),
    ],
)
def test_a_quantity_is_a_number_and_its_unit(text: str, units: Units, value: float) -> None:
    assert parse(text, units, what="--x") == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("100", RATE),
        ("100mbps", RATE),  # Bytes for tc, bits for others.
        ("-1ms", TIME),
        ("1e3ms", TIME),
        ("5%", TIME),
        ("0.01", SHARE),
        ("", TIME),
        ("ms", TIME),
        ("1,5s", TIME),
        ("nan s", TIME),
        ("\N{ARABIC-INDIC DIGIT ONE}ms", TIME),
    ],
)
def test_what_is_none_is_refused_with_an_example(text: str, units: Units) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(text, units, what="--x")
    assert str(raised.value).startswith("--x ")
    assert str(raised.value).endswith(units.example)


def test_shown_in_the_largest_unit_that_fits() -> None:
    assert show(1e8, RATE) == "100mbit"
    assert show(0.0503, TIME) == "50.3ms"
    assert show(0.0, TIME) == "0us"
