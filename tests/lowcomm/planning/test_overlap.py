"""The time of training beside transfers: by hand, and as Streaming DiLoCo's Table 4 has it."""

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from lowcomm.planning.overlap import Transfer, compute_share, period_seconds

PUBLISHED: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("streaming_table.toml").read_text("utf-8")
)
SENT = 0.85
"""The share of the stated number of parameters that the published cells agree best with: fitted,
the same for all cells."""
INNER_STEPS = 100
FRAGMENT_LAYERS = 3
FORWARD = 1 / 3
"""The share of a step that is its forward pass; layers take equal times in both passes."""
BINS, BINS_PER_DECADE = 50, 49 / 4
"""The published cells are places of numpy.logspace(-1, 3, 50)."""


def test_a_transfer_that_steps_hide_takes_no_time() -> None:
    hidden = Transfer(ready=10, needed=12, line_s=1.5, delay_s=0.5)
    assert period_seconds([hidden], steps=10, step_s=1.0) == 10.0
    assert compute_share([], steps=10, step_s=1.0) == 1.0


def test_training_stands_until_a_transfer_has_arrived() -> None:
    waited_for = Transfer(ready=10, needed=10, line_s=4.0, delay_s=1.0)
    assert period_seconds([waited_for], steps=10, step_s=1.0) == 15.0
    late = Transfer(ready=10, needed=12, line_s=4.0, delay_s=1.0)
    assert period_seconds([late], steps=10, step_s=1.0) == 13.0


def test_transfers_follow_each_other_on_the_line() -> None:
    first = Transfer(ready=5, needed=6, line_s=3.0)
    second = Transfer(ready=6, needed=7, line_s=3.0)
    # The first makes training stand for two seconds. At place 6, in second 8, the line is free.
    assert period_seconds([first, second], steps=10, step_s=1.0) == 14.0
    together = [Transfer(ready=5, needed=9, line_s=3.0), Transfer(ready=5, needed=9, line_s=3.0)]
    assert period_seconds(together, steps=10, step_s=1.0) == 12.0


def test_a_line_that_is_always_full_sets_the_pace() -> None:
    parts = [Transfer(ready=step, needed=step + 1, line_s=3.0) for step in range(1, 5)]
    assert period_seconds(parts, steps=4, step_s=1.0) == pytest.approx(12.0)


def test_an_exchange_that_is_needed_a_period_later() -> None:
    eager = Transfer(ready=10, needed=20, line_s=15.0)
    assert period_seconds([eager], steps=10, step_s=1.0) == 15.0


def layer_transfers(layers: int, *, method: str, param_s: float) -> tuple[list[Transfer], int]:
    """(the transfers of a period, its inner steps). A layer is sent when its backward pass has
    ended, and needed in its forward pass of the next step, or `tau` steps later. `param_s`: seconds
    on the line for all parameters."""
    if method == "Data-Parallel":
        fragments, steps = [list(range(layers))], 1
    elif method == "DiLoCo":
        fragments, steps = [list(range(layers))], INNER_STEPS
    else:
        count, steps = layers // FRAGMENT_LAYERS, INNER_STEPS
        fragments = [list(range(first, layers, count)) for first in range(count)]  # Strided.
    tau = 1 if "overlap" in method else 0
    found: list[Transfer] = []
    for number, fragment in enumerate(fragments):
        begin = number * steps // len(fragments)
        for layer in reversed(fragment):
            found.append(
                Transfer(
                    ready=begin + 1 - (1 - FORWARD) * layer / layers,
                    needed=begin + 1 + tau + FORWARD * layer / layers,
                    line_s=param_s / layers,
                )
            )
    return found, steps


def rate_gbits(place: int) -> float:
    return 10 ** (place / BINS_PER_DECADE - 1)


def printed_places(gbits: float) -> list[int]:
    """The places that are printed so: two of them as 0.4. If none is, the nearest."""
    same = [place for place in range(BINS) if f"{rate_gbits(place):.1f}" == f"{gbits:.1f}"]
    return same or [round((math.log10(gbits) + 1) * BINS_PER_DECADE)]


def needed_place(model: dict[str, Any], method: str, share: float) -> int:
    """The first place of the published axis at which the model reaches the share."""
    bits = 4 if "FP4" in method else 16

    def is_enough(place: int) -> bool:
        sent_s = SENT * model["params"] * bits / (1e9 * rate_gbits(place))
        transfers, steps = layer_transfers(model["layers"], method=method, param_s=sent_s)
        return compute_share(transfers, steps=steps, step_s=model["step_s"]) >= share

    low, high = -1, BINS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def test_table_4_of_streaming_diloco() -> None:
    """All 75 cells are within 2 places, and at least 60 are the very same."""
    off: dict[tuple[str, str, float], int] = {}
    for model in PUBLISHED["models"]:
        for method, cells in model["gbits"].items():
            for share, gbits in zip(PUBLISHED["shares"], cells, strict=True):
                found = needed_place(model, method, share)
                away = [found - place for place in printed_places(gbits)]
                off[model["name"], method, share] = min(away, key=abs)
    assert len(off) == 75
    assert max(map(abs, off.values())) <= 2, off
    assert sum(not each for each in off.values()) >= 60, off
