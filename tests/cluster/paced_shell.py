"""Paced nodes that are started by the command line, each in its own directory."""

import json
from collections.abc import Sequence
from pathlib import Path

from lowcomm.reports.events import Commit
from sims.paced.cluster import paced_command
from sims.paced.rank import RankSpeed
from tests.cluster.running import Command, Shell, commits, of, until

PACE = RankSpeed(step_s=0.02, elements=4096)


class PacedShell(Shell):
    """`run.toml` is in its directory."""

    def __init__(self, directory: Path, pace: RankSpeed = PACE) -> None:
        super().__init__(directory)
        self.pace = pace

    def node(self, name: str, *arguments: str, before: str = "") -> Command:
        directory = json.dumps(str(self.directory / name))
        own = ("--set", f"node.name={name}", "--set", f"node.directory={directory}")
        pace = ("--", *paced_command(self.pace))
        return self.start("peer", "run.toml", *arguments, *own, *pace, before=before)


def counts_together(directory: Path, names: Sequence[str], *, within_s: float = 40) -> None:
    """A round was committed of which all of these were, after those that it knows already."""
    since = max(commits(directory), default=0)

    def look() -> bool:
        newest = of(Commit, directory)[-1:]
        return any(
            {peer.partition(".")[0] for peer in commit.roster} == set(names)
            for commit in newest
            if commit.round > since
        )

    until(look, within_s=within_s, what=f"a round of {names}")
