"""Who gets into a run of real daemons, and who does not."""

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lowcomm.reports.events import Listening, Member, Note
from lowcomm.startup.join_tokens import new_token, sealed_token
from peers.security.certificates import CA_KEY, Authority
from protocols.state.tokens import Token, decode_token, encode_token
from sims.paced.cluster import paced_command
from tests.cluster.paced_shell import PACE, PacedShell
from tests.cluster.running import (
    commits,
    commits_until,
    ending,
    listens,
    most_until_listening_s,
    of,
    record,
    token_of,
    until,
    write_config,
)

IMPATIENT = "import peers.connections.dialer\npeers.connections.dialer.FIRST_DIAL_S = 0.1"
INSECURE = ("--set", "node.insecure=true")


class Run(PacedShell):
    """One that knows how refusals look."""

    def refused(self, name: str, *arguments: str, words: Sequence[str], before: str = "") -> None:
        command = self.node(name, *arguments, before=before)
        assert command.wait(within_s=20) == 3, command.err
        (line,) = [line for line in command.err.splitlines() if line.startswith("lowcomm: ")]
        for word in words:
            assert word in line


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    write_config(tmp_path, peers=1, rounds=100_000)
    with ending(Run(tmp_path)) as shell:
        yield shell


def admitted(directory: Path) -> list[str]:
    """One text for each node that the node with this directory admitted."""
    notes = [event for event in of(Note, directory) if event.topic == "admission"]
    return [event.text for event in notes if "is admitted" in event.text]


def is_member(of_: Path, name: str) -> bool:
    return any(event.member_name == name for event in of(Member, of_))


@pytest.mark.long
@pytest.mark.deadline(90)
def test_only_a_token_of_the_run_lets_in_and_not_for_ever(run: Run, tmp_path: Path) -> None:
    run.node("alpha", "--new")
    alpha = tmp_path / "alpha"
    word = token_of(alpha, uses=1)
    commits_until(alpha, 1)
    run.node("beta", "--join", word)
    until(lambda: is_member(alpha, "beta"), within_s=20, what="beta a member")
    run.refused("gamma", "--join", word, words=["refused by", "used up", "lowcomm token"])
    late = new_token(alpha, hours=1e-9)
    run.refused("gamma", "--join", late, words=["refused by", "expired", "lowcomm token"])
    forged = replace(decode_token(word), number=b"m" * 16).sealed(b"k" * 32)
    run.refused("gamma", "--join", encode_token(forged), words=["no token of this run"])
    other = sealed_token(Authority.make(), [listens(alpha)])
    run.refused("gamma", "--join", other, words=["not of the run that the token names"])
    plain = encode_token(Token((listens(alpha),)))
    words = ["no peer answers"]
    run.refused("gamma", "--join", plain, *INSECURE, words=words, before=IMPATIENT)
    assert len(admitted(alpha)) == 1
    had = commits(alpha)[-1]
    run.node("gamma", "--join", token_of(alpha, uses=1))
    until(lambda: is_member(alpha, "gamma"), within_s=20, what="gamma a member, at last")
    commits_until(alpha, had + 3)
    assert max(event.listen_cpu_s for event in of(Listening, tmp_path)) < most_until_listening_s()
    for name in ("alpha", "beta", "gamma"):
        keys = [path for path in (tmp_path / name).glob("*.pem") if path.stat().st_mode & 0o077]
        assert keys == []


@pytest.mark.deadline(60)
def test_a_clock_that_is_behind_is_no_wrong_token(run: Run, tmp_path: Path) -> None:
    run.node("alpha", "--new")
    word = token_of(tmp_path / "alpha", uses=1)
    behind = "import time\nreal = time.time\ntime.time = lambda: real() - 3 * 86_400 - 60"
    words = ["this machine's clock says", "3 days before the certificate was made", "set the clock"]
    run.refused("beta", "--join", word, words=words, before=behind)
    assert admitted(tmp_path / "alpha") == [], "the token is good for another try"


@pytest.mark.deadline(90)
def test_when_who_began_is_gone_any_voter_lets_others_in(run: Run, tmp_path: Path) -> None:
    """I8: with a token that was made before, and with one that a survivor makes."""
    run.node("alpha", "--new")
    alpha, beta, gamma = (tmp_path / name for name in ("alpha", "beta", "gamma"))
    for name in ("beta", "gamma"):
        run.node(name, "--join", token_of(alpha, uses=1))
    commits_until(gamma, 1)
    for path in (beta, gamma):
        until((path / CA_KEY).exists, within_s=20, what=f"{path.name} holding the key")
    early = new_token(tmp_path, uses=1)
    assert decode_token(early).addresses[0] == listens(alpha)
    run.kill(alpha)
    run.node("delta", "--join", early)
    until(lambda: is_member(beta, "delta"), within_s=30, what="delta a member")
    run.node("epsilon", "--join", new_token(gamma, uses=1))
    until(lambda: is_member(beta, "epsilon"), within_s=30, what="epsilon a member")
    commits_until(tmp_path / "epsilon", commits(beta)[-1] + 3)


@pytest.mark.long
@pytest.mark.deadline(90)
def test_who_comes_back_has_its_certificate_and_needs_no_token(run: Run, tmp_path: Path) -> None:
    run.node("alpha", "--new")
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    run.node("beta", "--join", token_of(alpha, uses=1))
    commits_until(beta, 2)
    peer = record(beta)["peer"]
    run.kill(beta)
    time.sleep(0.5)
    run.start("resume", str(beta))
    until(lambda: int(record(beta)["incarnation"]) == 2, within_s=20, what="beta back")
    commits_until(beta, commits(alpha)[-1] + 3)
    assert record(beta)["peer"] == peer
    assert len(admitted(alpha)) == 1


@pytest.mark.long
@pytest.mark.deadline(60)
def test_in_the_clear_both_say_so(run: Run, tmp_path: Path) -> None:
    run.node("alpha", "--new", *INSECURE)
    alpha = tmp_path / "alpha"
    word = token_of(alpha)
    assert decode_token(word) == Token((listens(alpha),))
    run.node("beta", "--join", word, *INSECURE)
    until(lambda: is_member(alpha, "beta"), within_s=20, what="beta a member")
    assert list(tmp_path.glob("*/*.pem")) == []
    told = run.node("gamma", "--join", word)
    assert told.wait(within_s=20) == 2
    assert "node.insecure=true" in told.err
    # Nor does one that wants encryption speak to one that has none.
    sealed = sealed_token(Authority.make(), [listens(alpha)])
    run.refused("gamma", "--join", sealed, words=["no peer of the run answers"], before=IMPATIENT)
    commits_until(alpha, commits(alpha)[-1] + 2)


@pytest.mark.long
@pytest.mark.deadline(60)
def test_a_run_that_was_opened_goes_by_the_token_that_was_printed(run: Run, tmp_path: Path) -> None:
    opened = run.run("init", "first", "--advertise", "127.0.0.1:0", "--uses", "1")
    assert opened.popen.returncode == 2
    assert "port" in opened.err
    free = 20000 + hash(tmp_path) % 9000
    opened = run.run("init", "first", "--advertise", f"127.0.0.1:{free}", "--uses", "1")
    assert opened.popen.returncode == 0, opened.err
    (word,) = [line for line in opened.out.splitlines() if line.startswith("lc1-")]
    pace = ("--", *paced_command(PACE))
    file = tmp_path / "token"
    file.write_text(word)
    file.chmod(0o600)
    run.start("peer", f"--join=@{file}", "--set", "node.name=beta", *pace)  # Before alpha listens.
    first = run.start(
        *("peer", "first/run.toml", "--new", "--set", "node.name=alpha"),
        *("--set", "run.peers_min=1", *pace),
    )
    alpha = tmp_path / "first" / "alpha"
    until(lambda: is_member(alpha, "beta"), within_s=30, what="beta a member")
    assert "others join with" not in first.out
    again = run.run("init", "first")
    assert again.popen.returncode == 2
    assert "already" in again.err


@pytest.mark.long
@pytest.mark.deadline(90)
@pytest.mark.parametrize(
    "link", [pytest.param((), id="encrypted"), pytest.param(INSECURE, id="insecure")]
)
def test_joiners_of_a_run_that_cannot_begin_are_told_why(
    run: Run, tmp_path: Path, link: tuple[str, ...]
) -> None:
    """They waited for a founder that had refused for lack of memory."""
    own = ("--set", "node.name=alpha", "--set", f'node.directory="{tmp_path / "alpha"}"')
    ranks = shlex.join(paced_command(PACE))
    few = ("--set", "node.memory_max_bytes=1000", "--", "sh", "-c", f"sleep 5; exec {ranks}")
    founder = run.start("peer", "run.toml", "--new", *link, *own, *few)
    word = token_of(tmp_path / "alpha")
    words = ["alpha cannot begin the run", "may use 0.00 GiB", "node.memory_max_bytes"]
    run.refused("beta", "--join", word, *link, words=words)
    assert founder.wait(within_s=20) == 2, founder.err
    assert "the daemon needs about" in founder.err
