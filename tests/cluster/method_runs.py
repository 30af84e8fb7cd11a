"""Runs of paced nodes by any method of rounds, and the same nodes in lockstep.

Must NOT start anything: the tests do.
"""

from collections.abc import Sequence
from pathlib import Path

from lowcomm.checkpoints.checkpoint import newest_checkpoint, read_checkpoint
from lowcomm.config.round_length import planned_rounds
from lowcomm.config.schema import RunConfig, load_config
from lowcomm.methods import RoundMethod
from lowcomm.reports.events import Commit, Evaluated, Finished, Ready
from protocols.types.ids import PeerId
from sims.cluster.local_cluster import LocalNode
from sims.lockstep.nodes import LockstepNodes
from sims.paced.moves import stand_in_loss, tensors
from sims.paced.parameters import PacedParameters
from sims.paced.rank import RankSpeed
from tests.cluster.running import leaves, of

NAMES = ("alpha", "beta", "gamma")
ROUNDS = 20
ELEMENTS = 6001
PACE = RankSpeed(step_s=0.005, elements=ELEMENTS)
STREAMING = 'name = "streaming_diloco"\ninner_steps = 9\nfragments = 4'
NOLOCO = 'name = "noloco"\ninner_steps = 5'
METHODS = {
    "diloco": "inner_steps = 5",
    "longer-rounds": "inner_steps = 5\nqsr_alpha = 6e-3",
    "local_sgd": 'name = "local_sgd"\ninner_steps = 5\ncontribution_codec = "bf16"',
    "eager": 'name = "eager_diloco"\ninner_steps = 5\ncontribution_codec = "int8"',
    "eager-clipped": 'name = "eager_diloco"\ninner_steps = 5\nmomentum_clip = 1e-3',
    "streaming": f"{STREAMING}\noverlap_steps = 2\nmixing = 0.5\nmomentum_clip = 1e-3",
    "streaming-int8": f'{STREAMING}\noverlap_steps = 1\nmixing = 0.25\n\
contribution_codec = "int8"\nresult_codec = "int8"\npattern = "sequential"',
    "decoupled": 'name = "decoupled_diloco"\ninner_steps = 9\nfragments = 4\noverlap_steps = 2\n\
averaged = ["paced.1"]',
    # Several fragments in flight at once.
    "streaming-in-flight": 'name = "streaming_diloco"\ninner_steps = 8\nfragments = 4\n\
overlap_steps = 6\nmixing = 0.5',
    "decoupled-in-flight": 'name = "decoupled_diloco"\ninner_steps = 4\nfragments = 4\n\
overlap_steps = 2\naveraged = ["paced.1"]',
    "sparseloco": 'name = "sparseloco"\ninner_steps = 5',
    "streaming-waits": f'{STREAMING}\noverlap_steps = 0\nmixing = 0.0\n\
contribution_codec = "topk"\nfeedback_decay = 0.95',
}


def check_by_lockstep(config: Path, run_dir: Path) -> None:
    """A run whose nodes were all counted in each round came to the bits of lockstep."""
    run = load_config(config).run
    assert run is not None
    together, states = replay(run, run_dir)
    found: dict[tuple[int, int], set[str]] = {}
    for commit in of(Commit, run_dir):
        assert len(commit.roster) == len(NAMES)  # All wait for all: 30 s, by default.
        found.setdefault((commit.fragment, commit.round), set()).add(commit.state_digest)
    fragments = len(together.sizes)
    rounds = planned_rounds(run)
    assert len(found) == rounds * fragments
    assert {key: {digest} for key, digest in together.digests.items() if key[1]} == found
    ends = {event.state_digest for event in of(Finished, run_dir)}
    assert ends == {together.digests[0, rounds]}
    # They all end with the run's parameters, whatever was trained since a fragment's last round.
    losses = {stand_in_loss(state.theta_P) for state in states}
    assert losses == {event.loss for event in of(Evaluated, run_dir)}
    together.close()


def check_one_state(run_dir: Path) -> None:
    """After each round of each fragment all nodes have the same."""
    found: dict[tuple[int, int], set[str]] = {}
    for commit in of(Commit, run_dir):
        found.setdefault((commit.fragment, commit.round), set()).add(commit.state_digest)
    assert all(len(digests) == 1 for digests in found.values())


def replay(
    run: RunConfig, run_dir: Path, names: Sequence[str] = NAMES
) -> "tuple[LockstepNodes, list[Parameters]]":
    """The same nodes in lockstep. From the files it takes who has which slot, and after how many
    steps each contributed what."""
    slots: dict[str, int] = {}
    for name in names:
        path, _ = newest_checkpoint(run_dir / name / "checkpoints")
        assert path is not None
        own = read_checkpoint(path)[0].own
        slots[own.peer] = own.data_slot
    assert sorted(slots.values()) == list(range(len(names)))
    assert isinstance(run.method, RoundMethod)
    layout = tensors(ELEMENTS, run.method)
    order = sorted(slots)
    together = LockstepNodes(run, layout, nodes=len(order), names=[PeerId(x) for x in order])
    together.joins = True
    states = [Parameters(layout, seed=run.seed, ours=slice(0, ELEMENTS)) for _ in order]
    for node, peer in zip(together.nodes, order, strict=True):
        given = [x for x in of(Ready, run_dir) if x.peer == peer]
        node.client.decide = Script(given, run.method).decide
    tokens = run.data.batch * run.data.window

    def step(number: int) -> int:
        states[number].reach(together.nodes[number].rank.run_step)
        states[number].move(slots[order[number]])
        return tokens

    together.train(states, step)
    return together, states


def ranks_of(node: LocalNode) -> list[int]:
    """The process ids of a node's paced ranks. Their reaper has the same words in its command."""
    return [pid for pid in leaves(node.child.pid) if "sims.paced.rank" in _command_of(pid)]


def _command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")


class Parameters(PacedParameters):
    """Implements lowcomm.training.interfaces.RoundState."""

    def snapshot(self, directory: str) -> None:
        raise AssertionError(f"nobody asked for {directory}")


class Script:
    """What a node contributed, and when: it contributes the same again."""

    def __init__(self, given: Sequence[Ready], method: RoundMethod) -> None:
        self._due: dict[int, list[int]] = {}
        """By inner step: the fragments that are contributed after it, in this order."""
        replaced = method.overlap_steps if method.discards_overlap else 0
        self._may_wait = replaced > 0
        """At a boundary right after a result that left nothing to contribute."""
        steps: dict[int, int] = {}
        for each in given:
            at = steps.get(each.fragment, 0) + each.steps
            self._due.setdefault(at, []).append(each.fragment)
            steps[each.fragment] = at + replaced  # In no contribution.

    def decide(self, step: int, due: bool, left: Sequence[int]) -> int | None:
        given = [fragment for fragment in self._due.get(step, ()) if fragment in left]
        assert given or not due or self._may_wait, f"nothing was contributed after step {step}"
        return given[0] if given else None
