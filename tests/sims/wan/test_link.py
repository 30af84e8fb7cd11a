"""What a link may be."""

import pytest

from protocols.types.errors import ConfigError
from sims.wan.link import WanLink, all_pairs


@pytest.mark.parametrize(
    "fields",
    [
        {"rate_bps": 0.0},
        {"rate_bps": float("nan")},
        {"delay_s": -0.1},
        {"delay_s": 61.0},
        {"delay_s": 0.001, "jitter_s": 0.002},
        {"delay_s": float("nan")},
        {"loss": 1.1},
        {"loss": -0.1},
        {"queue_s": 0.0},
    ],
)
def test_a_link_that_cannot_be_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        WanLink(**fields)  # pyright: ignore[reportArgumentType]


def test_the_default_is_perfect() -> None:
    link = WanLink()
    assert (link.rate_bps, link.delay_s, link.loss, link.up) == (None, 0.0, 0.0, True)


def test_every_direction_is_a_link_of_its_own() -> None:
    assert all_pairs(3) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
