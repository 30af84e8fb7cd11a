"""Peers die, leave and join while others train: real daemons, and ranks that compute little."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from lowcomm.config.schema import load_config
from lowcomm.reports.events import (
    Attempt,
    Commit,
    Elected,
    Event,
    Fault,
    Finished,
    Left,
    Lost,
    Member,
    RanksLost,
    Stopped,
    Waiting,
)
from lowcomm.reports.summary import build_summary
from lowcomm.reports.timeline import read_timeline
from sims.cluster.launch import Watch, supervise
from sims.cluster.local_cluster import LocalCluster
from sims.cluster.process_tree import descendants
from sims.paced.cluster import start_all, start_paced
from sims.paced.rank import RankSpeed
from tests.cluster import once_wrong
from tests.cluster.paced_shell import PacedShell
from tests.cluster.running import (
    alive,
    commits,
    commits_until,
    ending,
    marked_processes,
    of,
    token_of,
    until,
    write_config,
)
from tests.marks import NIGHTLY

KILL_ROUND = 4


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PacedShell]:
    with ending(PacedShell(tmp_path)) as made:
        yield made


@pytest.mark.deadline(120)
@pytest.mark.parametrize(
    ("elements", "chunk"),
    [
        pytest.param(100_000, 1, marks=NIGHTLY),  # One part: its only chunk is the contribution.
        (780_000, 3),  # Three parts: of the result that it owns.
    ],
)
@pytest.mark.long
@pytest.mark.alone
def test_a_peer_dies_in_a_reduction_and_a_new_one_joins(
    elements: int, chunk: int, tmp_path: Path
) -> None:
    rounds, pace = 100, RankSpeed(step_s=0.02, elements=elements)
    config = write_config(tmp_path, peers=3, rounds=rounds, inner=10)
    run, run_dir = load_config(config).run, tmp_path / "run"
    assert run is not None
    committed = asyncio.Event()

    def look(event: Event) -> None:
        if isinstance(event, Commit) and event.round >= KILL_ROUND + 1:
            committed.set()

    async def start(watch: Watch) -> None:
        watch.on_event = look
        begin = partial(start_paced, watch.cluster, config=config, pace=pace)
        token = await watch.cluster.token_of(begin("alpha"))
        begin("beta", join=token)
        begin("gamma", join=token, fault=f"kill@round={KILL_ROUND},chunk={chunk}")
        await committed.wait()
        begin("delta", join=token)

    with (tmp_path / "console").open("w", encoding="utf-8") as file:
        code = asyncio.run(supervise(run_dir, run, start, console=Console(file=file)))
    assert code == 0
    events = read_timeline(run_dir).events
    (fault,) = [event for event in events if isinstance(event, Fault)]
    assert fault.name == "gamma"
    assert KILL_ROUND not in commits(run_dir / "gamma")
    for name in ("alpha", "beta"):
        assert commits(run_dir / name) == list(range(1, rounds + 1))  # In order, each once.
        assert "gamma" in {event.member_name for event in of(Lost, run_dir / name)}
    assert any(event.counted for event in of(Commit, run_dir / "delta"))
    ends = [event for event in events if isinstance(event, Finished)]
    assert sorted(event.name for event in ends) == ["alpha", "beta", "delta"]
    assert len({event.state_digest for event in ends}) == 1
    assert {event.outer_steps for event in ends} == {rounds}
    by_round: dict[int, set[str]] = {}
    for event in events:
        if isinstance(event, Commit):
            by_round.setdefault(event.round, set()).add(event.state_digest)
    assert all(len(digests) == 1 for digests in by_round.values())

    summary = build_summary(run_dir, run={})
    assert summary.digests_agree
    assert summary.kill_to_next_commit_s is not None
    assert summary.join_to_member_s is not None
    assert summary.join_to_contribution_s is not None
    assert 0 <= summary.kill_to_next_commit_s <= 1.5
    assert 0 < summary.join_to_member_s <= 8
    assert summary.join_to_member_s < summary.join_to_contribution_s
    assert (run_dir / "summary.json").exists()
    assert marked_processes() == {}


@pytest.mark.long
@pytest.mark.deadline(60)
def test_a_peer_that_is_told_to_go_leaves_and_a_killed_one_takes_its_ranks_along(
    shell: PacedShell, tmp_path: Path
) -> None:
    config = str(write_config(tmp_path, peers=3, rounds=100_000))
    alpha, beta, gamma = (tmp_path / name for name in ("alpha", "beta", "gamma"))
    shell.peer("alpha", config, "--new")
    token = token_of(alpha)
    leaver = shell.peer("beta", config, "--join", token)
    victim = shell.peer("gamma", config, "--join", token, "--set", "node.ranks=2")
    commits_until(gamma, 2)

    leaver.signal(signal.SIGINT)
    assert leaver.wait(within_s=5) == 130
    until(lambda: of(Left, alpha), within_s=5, what="alpha saying that beta left")
    assert [event.member_name for event in of(Left, alpha)] == ["beta"]
    (stopped,) = of(Stopped, beta)
    assert "SIGINT" in stopped.why
    assert "Traceback" not in leaver.err
    had = commits(gamma)[-1]
    commits_until(gamma, had + 3)  # The others go on.

    ranks = descendants(victim.pid)
    assert len(ranks) >= 3  # A zygote and two ranks.
    victim.signal(signal.SIGKILL)
    until(lambda: not alive(ranks), within_s=5, what="the ranks gone")
    until(lambda: of(Lost, alpha), within_s=5, what="alpha missing gamma")
    had = commits(alpha)[-1]
    commits_until(alpha, had + 3)
    assert {event.member_name for event in of(Member, alpha)} == {"alpha", "beta", "gamma"}


@pytest.mark.deadline(90)
def test_the_first_peer_dies_and_the_others_elect_another(
    shell: PacedShell, tmp_path: Path
) -> None:
    write_config(tmp_path, peers=3, rounds=100_000)
    first = shell.node("alpha", "--new")
    token = token_of(tmp_path / "alpha")
    for name in ("beta", "gamma"):
        shell.node(name, "--join", token)
    beta, gamma = tmp_path / "beta", tmp_path / "gamma"
    commits_until(beta, 3)
    ranks = descendants(first.pid)
    first.signal(signal.SIGKILL)
    until(lambda: not alive(ranks), within_s=5, what="its ranks gone")
    commits_until(beta, commits(beta)[-1] + 3)
    commits_until(gamma, commits(beta)[-1])
    until(lambda: of(Lost, beta), within_s=10, what="alpha struck from the log")
    assert [event.member_name for event in of(Lost, beta)] == ["alpha"]
    leaders = [event.leader_name for event in of(Elected, beta)]
    assert leaders[-1] in ("beta", "gamma")
    digests: dict[int, set[str]] = {}
    for event in (*of(Commit, beta), *of(Commit, gamma)):
        digests.setdefault(event.round, set()).add(event.state_digest)
    assert {len(found) for found in digests.values()} == {1}


@pytest.mark.long
@pytest.mark.deadline(90)
def test_half_of_two_waits_and_goes_on_when_the_other_is_back(
    shell: PacedShell, tmp_path: Path
) -> None:
    """Neither may go on alone: the other may do the same."""
    write_config(tmp_path, peers=2, rounds=100_000)
    first = shell.node("alpha", "--new")
    second = shell.node("beta", "--join", token_of(tmp_path / "alpha"))
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    commits_until(beta, 3)
    first.signal(signal.SIGKILL)
    first.wait(within_s=5)
    until(
        lambda: [x for x in of(Waiting, beta) if "alpha cannot be reached" in x.reason],
        within_s=20,
        what="beta saying whom it waits for",
    )
    had = commits(beta)[-1]
    shell.start("resume", str(alpha), "--join", token_of(beta))
    commits_until(beta, had + 3)
    commits_until(alpha, had + 3)
    assert second.popen.poll() is None


@pytest.mark.deadline(60)
@pytest.mark.parametrize(
    ("what", "method", "told"),
    [
        pytest.param(
            "infinite",
            'inner_steps = 5\naggregate = "trimmed_mean"',
            "their parameters are not finite",
            marks=pytest.mark.long,
        ),
        ("infinite", "inner_steps = 5", "their parameters are not finite"),
        pytest.param(
            "infinite",
            'name = "streaming_diloco"\ninner_steps = 6\nfragments = 2\noverlap_steps = 1',
            "their parameters are not finite",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "infinite",
            'name = "eager_diloco"\ninner_steps = 5\ncontribution_codec = "fp4"',
            "their parameters are not finite",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "infinite",
            'name = "sparseloco"\ninner_steps = 5',
            "their parameters are not finite",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "weightless",
            "inner_steps = 5",
            "they contribute 5 steps, 0 tokens",
            marks=pytest.mark.long,
        ),
    ],
    ids=[
        "infinite-trimmed",
        "infinite",
        "infinite-fragments",
        "infinite-eager",
        "infinite-sparse",
        "weightless",
    ],
)
def test_ranks_that_went_wrong_are_replaced_and_nobody_else_notices(
    what: str, method: str, told: str, tmp_path: Path
) -> None:
    trims = "trimmed" in method
    others = ["alpha", "gamma"] if trims else ["alpha"]  # Of two nothing is trimmed.
    config = write_config(tmp_path, peers=len(others) + 1, rounds=100_000, method=method)
    run_dir = tmp_path / "run"
    alpha, beta = run_dir / "alpha", run_dir / "beta"
    program = [sys.executable, str(once_wrong.__file__), what, str(tmp_path / "marker")]

    def watch() -> None:
        until(lambda: of(RanksLost, beta), within_s=30, what="beta without its ranks")
        reached = max(commits(alpha), default=0)
        until(lambda: counted_after(reached + 1), within_s=30, what="beta counted again")

    def counted_after(round_: int) -> bool:
        return any(commit.counted and commit.round > round_ for commit in of(Commit, beta))

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(50):
            first, *more = await start_all(cluster, others, config, pace=once_wrong.PACE)
            token = cluster.invite(first)
            wrong = cluster.start_peer("beta", config, join=token, command=program)
            await asyncio.to_thread(watch)
            codes: list[int] = []
            for node in (wrong, *more, first):
                os.kill(node.child.pid, signal.SIGTERM)
                codes.append(await node.child.wait())
            return codes

    assert set(asyncio.run(play())) == {143}
    assert marked_processes() == {}
    assert of(RanksLost, alpha) == []
    (lost,) = of(RanksLost, beta)
    assert told in lost.why
    left_out = [event.why for event in of(Attempt, alpha) if "cannot be averaged" in event.why]
    assert bool(left_out) == (what == "infinite" and not trims)
    states: dict[tuple[int, int], set[str]] = {}
    for commit in of(Commit, run_dir):
        states.setdefault((commit.fragment, commit.round), set()).add(commit.state_digest)
    assert {len(digests) for digests in states.values()} == {1}
