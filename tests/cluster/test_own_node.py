"""Real daemons that a person at their machine asks for a checkpoint, and to leave."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowcomm.reports.events import Checkpoint, Left, Witness
from tests.cluster.paced_shell import PacedShell, counts_together
from tests.cluster.running import commits_until, ending, of, token_of, until, write_config

SELDOM = ("--set", "node.checkpoint_every_rounds=1000000")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[PacedShell]:
    write_config(tmp_path, peers=1, rounds=1_000_000)
    with ending(PacedShell(tmp_path)) as shell:
        yield shell


@pytest.mark.long
@pytest.mark.deadline(120)
def test_a_node_writes_a_checkpoint_when_it_is_asked_to_and_leaves(
    run: PacedShell, tmp_path: Path
) -> None:
    alpha, beta, watch = (tmp_path / name for name in ("alpha", "beta", "watch"))
    run.node("alpha", "--new")
    node = run.node("beta", "--join", token_of(alpha), *SELDOM)
    own = ("--set", f"node.directory={json.dumps(str(watch))}", "--set", "node.name=watch")
    witness = run.start("witness", "--join", token_of(alpha, witness=True), *own)
    until(lambda: of(Witness, alpha), within_s=20, what="a witness")
    counts_together(alpha, ["alpha", "beta"])
    since = len(of(Checkpoint, beta))
    commits_until(beta, 2)
    assert len(of(Checkpoint, beta)) == since, "it seldom writes one"
    told = run.run("checkpoint", "beta")
    assert told.popen.returncode == 0, told.err
    (newest,) = of(Checkpoint, beta)[since:]
    assert told.out == f"beta has written {newest.path}\n"
    assert (Path(newest.path) / "cut.json").exists()
    refused = run.run("checkpoint", "watch")
    assert refused.popen.returncode == 2
    assert "a witness has no state" in refused.err
    # A run's directory stands for its node only if one of them runs.
    refused = run.run("leave", str(tmp_path))
    assert refused.popen.returncode == 2
    assert "give the directory of a node that runs" in refused.err
    for name, command in (("beta", node), ("watch", witness)):
        told = run.run("leave", name)
        assert told.popen.returncode == 0, told.err
        assert told.out.startswith(f"{name} has left the run (asked to leave)")
        assert command.wait(within_s=5) == 0, command.err
        assert "no node runs in" in run.run("leave", name).err
    gone = {(event.member_name, event.why) for event in of(Left, alpha)}
    assert gone == {("beta", "asked to leave"), ("watch", "asked to leave")}
    told = run.run("leave", str(tmp_path))
    assert told.popen.returncode == 0, told.err
    assert told.out.startswith("alpha has left the run (asked to leave); its last checkpoint is")
