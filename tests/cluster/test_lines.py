"""A node on a slow line contributes, and is relieved of summing for others."""

import asyncio
from pathlib import Path

import pytest

from lowcomm.reports.events import Commit, Finished, View
from sims.cluster.local_cluster import LocalCluster, LocalNode
from sims.paced.cluster import start_paced
from sims.paced.rank import RankSpeed
from sims.wan import Wan, WanLink, why_not
from sims.wan.link import all_pairs
from tests.cluster.running import marked_processes, of, write_config

NAMES = ("alpha", "beta", "gamma")
ROUNDS = 8
PACE = RankSpeed(step_s=0.05, elements=1 << 20)
"""4 MiB: a part for each."""
USUAL, SLOW = WanLink(rate_bps=4e8, delay_s=0.005), WanLink(rate_bps=2e7, delay_s=0.005)


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.deadline(120)
def test_a_slow_line_owns_nothing_once_it_is_known(tmp_path: Path) -> None:
    if why := why_not("netns"):
        pytest.skip(why)
    config = write_config(tmp_path, peers=len(NAMES), rounds=ROUNDS)
    last = len(NAMES) - 1
    links = {pair: SLOW if last in pair else USUAL for pair in all_pairs(len(NAMES))}

    async def train(wan: Wan) -> None:
        async with LocalCluster(tmp_path / "run") as cluster:

            def start(name: str, token: str) -> LocalNode:
                place = wan.places[NAMES.index(name)]
                return start_paced(cluster, name, config, pace=PACE, join=token, place=place)

            await cluster.start_all(NAMES, start)
            async with asyncio.timeout(100):
                assert [await node.child.wait() for node in cluster.nodes] == [0, 0, 0]

    with Wan(links, peers=len(NAMES), means="netns") as wan:
        asyncio.run(train(wan))
    assert marked_processes() == {}
    views = [view for view in of(View, tmp_path / "run" / "alpha") if len(view.roster) == 3]
    owning = [[owner.rpartition(".")[0] for owner in view.owners] for view in views]
    assert owning == [["alpha", "beta", "gamma"], ["alpha", "beta"]], views
    commits = of(Commit, tmp_path / "run" / "alpha")
    assert {len(commit.roster) for commit in commits if commit.round >= views[0].first_round} == {3}
    assert views[1].first_round < ROUNDS
    assert len({event.state_digest for event in of(Finished, tmp_path / "run")}) == 1
