"""Real daemons that nobody can dial: they dial everyone, and each other through somebody else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lowcomm.reports.events import Traffic
from sims.paced.rank import RankSpeed
from tests.cluster.paced_shell import PacedShell, counts_together
from tests.cluster.running import (
    commits_until,
    ending,
    listens,
    of,
    record,
    token_of,
    until,
    write_config,
)

PACE = RankSpeed(step_s=0.01, elements=1 << 20)
HIDDEN = ("--set", "node.listen=none")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[PacedShell]:
    write_config(tmp_path, peers=1, rounds=100_000)
    with ending(PacedShell(tmp_path, PACE)) as shell:
        yield shell


@pytest.mark.long
@pytest.mark.deadline(150)
def test_two_that_nobody_can_dial_go_on_through_another_one_when_the_first_dies(
    run: PacedShell, tmp_path: Path
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
def test_who_begins_a_run_has_to_be_reachable(run: PacedShell, tmp_path: Path) -> None:
    command = run.node("alpha", *HIDDEN, "--new")
    assert command.wait(within_s=20) == 2
    assert 'node.listen: "none" is only for a node that joins' in command.err


@pytest.mark.long
@pytest.mark.deadline(90)
@pytest.mark.parametrize(
    ("listen", "advertise"),
    [
        ("127.0.0.1:0", "localhost:0"),
        ("[::]:0", "[::1]:0"),
        ("[::1]:0", ""),
    ],
)
def test_names_and_ipv6_addresses_work(
    run: PacedShell, tmp_path: Path, listen: str, advertise: str
) -> None:
    """What others dial is what `advertise` says, and else where a node listens."""
    where = ("--set", f'node.listen="{listen}"', "--set", f'node.advertise="{advertise}"')
    run.node("alpha", *where, "--new")
    alpha, host = tmp_path / "alpha", (advertise or listen).rpartition(":")[0]
    assert listens(alpha).rpartition(":")[0] == host
    run.node("beta", *where, "--join", token_of(alpha))
    counts_together(alpha, ["alpha", "beta"])
    assert listens(tmp_path / "beta").rpartition(":")[0] == host
