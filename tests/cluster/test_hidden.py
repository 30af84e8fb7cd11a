"""Real daemons that nobody can dial: they dial everyone, and each other through somebody else."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lowcomm.events import Commit, Traffic
from sims.paced import Pace
from sims.paced_cluster import paced_command
from tests.cluster.running import (
    Command,
    Shell,
    commits,
    commits_until,
    listens,
    new_shell,
    of,
    record,
    token_of,
    until,
    write_config,
)

PACE = Pace(step_s=0.01, elements=1 << 20)
HIDDEN = ("--set", "node.listen=none")


class Run(Shell):
    """Paced nodes, each in its own directory."""

    def node(self, name: str, *arguments: str) -> Command:
        directory = json.dumps(str(self.directory / name))
        own = ("--set", f"node.name={name}", "--set", f"node.directory={directory}")
        pace = ("--", *paced_command(PACE))
        return self.start("peer", "run.toml", *arguments, *own, *pace)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    write_config(tmp_path, peers=1, rounds=100_000)
    with new_shell(tmp_path) as shell:
        shell.__class__ = Run
        assert isinstance(shell, Run)
        yield shell


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


@pytest.mark.deadline(150)
def test_two_that_nobody_can_dial_go_on_through_another_one_when_the_first_dies(
    run: Run, tmp_path: Path
) -> None:
    run.node("alpha", "--new")
    alpha = tmp_path / "alpha"
    word = token_of(alpha)
    commits_until(alpha, 1)
    for name in ("beta", "gamma"):
        run.node(name, *HIDDEN, "--join", word)
    counts_together(alpha, ["alpha", "beta", "gamma"])
    for name in ("beta", "gamma"):
        assert record(tmp_path / name)["address"] == ""
    run.node("delta", "--join", word)
    counts_together(tmp_path / "beta", ["alpha", "beta", "delta", "gamma"])
    run.kill(alpha)
    counts_together(tmp_path / "beta", ["beta", "delta", "gamma"])
    counts_together(tmp_path / "gamma", ["beta", "delta", "gamma"])

    def relayed() -> bool:
        told = of(Traffic, tmp_path / "delta")[-1:]
        return any(sum(each.relay_sent_bytes) > 1 << 20 for each in told)

    until(relayed, within_s=30, what="delta telling that it carried payload")


@pytest.mark.deadline(90)
def test_who_begins_a_run_has_to_be_reachable(run: Run, tmp_path: Path) -> None:
    command = run.node("alpha", *HIDDEN, "--new")
    assert command.wait(within_s=20) == 2
    assert 'node.listen: "none" is for who joins' in command.err


@pytest.mark.deadline(90)
@pytest.mark.parametrize(
    ("listen", "advertise"),
    [("[::1]:0", ""), ("127.0.0.1:0", "localhost:0"), ("[::]:0", "[::1]:0")],
)
def test_names_and_ipv6_addresses_work(
    run: Run, tmp_path: Path, listen: str, advertise: str
) -> None:
    """What others dial is what `advertise` says, and else where a node listens."""
    where = ("--set", f'node.listen="{listen}"', "--set", f'node.advertise="{advertise}"')
    run.node("alpha", *where, "--new")
    alpha, host = tmp_path / "alpha", (advertise or listen).rpartition(":")[0]
    assert listens(alpha).rpartition(":")[0] == host
    run.node("beta", *where, "--join", token_of(alpha))
    counts_together(alpha, ["alpha", "beta"])
    assert listens(tmp_path / "beta").rpartition(":")[0] == host
