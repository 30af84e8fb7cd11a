"""All processes of a run are killed at once: nothing that was complete is lost."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from lowcomm.checkpoints.checkpoint import CheckpointCut
from lowcomm.reports.events import Commit
from protocols.types.sample_ranges import count
from tests.cluster.running import of, write_config
from tests.cluster.sudden_deaths import NAMES, Place, SuddenDeaths, cuts

ENDLESS = 1_000_000
WINDOW = 64
"""Tokens of a sample, as `write_config` sets it."""


@pytest.mark.parametrize(
    ("inside", "anywhere", "seed"),
    [
        pytest.param(1, 1, 1, marks=(pytest.mark.long, pytest.mark.deadline(150))),
        pytest.param(
            5,
            10,
            None,
            marks=(pytest.mark.long, pytest.mark.nightly, pytest.mark.deadline(1200)),
        ),
    ],
)
def test_a_run_goes_on_from_its_newest_complete_cut_and_its_ledger_is_exact(
    tmp_path: Path, seed_base: int, *, inside: int, anywhere: int, seed: int | None
) -> None:
    config, run_dir = write_config(tmp_path, peers=len(NAMES), rounds=ENDLESS), tmp_path / "run"
    drawn = random.Random(seed_base if seed is None else seed)
    run = SuddenDeaths(run_dir, config, drawn)
    wanted = Counter[Place]({"checkpoint": inside, "reduction": inside, "any": anywhere})
    asyncio.run(run.play(wanted))

    deaths = run.deaths
    places = Counter(place for death in deaths for place in death.inside)
    assert len(deaths) >= wanted.total()
    assert min(places["checkpoint"], places["reduction"]) >= inside
    commits = of(Commit, run_dir)
    for death, later in zip(deaths, [*deaths[1:], None], strict=True):
        base, since = death.newest, later.began if later is not None else run.began
        until = later.t if later is not None else float("inf")
        first = [each.round for each in commits if since < each.t < until]
        # A death before its first round leaves the next one the same cut.
        assert first[:1] in ([], [(base.round if base is not None else 0) + 1]), death
        for cut in death.cuts:
            is_exact(cut, [each for each in commits if each.t < death.t])
    ends = cuts(run_dir)
    for cut in ends:
        is_exact(cut, commits)
    assert {cut.lineage for cut in ends} == {ends[0].lineage}
    assert_one_state(commits)


def is_exact(cut: CheckpointCut, commits: Sequence[Commit]) -> None:
    """Each sample that is committed at the cut was counted in one round that leads to it."""
    leading = {each.round: each for each in commits if each.round <= cut.round}
    assert sorted(leading) == list(range(1, cut.round + 1))
    tokens = sum(each.tokens for each in leading.values())
    remaining = cut.remaining
    assert cut.fragments[0].tokens == tokens
    assert WINDOW * (remaining.frontier - count(remaining.samples)) == tokens


def assert_one_state(commits: Sequence[Commit]) -> None:
    """Both nodes had it after each round of each branch."""
    digests: dict[tuple[str, int], set[str]] = {}
    for each in commits:
        digests.setdefault((each.lineage, each.round), set()).add(each.state_digest)
    assert {len(found) for found in digests.values()} == {1}
