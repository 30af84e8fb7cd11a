"""A real daemon that falsifies the results of its part: found before the commit, named, removed."""

import asyncio
from pathlib import Path

import pytest

from lowcomm.reports.events import Attempt, Commit, Lost
from sims.cluster.local_cluster import LocalCluster
from sims.paced.cluster import start_paced
from sims.paced.rank import RankSpeed
from tests.cluster.running import commits_until, marked_processes, of, write_config
from tests.marks import few

NAMES = ("alpha", "beta", "gamma")
LIE_ROUND = 4
PACE = RankSpeed(elements=800_000)
"""3.2 MB: a part for each of three peers."""


@pytest.mark.deadline(90)
@pytest.mark.parametrize("percent", few([1, 100], count=1))
def test_a_lying_owner_is_removed_and_comes_back_without_a_part(
    tmp_path: Path, percent: int
) -> None:
    config, run_dir = write_config(tmp_path, peers=3, rounds=100_000), tmp_path / "run"

    async def play() -> None:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(80):
            first = start_paced(cluster, NAMES[0], config, pace=PACE)
            token = await cluster.token_of(first)
            fault = f"lie@round={LIE_ROUND},percent={percent}"
            start_paced(cluster, NAMES[1], config, pace=PACE, join=token)
            start_paced(cluster, NAMES[2], config, pace=PACE, join=token, fault=fault)
            await asyncio.to_thread(commits_until, run_dir / NAMES[0], LIE_ROUND + 3, within_s=60)

    asyncio.run(play())
    assert marked_processes() == {}
    states: dict[int, set[str]] = {}
    for name in NAMES:
        for commit in of(Commit, run_dir / name):
            states.setdefault(commit.round, set()).add(commit.state_digest)
    assert all(len(found) == 1 for found in states.values())
    alpha = run_dir / NAMES[0]
    told = [attempt for attempt in of(Attempt, alpha) if "wrong result" in attempt.why]
    # A peer that the machine held up is lost as well, for its silence; it is not accused.
    accused = [event.member_name for event in of(Lost, alpha) if "falsified" in event.why]
    if percent == 100:
        assert accused == ["gamma"], "two peers found it"
        assert told
    # One of a hundred blocks is found with a probability of 95 %, by one peer or by both.
    assert set(accused) <= {"gamma"}
    assert all(each.round == LIE_ROUND and "gamma is" in each.why for each in told)
