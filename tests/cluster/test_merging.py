"""What is made of contributions, over real daemons: the bits of lockstep, and as many bytes as
said."""

import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest

from lowcomm.checkpoints.checkpoint import newest_checkpoint, read_checkpoint
from lowcomm.config.schema import RunConfig, load_config
from lowcomm.methods import RoundMethod
from lowcomm.reports.events import Attempt, Commit, Finished, RanksLost, Ready, Traffic
from protocols.types.ids import TensorSpec
from sims.cluster.local_cluster import LocalCluster
from sims.lockstep.exchange import LocalContribution, Lockstep
from sims.paced.cluster import start_all
from sims.paced.moves import FRAGMENT, initial_parameters, movement, tensors
from sims.paced.rank import RankSpeed
from tests.cluster.running import marked_processes, of, write_config
from tests.marks import LONG, NIGHTLY

NAMES = ("alpha", "beta", "gamma")
ROUNDS = 20
ELEMENTS = (1 << 19) + 4321
PACE = RankSpeed(step_s=0.02, elements=ELEMENTS)
FORMULA = ELEMENTS * (64 / 4096) * 14 / 8
"""Of SparseLoCo: the bytes of a contribution."""
DECOUPLED = 'name = "decoupled_diloco"\nfragments = 1\noverlap_steps = 0\naveraged = ["paced.1"]'
METHODS = {
    "sparseloco": ('name = "sparseloco"\ninner_steps = 4', FORMULA),
    "sparseloco-contributors": (
        'name = "sparseloco"\ninner_steps = 4\nsparse_mean = "contributors"\nweight_max = 1.0',
        FORMULA,
    ),
    "decoupled": (f'{DECOUPLED}\ninner_steps = 4\ncontribution_codec = "int8"', 1.0 * ELEMENTS),
    "clipped": ('inner_steps = 4\naggregate = "clipped_mean"', 0.0),
    "centred": ('inner_steps = 4\naggregate = "centred_clipping"\nresult_codec = "gather"', 0.0),
    "trimmed": ('inner_steps = 4\naggregate = "trimmed_mean"\nresult_codec = "bf16"', 0.0),
}
"""The table, and how long a contribution is that is gathered; 0: not counted."""
MARKS = {
    **dict.fromkeys(("sparseloco", "decoupled", "trimmed"), LONG),
    **dict.fromkeys(("clipped", "centred", "sparseloco-contributors"), NIGHTLY),
}
"""By method."""


@pytest.mark.deadline(120)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=MARKS.get(name, ())) for name in METHODS],
)
def test_real_daemons_make_the_bits_of_lockstep(name: str, tmp_path: Path) -> None:
    table, contribution_bytes = METHODS[name]
    config = write_config(tmp_path, peers=len(NAMES), rounds=ROUNDS, method=table)
    run_dir = tmp_path / "run"

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(100):
            nodes = await start_all(cluster, NAMES, config, pace=PACE)
            return [await node.child.wait() for node in nodes]

    assert asyncio.run(play()) == [0] * len(NAMES)
    assert marked_processes() == {}
    run = load_config(config).run
    assert run is not None
    digests = replay(run, run_dir)
    assert len(set(digests)) == ROUNDS
    by_round: dict[int, set[str]] = {}
    for commit in of(Commit, run_dir):
        by_round.setdefault(commit.round, set()).add(commit.state_digest)
    assert by_round == {round_: {digest} for round_, digest in enumerate(digests, 1)}
    assert [event.state_digest for event in of(Finished, run_dir)] == [digests[-1]] * len(NAMES)
    if contribution_bytes:
        sent = sum(sum(of(Traffic, run_dir / each)[-1].payload_sent_bytes) for each in NAMES)
        each_to_each = ROUNDS * len(NAMES) * (len(NAMES) - 1) * contribution_bytes
        assert sent == pytest.approx(each_to_each, rel=0.02)


BROKEN = """
import sys
from sims.paced import moves
move = moves.movement
def broken(elements, *, slot, step):
    moved_P = move(elements, slot=slot, step=step)
    if step == 9:
        moved_P[elements // 3] = float("nan")
    return moved_P
moves.movement = broken
from sims.paced.rank import main
sys.exit(main())
"""
"""Ranks that have a parameter which is no number from their tenth step on, for good."""


@pytest.mark.long
@pytest.mark.deadline(60)
@pytest.mark.parametrize("result", ["fp32", "gather"])
def test_what_is_not_finite_is_left_out_and_all_others_count(result: str, tmp_path: Path) -> None:
    table = f'inner_steps = 4\nresult_codec = "{result}"'
    config = write_config(tmp_path, peers=len(NAMES), rounds=8, method=table)
    run_dir, pace = tmp_path / "run", RankSpeed(step_s=0.02)

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(50):
            nodes = await start_all(cluster, NAMES[:2], config, pace=pace)
            token, command = cluster.invite(nodes[0]), [sys.executable, "-c", BROKEN]
            nodes.append(cluster.start_peer("gamma", config, join=token, command=command))
            return [await node.child.wait() for node in nodes]

    assert asyncio.run(play()) == [0] * len(NAMES)
    assert marked_processes() == {}
    counted = {round_: counted_in(run_dir, round_) for round_ in range(1, 9)}
    assert all({"alpha", "beta"} <= names for names in counted.values())
    assert [round_ for round_ in range(1, 4) if "gamma" in counted[round_]] == [1, 2]
    # From then on others trained for gamma, which may have come in time for the last rounds.
    assert any("not finite" in event.why for event in of(RanksLost, run_dir / "gamma"))
    assert len({event.state_digest for event in of(Finished, run_dir)}) == 1
    path, _ = newest_checkpoint(run_dir / "alpha" / "checkpoints")
    assert path is not None
    assert all(np.isfinite(pair.outer).all() for pair in read_checkpoint(path)[2])
    whys = [event.why for event in of(Attempt, run_dir / "alpha")]
    assert "without gamma: what it contributed cannot be averaged" in whys


def counted_in(run_dir: Path, round_: int) -> set[str]:
    """The names of those who are in this round, as alpha knows it."""
    (commit,) = (event for event in of(Commit, run_dir / "alpha") if event.round == round_)
    return {peer.partition(".")[0] for peer in commit.roster}


def replay(run: RunConfig, run_dir: Path) -> list[str]:
    """The state digest after each round, by nodes in lockstep. From the files it takes who has
    which slot and how many steps each one made in each round."""
    slots: dict[str, int] = {}
    for name in NAMES:
        path, _ = newest_checkpoint(run_dir / name / "checkpoints")
        assert path is not None
        own = read_checkpoint(path)[0].own
        slots[own.peer] = own.data_slot
    ready = {(event.peer, event.round): event for event in of(Ready, run_dir)}
    data_steps, digests = dict.fromkeys(slots, 0), list[str]()
    layout = [TensorSpec(t.fragment, t.name, t.shape, t.offset) for t in tensors(ELEMENTS)]
    assert isinstance(run.method, RoundMethod)
    lockstep = Lockstep(run.method, layout, nodes=len(NAMES))
    theta_P = initial_parameters(ELEMENTS, seed=run.seed)
    lockstep.begin(FRAGMENT, theta_P)
    for commit in of(Commit, run_dir / NAMES[0]):
        assert commit.roster == tuple(sorted(slots))  # All wait for all: 30 s, by default.
        given: dict[int, LocalContribution] = {}
        for node, peer in enumerate(commit.roster):
            local_P, said = theta_P.copy(), ready[peer, commit.round]
            for _ in range(said.steps):
                local_P += movement(local_P.size, slot=slots[peer], step=data_steps[peer])
                data_steps[peer] += 1
            data_steps[peer] = max(data_steps[peer], commit.inner_step)
            given[node] = LocalContribution(local_P, said.tokens, said.steps)
        digests.append(lockstep.exchange_round(FRAGMENT, given)[1])
        theta_P, _ = lockstep.arrays(FRAGMENT)
    lockstep.close()
    return digests
