"""A peer with a valid certificate sends forged messages: no other peer may raise an exception."""

import json

import pytest

from protocols.types.ids import PeerId
from sims.forged import main, run_seed
from sims.scenarios.forgery import FORGED, Forger
from tests.marks import few

FAILED_ONCE = (2, 11, 22)
"""A false Append used up the range of terms; a witness got a cut after its own false Join; a false
CaughtUp made its leader append an entry that no log may have."""
FRESH = 6
WITH_KEYS = {"Admit", "BulkKeys", "HandOn", "Leaves", "TunnelTicket"}
"""Messages with keys or hashes of fixed sizes, which are forged from those of a run only. No core
gets them, Leaves excepted."""


def test_every_kind_of_message_is_forged() -> None:
    forger = Forger(1)
    for _ in range(40_000):
        forger.forge([PeerId("a.00000000")])
    assert forger.made.keys() == {kind.__name__ for kind in FORGED} - WITH_KEYS


@pytest.mark.parametrize("seed", few(FAILED_ONCE, count=1))
def test_a_seed_that_failed_once_does_not_fail_again(seed: int) -> None:
    assert run_seed(seed).violations == []


@pytest.mark.parametrize("offset", few(range(FRESH), count=3))
def test_no_forged_message_raises_an_exception(offset: int, seed_base: int) -> None:
    result = run_seed(seed_base + offset)
    assert result.violations == [], f"python -m sims.forged --first {result.seed} --seeds 1"
    assert sum(result.happened.values()) > 50


def test_the_command_counts_what_it_sent(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(seeds=1, first=4711, processes=1, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (ended.value.code, told["violations"]) == (0, 0)
    assert sum(told["outcomes"].values()) > 500
