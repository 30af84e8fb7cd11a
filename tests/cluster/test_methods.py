"""Every method of rounds over real daemons: the bits of the same nodes in lockstep."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lowcomm.checkpoints.checkpoint import newest_checkpoint, read_checkpoint
from lowcomm.config.schema import load_config
from lowcomm.reports.events import Commit, Evaluated, Ready, Traffic
from protocols.state.gossip_pairs import pairs_of
from protocols.types.ids import PeerId
from sims.cluster.local_cluster import LocalCluster
from sims.paced.cluster import start_all
from sims.paced.moves import stand_in_loss
from sims.paced.rank import RankSpeed
from tests.cluster.method_runs import (
    ELEMENTS,
    METHODS,
    NAMES,
    NOLOCO,
    PACE,
    ROUNDS,
    check_by_lockstep,
    replay,
)
from tests.cluster.running import marked_processes, of, write_config
from tests.marks import LONG, NIGHTLY

MARKS = {
    **dict.fromkeys(("local_sgd", "eager", "decoupled", "sparseloco"), LONG),
    **dict.fromkeys(("longer-rounds", "streaming", "decoupled-in-flight"), LONG),
    "streaming-in-flight": LONG,
    **dict.fromkeys(("eager-clipped", "streaming-int8", "streaming-waits"), NIGHTLY),
}
"""By method; all others are in each run."""


def play_out(
    run_dir: Path, config: Path, names: Sequence[str], pace: RankSpeed | Sequence[RankSpeed]
) -> None:
    """Real daemons to the end of the run: all end well, and leave nothing behind."""

    async def play() -> list[int]:
        async with LocalCluster(run_dir) as cluster, asyncio.timeout(80):
            nodes = await start_all(cluster, names, config, pace=pace)
            return [await node.child.wait() for node in nodes]

    assert asyncio.run(play()) == [0] * len(names)
    assert marked_processes() == {}


@pytest.mark.deadline(90)
@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=MARKS.get(name, ())) for name in METHODS],
)
def test_real_daemons_end_with_the_bits_of_lockstep(method: str, tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=len(NAMES), rounds=ROUNDS, method=METHODS[method])
    run_dir = tmp_path / "run"

    play_out(run_dir, config, NAMES, PACE)
    check_by_lockstep(config, run_dir)


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.deadline(90)
def test_a_slow_node_contributes_what_it_has_and_is_in_every_round(tmp_path: Path) -> None:
    """Decoupled DiLoCo: the fastest node sets the pace, and who is late answers when it is asked,
    for several fragments after one step if need be."""
    method = 'name = "decoupled_diloco"\ninner_steps = 4\nfragments = 4\noverlap_steps = 2'
    config = write_config(tmp_path, peers=len(NAMES), rounds=ROUNDS, method=method)
    run_dir = tmp_path / "run"
    paces = [replace(PACE, step_s=step_s) for step_s in (0.03, 0.03, 0.075)]

    play_out(run_dir, config, NAMES, paces)
    check_by_lockstep(config, run_dir)  # All three are in each round.
    steps = Counter[str]()
    for event in of(Ready, run_dir):
        steps[event.name] += event.steps
    assert steps[NAMES[2]] < 0.7 * min(steps[name] for name in NAMES[:2])


@pytest.mark.deadline(90)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(NAMES, id="odd", marks=LONG),
        pytest.param((*NAMES, "delta"), id="even", marks=NIGHTLY),
    ],
)
def test_pairs_end_with_the_bits_of_lockstep_and_send_to_one_other(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    config = write_config(tmp_path, peers=len(names), rounds=ROUNDS, method=NOLOCO)
    run_dir = tmp_path / "run"

    play_out(run_dir, config, names, PACE)
    run = load_config(config).run
    assert run is not None
    together, states = replay(run, run_dir, names)
    ends: dict[str, tuple[bytes, bytes]] = {}
    for name in names:
        path, _ = newest_checkpoint(run_dir / name / "checkpoints")
        assert path is not None
        cut, _, (arrays,) = read_checkpoint(path)
        assert cut.round == ROUNDS
        ends[cut.own.peer] = arrays.outer.tobytes(), arrays.momentum.tobytes()
    peers = tuple(PeerId(peer) for peer in sorted(ends))
    for node, peer in enumerate(peers):
        outer_P, momentum_P = together.arrays(0, node)
        assert ends[peer] == (outer_P.tobytes(), momentum_P.tobytes())
    assert len(set(ends.values())) == len(names), "each has its own"
    (evaluated,) = of(Evaluated, run_dir)
    assert evaluated.peer == peers[0]
    assert evaluated.loss == stand_in_loss(states[0].theta_P)
    together.close()
    # On the wire: all of the parameters, to one other a round.
    met: Counter[tuple[str, ...]] = Counter()
    for round_ in range(1, ROUNDS + 1):
        met.update(pairs_of(peers, peers, fragment=0, round_=round_))
    for name in names:
        traffic = of(Traffic, run_dir / name)[-1]
        for other, sent_bytes in zip(traffic.peers, traffic.payload_sent_bytes, strict=True):
            pair = tuple(sorted((traffic.peer, other)))
            assert sent_bytes == pytest.approx(4 * ELEMENTS * met[pair], rel=0.02)
    digests = {(x.round, x.state_digest) for x in of(Commit, run_dir)}
    assert len(digests) == ROUNDS, "they name the round"
    assert all(len(x.roster) == len(names) for x in of(Commit, run_dir))
