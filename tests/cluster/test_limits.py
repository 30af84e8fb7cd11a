"""Models as large as real ones: what is at a limit runs, what is beyond it is refused at once."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowcomm.checkpoints.checkpoint import newest_checkpoint, read_checkpoint
from lowcomm.reports.events import Listening, Member
from protocols.types.limits import TENSORS_MAX
from sims.paced.rank import RankSpeed
from tests.cluster.paced_shell import PacedShell, counts_together
from tests.cluster.running import commits, commits_until, ending, of, token_of, until, write_config
from tests.marks import LONG

NAME_CHARS = 200


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PacedShell]:
    with ending(PacedShell(tmp_path)) as made:
        yield made


def many(count: int, name_chars: int = NAME_CHARS) -> RankSpeed:
    return RankSpeed(step_s=0.02, elements=count, tensors=count, name_chars=name_chars)


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.deadline(240)
def test_a_joiner_comes_into_a_model_of_many_tensors_and_the_run_resumes(
    shell: PacedShell, tmp_path: Path
) -> None:
    """Seen with 12,000: the founder trained on, the joiner waited for the first entries of the log
    for ever, and nobody could resume."""
    write_config(tmp_path, peers=1, rounds=100_000)
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    count = 50_000
    shell.pace = many(count)
    every = ("--set", "node.checkpoint_every_rounds=2")
    nodes = [shell.node("alpha", "--new", *every)]
    commits_until(alpha, 1, within_s=60)
    nodes.append(shell.node("beta", "--join", token_of(alpha), *every))
    until(lambda: len(of(Member, alpha)) == 2, within_s=60, what="a second member")
    counts_together(alpha, ("alpha", "beta"), within_s=60)
    for node in nodes:
        node.signal(signal.SIGKILL)
        node.wait(within_s=10)
    had = commits(alpha)[-1]
    shell.start("resume", str(alpha))
    until(lambda: len(of(Listening, alpha)) == 2, within_s=30, what="alpha listening again")
    shell.start("resume", str(beta), "--join", token_of(alpha))
    commits_until(alpha, had + 4, within_s=60)
    newest, _ = newest_checkpoint(alpha / "checkpoints")
    assert newest is not None
    _, layout, _ = read_checkpoint(newest)
    assert sum(map(len, layout)) == count
    assert {len(name) for entries in layout for name, _, _ in entries} == {NAME_CHARS}


@pytest.mark.long
@pytest.mark.deadline(60)
@pytest.mark.parametrize(
    ("count", "name_chars"),
    [(18_867, 60), (4, 1024), (4, 129)],
)
def test_more_tensors_or_longer_names_than_once_fitted_are_trained(
    shell: PacedShell, tmp_path: Path, count: int, name_chars: int
) -> None:
    """Seen: with 18,867 tensors the ranks ended in a traceback, six times; with a name of 129
    characters the founder wrote what nobody could read."""
    write_config(tmp_path, peers=1, rounds=100_000)
    alpha = tmp_path / "alpha"
    shell.pace = many(count, name_chars)
    node = shell.node("alpha", "--new")
    commits_until(alpha, 2, within_s=30)
    complete = alpha / "checkpoints"
    until(lambda: newest_checkpoint(complete)[0] is not None, within_s=30, what="a checkpoint")
    node.signal(signal.SIGKILL)
    node.wait(within_s=10)
    had = commits(alpha)[-1]
    shell.start("resume", str(alpha))
    commits_until(alpha, had + 1, within_s=30)


@pytest.mark.deadline(60)
@pytest.mark.parametrize(
    ("count", "name_chars", "why"),
    [
        (TENSORS_MAX + 1, 0, "the model has 100,001 parameters, at most 100,000"),
        pytest.param(4, 1025, "its name takes 1,025 bytes in UTF-8, at most 1,024", marks=LONG),
    ],
)
def test_a_layout_beyond_the_limits_is_refused_once_in_one_line(
    shell: PacedShell, tmp_path: Path, count: int, name_chars: int, why: str
) -> None:
    write_config(tmp_path, peers=1, rounds=3)
    shell.pace = many(count, name_chars)
    node = shell.node("alpha", "--new")
    assert node.wait(within_s=50) == 2, node.err
    assert "Traceback" not in node.err + node.out
    (line,) = [line for line in node.err.splitlines() if line.startswith("lowcomm: ")]
    assert why in line
