"""The entries of regressions.toml: each is complete, and each seed is listed once."""

from collections import Counter
from pathlib import Path

import pytest

from tests.sims.replaying import failed_once, read_regressions

ROOT = Path(__file__).parent.parent.parent
ENTRIES = read_regressions()
SWEEPS = ("sweep", "step_sweep", "gossip_sweep", "hidden")
NEEDED = {"sweep", "seeds", "seen", "mended"}
OPTIONAL = {"cause", "replay", "where", "test"}


def test_every_entry_has_the_keys_that_the_file_explains() -> None:
    for entry in ENTRIES:
        assert entry.keys() >= NEEDED, entry
        assert entry.keys() <= NEEDED | OPTIONAL, entry
        assert entry["sweep"] in (*SWEEPS, "test"), entry
        assert entry.get("where", "checker") in ("simulator", "checker"), entry
        assert entry.get("replay", False) is False, "it is the default to replay a seed"
        for key in entry.keys() & {"seen", "cause", "mended"}:
            assert entry[key] == entry[key].strip() != "", entry


def test_an_entry_names_seeds_or_a_test_that_exists() -> None:
    for entry in ENTRIES:
        assert entry["seeds"] or entry["sweep"] == "test", entry
        assert "test" in entry or entry["sweep"] != "test", entry
        assert "test" not in entry or (ROOT / entry["test"]).is_file(), entry


@pytest.mark.parametrize("sweep", SWEEPS)
def test_each_seed_of_a_sweep_is_listed_once(sweep: str) -> None:
    listed = Counter(seed for x in ENTRIES if x["sweep"] == sweep for seed in x["seeds"])
    assert [seed for seed, times in listed.items() if times > 1] == []


def test_the_seeds_to_replay_are_those_of_the_file_in_its_order() -> None:
    assert failed_once("sweep")[:3] == (1150, 1292, 14)
    assert 1021 not in failed_once("sweep"), "it is not replayed"
    assert all(failed_once(sweep) for sweep in SWEEPS)
