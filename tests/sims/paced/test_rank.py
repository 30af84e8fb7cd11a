"""The paced trainer: its arithmetic, and all that it says to a daemon whose part a test plays."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lowcomm.config.schema import DataConfig, NodeConfig, RunConfig
from lowcomm.methods import DiLoCoMethod
from lowcomm.numerics.operations import F32
from peers.ipc.messages import NONE, Answer
from peers.processes.supervisor import CommandSpawner
from peers.ranks.attempt import fragment_elements
from peers.ranks.events import RanksEvaluated, RanksFinished, RanksSnapshotted
from protocols.types.errors import ConfigError
from sims.paced.cluster import paced_command
from sims.paced.moves import (
    INITIAL_SLOT,
    TENSORS,
    initial_parameters,
    movement,
    share,
    stand_in_loss,
    tensors,
)
from sims.paced.rank import PACE, RankSpeed, load_data_step, main, save_data_step
from tests.lowcomm.rank_driver import Driver, drive

ROOT = Path(__file__).parents[3]
ELEMENTS = 1001  # Neither two ranks nor four tensors share it equally.
SLOT = 5
H = 3
SEED = 9
RUN = RunConfig(
    seed=SEED,
    method=DiLoCoMethod(inner_steps=H),
    data=DataConfig(batch=4, window=16, eval_windows=7),
)
STEP_TOKENS = 4 * 16


def moved(theta_P: F32, steps: range) -> F32:
    """Where the node is after these inner steps, each rounded by itself."""
    for step in steps:
        theta_P = theta_P + movement(theta_P.size, slot=SLOT, step=step)
    return theta_P


@pytest.mark.deadline(60)
def test_a_node_of_two_ranks_does_what_its_daemon_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    pace = RankSpeed(step_s=0.05, elements=ELEMENTS)
    start = np.linspace(-1, 1, ELEMENTS, dtype=np.float32)
    delta = np.linspace(0.3, 0.1, ELEMENTS, dtype=np.float32)
    kept = str(tmp_path / "rank-state" / "round-000002")

    def driver() -> Driver:
        return Driver(
            CommandSpawner(paced_command(pace)),
            run=RUN,
            node=NodeConfig(name="alpha", ranks=2),
            corpus=tmp_path,
            decide_boundary=lambda asked: Answer(fragment=0 if asked.steps == 2 else NONE),
        )

    async def play(driver: Driver) -> None:
        layout = await driver.attach(initial=True, slot=SLOT)
        assert layout.tensors == tensors(ELEMENTS)
        event, values = await driver.contribution()
        assert (event.steps, event.tokens) == (0, 0)
        np.testing.assert_array_equal(values, initial_parameters(ELEMENTS, seed=SEED))

        began = time.monotonic()
        driver.post(start, "full", inner_step=0, boundary_steps=1)
        event, values = await driver.contribution()
        assert time.monotonic() - began >= 2 * pace.step_s
        assert (event.steps, event.tokens) == (2, 2 * STEP_TOKENS)  # Others waited for us.
        expected = moved(start, range(2))
        np.testing.assert_array_equal(values, expected)

        # Not counted: its work stays. The run has come further than this node.
        driver.post(delta, "delta", inner_step=6, snapshot=kept)
        assert (await driver.expect(RanksSnapshotted)).directory == kept
        event, values = await driver.contribution()
        assert (event.steps, event.tokens) == (H, H * STEP_TOKENS)
        np.testing.assert_array_equal(values, moved(expected + delta, range(6, 6 + H)))

        await driver.reattach(slot=SLOT, rank_state=kept)
        driver.post(start, "full", inner_step=4)
        _, values = await driver.contribution()
        np.testing.assert_array_equal(values, moved(start, range(6, 6 + H)))

        driver.post(delta, "full", inner_step=9, finish=True, evaluate=True)
        evaluated = await driver.expect(RanksEvaluated)
        assert (evaluated.loss, evaluated.windows) == (stand_in_loss(delta), 7)
        await driver.expect(RanksFinished)

    drive(driver, play)


@pytest.mark.deadline(60)
def test_a_snapshot_that_the_disk_does_not_take_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "file").touch()
    start = np.zeros(ELEMENTS, np.float32)

    def driver() -> Driver:
        spawner = CommandSpawner(paced_command(RankSpeed(step_s=0, elements=ELEMENTS)))
        return Driver(spawner, run=RUN, node=NodeConfig(name="alpha"), corpus=tmp_path)

    async def play(driver: Driver) -> None:
        await driver.attach(initial=False, slot=SLOT)
        driver.post(start, "full", inner_step=0, snapshot=str(tmp_path / "file" / "state"))
        _, values = await driver.contribution()
        np.testing.assert_array_equal(values, moved(start, range(H)))
        driver.post(start, "full", inner_step=H, finish=True)
        await driver.expect(RanksFinished)

    drive(driver, play)


def test_importing_it_loads_no_torch() -> None:
    code = "import sys, sims.paced.rank, sims.paced.cluster; sys.exit('torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("slot", "step"), [(0, 0), (1, 0), (0, 1), (15, 123_456), (16, 2**63 - 1)])
def test_a_movement_is_the_formula_and_exact(slot: int, step: int) -> None:
    start = slot * 0x9E3779B1 + step * 0x85EBCA77
    expected = [
        ((start + index * 0xC2B2AE3D) % 2**32 >> 16) / 2**22 - 2**-7 for index in range(ELEMENTS)
    ]
    found = movement(ELEMENTS, slot=slot, step=step)
    assert found.dtype == np.float32
    assert found.tolist() == expected


def test_movements_of_other_slots_and_steps_differ_and_cancel_in_the_mean() -> None:
    slots, steps = range(17), range(200)
    found = [movement(ELEMENTS, slot=slot, step=step) for slot in slots for step in steps]
    assert len({each.tobytes() for each in found}) == len(found)
    assert np.abs(np.mean(found, axis=0, dtype=np.float64)).max() < 2**-7 / 20
    np.testing.assert_array_equal(
        initial_parameters(ELEMENTS, seed=3), movement(ELEMENTS, slot=INITIAL_SLOT, step=3)
    )


def test_the_loss_tells_parameters_apart() -> None:
    assert stand_in_loss(np.array([1, -2], np.float32)) == 2.5


@pytest.mark.parametrize("elements", [TENSORS, 7, ELEMENTS, PACE.elements])
def test_tensors_and_shares_fill_the_fragment(elements: int) -> None:
    layout = tensors(elements)
    assert len({each.name for each in layout}) == len(layout) == TENSORS
    assert fragment_elements(layout) == (elements,)  # Raises for a gap or an empty tensor.
    for world_size in (1, 2, 3):
        shares = [share(elements, rank=rank, world_size=world_size) for rank in range(world_size)]
        covered = [index for each in shares for index in range(elements)[each]]
        assert covered == list(range(elements))


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--step-s", "-1"], "--step-s must be a time"),
        (["--step-s", "nan"], "--step-s must be a time"),
        (["--elements", "3"], "--elements must be at least 4"),
        ([], "LOWCOMM_SOCKET is not set"),
    ],
)
def test_what_cannot_run_is_refused(
    argv: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("RANK", "WORLD_SIZE", "LOWCOMM_SOCKET"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConfigError, match=complaint):
        main(argv)


def test_the_command_says_the_whole_pace() -> None:
    assert paced_command(RankSpeed(step_s=0.125, elements=99, columns=3))[-10:] == [
        *("--step-s", "0.125"),
        *("--elements", "99"),
        *("--columns", "3"),
        *("--tensors", str(TENSORS)),
        *("--name-chars", "0"),
    ]


def test_the_step_comes_back_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rank-0-of-1.json"
    assert load_data_step(path) == 0
    save_data_step(path, 17)
    save_data_step(path, 18)
    assert load_data_step(path) == 18
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    for text in ("", "[]", "3", '{"data_step": null}', '{"data_step"', "\xff"):
        path.write_text(text, encoding="latin-1")
        assert load_data_step(path) == 0
