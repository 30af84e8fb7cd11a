"""Paced nodes that are let in one after the other, so that a test knows which slot each one has.

Must NOT judge anything: the tests do.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from lowcomm.reports.events import Member, View
from sims.cluster.local_cluster import LocalCluster, LocalNode
from sims.paced.cluster import start_paced
from sims.paced.rank import RankSpeed
from tests.cluster.running import of, until

SLOTS = {"alpha": 0, "beta": 1, "gamma": 2, "delta": 3}
"""In the order in which they are let in."""


async def one_by_one(
    cluster: LocalCluster,
    names: Sequence[str],
    config: Path,
    *,
    pace: RankSpeed,
    first: LocalNode | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, LocalNode]:
    """Each is let in before the next one starts, so that its slot is known."""
    nodes: dict[str, LocalNode] = {}
    for name in names:
        join = await cluster.token_of(first) if first is not None else ""
        nodes[name] = start_paced(cluster, name, config, pace=pace, join=join, overrides=overrides)
        first = first or nodes[name]
        await asyncio.to_thread(is_in, first.directory, name)
    return nodes


def is_in(directory: Path, name: str) -> None:
    """Wait for it."""

    def look() -> bool:
        return name in [event.member_name for event in of(Member, directory)]

    until(look, within_s=40, what=f"{name} a member")


def roster_of(views: Sequence[View], step: int) -> Sequence[str]:
    """Of the newest view that reaches back so far: steps of older ones were taken back."""
    return next(view.roster for view in reversed(views) if view.first_round <= step)
