"""Who gets into a run of real daemons, and who does not."""

import asyncio
import json
import shlex
import shutil
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lowcomm.reports.events import Listening, Member, Note, Witness
from lowcomm.startup.join_tokens import new_token
from peers.security.admission_client import ask
from peers.security.certificates import key_of
from peers.security.keys import OWN, OWN_KEY, Key, OwnKey
from peers.security.proofs import new_token as signed_token
from peers.security.trust_store import TrustStore
from protocols.messages.peer import Admit
from protocols.state.tokens import Token, decode_token, encode_token, fingerprint
from protocols.types.errors import ConfigError, RefusedError
from protocols.types.ids import PROTOCOL_VERSION, PeerId
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


def votes(directory: Path) -> bool:
    """A node knows that it votes."""
    store = TrustStore.load(directory)
    return store.peer in store.voters


def foreign(address: str) -> str:
    """A token of another run, for a node at this address."""
    root = Key.make()
    return encode_token(
        signed_token(root, root=root.public, uses=1, hours=1.0, addresses=[address])
    )


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
    key = Key.make()
    forged = replace(decode_token(word), key=key.public, secret=key.secret)
    run.refused("gamma", "--join", encode_token(forged), words=["no token of this run"])
    other = foreign(listens(alpha))
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
        until(lambda path=path: votes(path), within_s=20, what=f"{path.name} voting")
    early = new_token(tmp_path, uses=1)
    assert len(decode_token(early).addresses) == 3
    assert decode_token(early).addresses[0] == listens(alpha)
    run.kill(alpha)
    shutil.rmtree(alpha)
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
    run.refused(
        "gamma",
        "--join",
        foreign(listens(alpha)),
        words=["no peer of the run answers"],
        before=IMPATIENT,
    )
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
    (word,) = [line for line in opened.out.splitlines() if line.startswith("lc2-")]
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


@pytest.mark.long
@pytest.mark.deadline(90)
def test_a_token_admits_no_node_of_the_other_role(run: Run, tmp_path: Path) -> None:
    """The command refuses it, and so does the run, whatever command is used."""
    run.node("alpha", "--new")
    alpha = tmp_path / "alpha"
    members, witnesses = token_of(alpha), token_of(alpha, witness=True)
    refused = run.node("beta", "--join", witnesses)
    assert refused.wait(within_s=20) == 2
    assert "admits witnesses only" in refused.err
    refused = run.start("witness", "--join", members, "--set", "node.name=gamma")
    assert refused.wait(within_s=20) == 2
    assert "lowcomm token DIRECTORY --witness" in refused.err
    blind = (
        "import lowcomm.config.addresses as addresses\n"
        "check = addresses.check_way\n"
        "addresses.check_way = lambda node, token, witness: check(node, token)"
    )
    words = ["refused by", "admits witnesses only"]
    run.refused("beta", "--join", witnesses, words=words, before=blind)
    own = ("--set", f"node.directory={json.dumps(str(tmp_path / 'watch'))}")
    run.start("witness", "--join", witnesses, *own)
    until(lambda: of(Witness, alpha), within_s=20, what="a witness")
    until(lambda: votes(tmp_path / "watch"), within_s=20, what="the witness voting")
    told = run.run("token", "watch")
    assert (told.popen.returncode, told.err) == (0, "")
    listed = json.loads(run.run("token", "list", "watch", "--json").out.splitlines()[-1])
    assert (listed["number"], listed["nodes"]) == (decode_token(told.out.strip()).number, [])
    told = run.run("revoke", "watch", "--token", listed["number"])
    assert told.out == "the token admits no more nodes\n"
    assert not is_member(alpha, "beta")


@pytest.mark.deadline(120)
def test_what_lies_in_a_joiners_directory_admits_nobody(run: Run, tmp_path: Path) -> None:
    """Beta's token has uses left; its directory has its key, and all that the run told it."""
    (tmp_path / "run.toml").write_text(
        (tmp_path / "run.toml").read_text().replace("[run]", '[run]\ntokens = "operators"')
    )
    run.node("alpha", "--new")
    alpha, beta = tmp_path / "alpha", tmp_path / "beta"
    word = token_of(alpha, uses=9)
    run.node("beta", "--join", word)
    until(lambda: is_member(alpha, "beta") and votes(beta), within_s=20, what="beta voting")
    secret = decode_token(word).secret
    for path in (path for path in beta.rglob("*") if path.is_file()):
        content = path.read_bytes()
        for form in (word.encode(), secret, secret.hex().encode(), b64encode(secret)):
            assert form not in content, f"{path} has the secret of the token"
    assert sorted(path.name for path in beta.glob("*.pem")) == ["node-key.pem", "node.pem"]
    with pytest.raises(ConfigError, match="takes tokens of its operator only"):
        new_token(beta)
    for text, token in stolen(beta, listens(alpha)).items():
        run.refused("eve", "--join", encode_token(token), words=["refused by"])
        assert not is_member(alpha, "eve"), text
    shutil.copytree(beta, tmp_path / "copy", ignore=shutil.ignore_patterns("wal", "lock"))
    made = Key.make()
    made.save(tmp_path / "copy" / OWN_KEY)
    (tmp_path / "copy" / OWN).unlink()
    store = TrustStore.load(tmp_path / "copy")
    renewed = (store.terms, store.signature, store.proof)
    own = made.own_certificate(PeerId("eve.00000009"))
    who = (PeerId("eve.00000009"), made.public, own, False)
    admit = Admit(PROTOCOL_VERSION, *who, *renewed, store.peer)
    with pytest.raises(RefusedError, match="refused by"):
        asyncio.run(ask([listens(alpha)], admit, is_ours=store.trusts))
    assert len(admitted(alpha)) == 1, "beta, and nobody else"


def _fingerprint(certificate: bytes) -> bytes:
    return fingerprint(key_of(certificate))


def stolen(directory: Path, address: str) -> dict[str, Token]:
    """Tokens that a thief makes of a node's directory."""
    store, own = TrustStore.load(directory), OwnKey(directory).key
    root, prints = bytes.fromhex(store.root), list(map(_fingerprint, store.certificates.values()))
    wanted = partial(
        signed_token, root=root, uses=9, hours=1.0, addresses=[address], prints=prints[:4]
    )
    return {
        "signed by the node": wanted(own, named=store.peer),
        "as if by the root key": wanted(own),
        "with a signature of the root key": replace(wanted(own), signature=store.signature),
    }


def three_voters(run: Run) -> tuple[Path, Path]:
    """Start alpha, beta and gamma; returns the directories of the first two once all vote."""
    run.node("alpha", "--new")
    alpha, beta, gamma = (run.directory / name for name in ("alpha", "beta", "gamma"))
    for each in (beta, gamma):
        run.node(each.name, "--join", token_of(alpha, uses=1))
    for each in (beta, gamma):
        until(lambda each=each: votes(each), within_s=20, what=f"{each.name} voting")
    return alpha, beta


@pytest.mark.long
@pytest.mark.deadline(120)
def test_a_former_voters_tokens_end_with_its_vote(run: Run, tmp_path: Path) -> None:
    """It was revoked, since its disk was copied; it issued a token while it voted, too."""
    alpha, beta = three_voters(run)
    before = new_token(beta)
    run.node("delta", "--join", before)
    until(lambda: is_member(alpha, "delta"), within_s=20, what="delta a member")
    told = run.run("revoke", "alpha", "beta")
    assert told.popen.returncode == 0, told.err
    with pytest.raises(ConfigError, match="no key that can sign a token"):
        new_token(beta)
    after = encode_token(stolen(beta, listens(alpha))["signed by the node"])
    for word in (before, after):
        run.refused("eve", "--join", word, words=["refused by", "does not vote"])
    run.node("epsilon", "--join", new_token(tmp_path / "gamma"))
    until(lambda: is_member(alpha, "epsilon"), within_s=20, what="epsilon a member")


@pytest.mark.long
@pytest.mark.deadline(120)
def test_a_token_that_the_run_has_logged_outlives_its_issuer(run: Run, tmp_path: Path) -> None:
    alpha, beta = three_voters(run)
    unlogged = new_token(beta)
    told = run.run("token", "beta")
    assert (told.popen.returncode, told.err) == (0, "")
    run.kill(beta)
    gone = TrustStore.load(beta).peer
    until(lambda: gone not in TrustStore.load(alpha).voters, within_s=30, what="beta lost")
    run.refused("eve", "--join", unlogged, words=["refused by", "does not vote"])
    late = run.run("token", "beta")
    assert "counts as long as its issuer votes: beta does not answer" in late.err
    run.node("delta", "--join", told.out.strip())
    until(lambda: is_member(alpha, "delta"), within_s=20, what="delta a member")
