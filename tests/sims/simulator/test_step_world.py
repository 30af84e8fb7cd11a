"""Whole clusters that agree on every step: fresh seeds under faults, and what a calm one costs."""

import json
from collections import Counter
from dataclasses import asdict

import pytest

from protocols.messages import log_entries as e
from protocols.types.ids import PeerId
from sims.checkers import StepWorld
from sims.mutants import Hunt, hunt_all
from sims.mutations.patch import Mutant
from sims.mutations.steps import STEP_MUTANTS
from sims.scenarios.fault_plan import PlannedFault
from sims.simulator.step_world import FACTOR, StepNode
from sims.step_sweep import main, run_seed
from sims.sweep import SeedResult
from tests.sims.replaying import failed_once, replayed

CHUNKS, CHUNK_SEEDS = 4, 3
"""Of fresh seeds, in each run; `make nightly` plays 2000."""
NEWEST = 4
"""Of the seeds that failed once, in each run."""
SAMPLE = 3
"""Of the mutants, in each run of the long tests."""
FAILED_ONCE = failed_once("step_sweep")
"""Each of these showed a bug once, of the core or of a checker: tests/sims/regressions.toml."""
NAMED = (
    "goes-on-after-its-report",
    "closes-below-a-completed-step",
    "takes-a-late-payload-of-a-closed-view",
    "commits-on-a-majority-of-digests",
)


@pytest.fixture(scope="module")
def tally() -> Counter[str]:
    """What took place in the seeds of this module."""
    return Counter()


def check(result: SeedResult) -> None:
    story = "\n".join(result.story[-40:])
    replay = f"python -m sims.step_sweep --first {result.seed} --seeds 1 --story"
    assert not result.violations, "\n".join([story, *result.violations, f"replay: {replay}"])


class Calm(StepWorld):
    """Nothing fails; as many steps between commits as users get."""

    def make_run(self, founder: PeerId) -> e.Run:
        self.commit_every_steps, self.snapshot_every_steps = 32, 64
        return super().make_run(founder)


def calm(*, peers: int = 3, steps: int = 320, until_s: float = 400.0) -> StepWorld:
    world = Calm(7, peers=peers, outer_steps=steps)
    world.run(until_s=until_s)
    assert world.checkers.violations == []
    return world


def log(world: StepWorld) -> list[e.Entry]:
    """What everybody applied, in order."""
    return [world.checkers.log[index] for index in sorted(world.checkers.log)]


def play(seed: int, tally: Counter[str]) -> None:
    result = run_seed(seed)
    check(result)
    tally.update(result.happened)
    tally.update(result.log)
    tally.update(seeds=1, commits=result.commits)


@replayed(FAILED_ONCE, newest=NEWEST, recent=12)
def test_a_seed_that_failed_once_does_not_fail_again(seed: int, tally: Counter[str]) -> None:
    play(seed, tally)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_fresh_seeds_hold_every_promise(chunk: int, seed_base: int, tally: Counter[str]) -> None:
    for offset in range(CHUNK_SEEDS):
        play(seed_base + chunk * CHUNK_SEEDS + offset, tally)


def test_views_were_closed_and_opened_and_states_were_committed(tally: Counter[str]) -> None:
    """A promise that nothing tried to break was not tested."""
    if tally["seeds"] < NEWEST + CHUNKS * CHUNK_SEEDS:
        pytest.skip("it looks back on the seeds of the whole module")
    entries = ("StepCommit", "Halt", "Close", "Restore", "Lost")
    kinds = ("kill", "restart", "partition", "pause", "join", "leave", "cut", "corrupt", "trainers")
    assert [kind for kind in entries if not tally[kind]] == []
    assert sum(tally[kind] > 0 for kind in kinds) > len(kinds) / 2, "each seed draws its own mix"
    assert tally["Close"] > tally["seeds"]
    assert tally["commits"] > 5 * tally["seeds"]


def test_a_healthy_run_writes_one_entry_for_32_steps() -> None:
    entries = log(calm())
    last = [i for i, entry in enumerate(entries) if isinstance(entry, e.StepCommit)][-1]
    view = [i for i, entry in enumerate(entries) if isinstance(entry, e.View)][-1]
    between = entries[view + 1 : last + 1]
    steps = 320 - (entries[view].first_round[0] - 1)  # pyright: ignore
    commits = [entry for entry in between if isinstance(entry, e.StepCommit)]
    assert between == commits
    assert len(commits) <= steps / 32


def test_everybody_ends_with_the_sum_of_what_all_contributed() -> None:
    world = calm(peers=4, steps=64)
    states = {tuple(node.states.outers) for node in world.nodes.values()}
    assert len(states) == 1
    assert all(node.process.outcome == "finished" for node in world.nodes.values())
    assert world.steps_made == 4 * 64
    assert FACTOR > 1  # Or the order of steps would not show.


def test_a_joiner_catches_up_without_stopping_its_donor() -> None:
    """It gets a copy and the payloads since; only then the roster changes, once."""
    world = Calm(7, peers=3, outer_steps=320)
    world.run(until_s=20.0)
    joiner = world.add_peer()
    world.run(until_s=400.0)
    assert world.checkers.violations == []
    entries = log(world)
    cut = next(
        entry for entry in entries if isinstance(entry, e.Cut) and entry.info.peer == joiner.peer
    )
    rosters = [entry.roster for entry in entries if isinstance(entry, e.View)]
    assert joiner.peer in rosters[-1]
    assert joiner.process.outcome == "finished"
    assert cut.versions[0].round % 64 == 0
    halts = [entry for entry in entries if isinstance(entry, e.Halt)]
    assert f"{joiner.core.me.name} can take part" in [halt.why for halt in halts]


def test_survivors_of_a_loss_agree_on_one_last_step() -> None:
    world = Calm(7, peers=3, outer_steps=320)
    world.run(until_s=20.0)
    victim = next(node for node in world.live if not node.core.leads)
    world.kill(victim)
    world.run(until_s=400.0)
    assert world.checkers.violations == []
    entries = log(world)
    kinds = [type(x).__name__ for x in entries if isinstance(x, e.Lost | e.Close | e.View)]
    assert kinds[-3:] == ["Lost", "Close", "View"]
    survivors = [node for node in world.nodes.values() if node is not victim]
    assert {node.process.outcome for node in survivors} == {"finished"}


@pytest.mark.parametrize("leads", [False, True])
def test_with_a_witness_either_of_two_may_die(leads: bool) -> None:
    """And the witness, of whom two are left, after that."""
    world = Calm(7, peers=2, outer_steps=320, witness=True)
    world.run(until_s=20.0)
    (victim,) = [n for n in world.live if n.core.leads == leads and not n.me.witness][:1]
    (witness,) = [node for node in world.live if node.me.witness]
    world.kill(victim)
    world.run(until_s=40.0)
    (last,) = [node for node in world.live if node is not witness]
    view = last.run_state.views[-1]
    assert view.roster == (last.peer,)
    assert not last.run_state.step_progress.halted
    world.kill(witness)
    world.run(until_s=400.0)
    assert world.checkers.violations == []
    assert last.process.outcome == "finished"
    assert not [entry for entry in log(world) if isinstance(entry, e.Restore)]


def test_a_witness_ends_with_the_run_and_made_no_step_of_it() -> None:
    world = Calm(7, peers=2, outer_steps=96, witness=True)
    world.run(until_s=400.0)
    assert world.checkers.violations == []
    assert {node.process.outcome for node in world.nodes.values()} == {"finished"}
    assert world.steps_made == 2 * 96
    (witness,) = [node for node in world.nodes.values() if node.me.witness]
    assert (witness.core.part.steps, witness.core.rounds, witness.disk.kept) == (None, [], None)


def test_a_flipped_bit_is_named_and_healed() -> None:
    plan = [PlannedFault(at_s=12.0, kind="corrupt", peer=1, other=5, duration_s=0.0)]
    world = Calm(26, peers=3, outer_steps=320)  # By then all three make steps together.
    for fault in plan:
        world.clock.at(fault.at_s, lambda: flip(world))
    world.run(until_s=400.0)
    assert world.checkers.violations == []
    assert any("differs at step" in line for line in world.story.lines)
    assert len({tuple(node.states.outers) for node in world.nodes.values()}) == 1


def flip(world: StepWorld) -> None:
    victim = next(node for node in world.live if not node.core.leads)
    victim.states.outers[0] += 1
    victim.states.corrupt[0] = 0
    world.checkers.history.agreement.corrupted = True


def test_a_node_of_this_world_counts_steps_and_no_rounds() -> None:
    world = calm(peers=2, steps=96)
    assert world.snapshot_every_steps == 64
    node = world.step_node(next(iter(world.nodes)))
    assert isinstance(node, StepNode)
    assert node.core.rounds == []
    assert node.completed[2] == 96
    assert node.disk.kept is not None  # Who stops ends what was begun: the last step too.
    assert node.disk.kept.versions[0].round == 96


def test_a_seed_is_the_same_cluster_each_time() -> None:
    assert asdict(run_seed(4711)) == asdict(run_seed(4711))


def test_the_command_says_what_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(seeds=2, first=4711, processes=1, show=True, as_json=True)
    assert ended.value.code == 0
    shown = capsys.readouterr()
    total = json.loads(shown.out)
    assert (total["seeds"], total["first"], total["failed"]) == (2, 4711, [])
    assert total["entries"]["StepCommit"] > 0
    assert "replay: python -m sims.step_sweep --first 4711 --seeds 1 --story" in shown.err


@pytest.mark.long
@pytest.mark.deadline(900)
def test_bugs_in_the_making_of_steps_are_caught(seed_base: int) -> None:
    """A sample, others each time; `make nightly` plants all."""
    names = [mutant.name for mutant in STEP_MUTANTS]
    assert set(NAMED) <= set(names)
    first = seed_base * SAMPLE % len(names)
    chosen = (*names, *names)[first : first + SAMPLE]
    tasks = [Hunt(name, "", first=0, seeds=100) for name in chosen]
    verdicts = {v.name: v.caught for v in hunt_all(tasks, jobs=2)}
    assert verdicts == dict.fromkeys(chosen, True)


@pytest.mark.parametrize("mutant", STEP_MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_still_fits_into_the_source(mutant: Mutant) -> None:
    assert mutant.why.endswith(".")
    for edit in (mutant.edit, mutant.also):
        if edit is not None:
            assert edit.changed().__code__ != edit.function.__code__
