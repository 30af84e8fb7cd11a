"""What is written into a checkpoint is of one moment, however late it is written."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lowcomm.checkpoints.checkpoint import CHECKPOINTS, read_checkpoint
from lowcomm.checkpoints.residue_file import find_residue
from lowcomm.methods import DiLoCoMethod
from lowcomm.outer_state.replica import Replica
from peers.ipc.shared_memory import Slots
from protocols.messages import log_entries as e
from protocols.types.ids import Version
from protocols.types.sample_ranges import Grant, Remaining, SampleRange
from tests.lowcomm.checkpoint_scene import ALPHA, LAYOUT, SIZES, Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.gate.set()
    made.checkpoint_schedule.close()


@pytest.mark.asyncio
async def test_the_ledger_is_that_of_the_arrays_when_the_log_is_ahead(scene: Scene) -> None:
    """Else a run that goes back to this checkpoint never trains what round 2 covered."""
    first, second = (SampleRange(0, 10),), (SampleRange(10, 30),)
    scene.append(e.Lease((Grant(ALPHA, (SampleRange(0, 50),)),)))
    scene.commit(1, samples=first)
    scene.apply(1)
    scene.commit(2, samples=second)
    await scene.finish()
    cut, _, _ = read_checkpoint(scene.directory / CHECKPOINTS / "round-000001")
    assert cut.remaining == Remaining(50, (SampleRange(10, 50),))
    scene.apply(2)
    await scene.finish()
    cut, _, _ = read_checkpoint(scene.directory / CHECKPOINTS / "round-000002")
    assert cut.remaining == Remaining(50, (SampleRange(30, 50),))


@pytest.mark.asyncio
async def test_residues_are_those_of_the_arrays_however_late_they_are_written(
    scene: Scene,
) -> None:
    """A contribution that counts while the checkpoint is being written would be said twice."""
    scene.replica = Replica(DiLoCoMethod(contribution_codec="topk"), LAYOUT)
    slots = Slots.create(scene.replica.shape(1))
    scene.replica.share(slots)
    for fragment, size in enumerate(SIZES):
        scene.replica.initialise(fragment, np.ones(size, np.float32).data.cast("B"))
        scene.replica.place_result(fragment, full=True)
    scene.count(1)
    before = [residue_P.tobytes() for residue_P in scene.replica.capture().residues]
    versions = [scene.replica.version(fragment) for fragment in range(len(SIZES))]
    scene.hold()
    scene.begin()
    scene.count(2)
    assert scene.replica.capture().residues[0].tobytes() != before[0]
    scene.gate.set()
    assert scene.checkpoint_schedule._pending is not None
    await scene.checkpoint_schedule._pending
    for fragment, (version, digest) in enumerate(versions):
        place, size = scene.directory / CHECKPOINTS, SIZES[fragment]
        found = find_residue(place, fragment, version, digest, elements=size)
        assert found is not None
        assert found.tobytes() == before[fragment]
    slots.close()


def go_back(scene: Scene) -> None:
    """The log goes back to the initial state; the replica has not followed yet."""
    versions = tuple(Version(f, 0, scene.first[f]) for f in range(len(SIZES)))
    lineage = scene.core.run_state.lineage
    scene.append(e.Restore(lineage, versions, 0, 0, (), 0, False, 1))
    scene.append(scene.view)
    scene.checkpoint_schedule.take_back(0, scene.core.run_state)


@pytest.mark.asyncio
async def test_a_state_that_a_restore_took_back_is_not_written_under_the_new_lineage(
    scene: Scene,
) -> None:
    """Round 2 of the new lineage is another state: a later life would go on from the wrong one."""
    scene.advance(2)
    go_back(scene)
    scene.commit(1)
    await scene.finish()
    assert scene.written == scene.failed == []


@pytest.mark.asyncio
async def test_a_state_captured_before_a_restore_and_begun_after_it_is_not_written(
    scene: Scene,
) -> None:
    scene.jobs = []
    scene.advance(2)
    scene.begin()
    go_back(scene)
    (job,) = scene.jobs
    job()
    assert scene.checkpoint_schedule._pending is None


@pytest.mark.asyncio
async def test_the_state_that_the_log_went_back_to_is_written_whoever_made_it(
    scene: Scene,
) -> None:
    """Also in the new lineage it is the run's, though no round of that lineage led to it."""
    scene.advance(2)
    go_back(scene)
    lineage = scene.core.run_state.lineage
    for fragment, size in enumerate(SIZES):
        first, zeros = np.full(size, fragment + 1, np.float32), np.zeros(size, np.float32)
        scene.replica.restore(fragment, 0, first, zeros, lineage=lineage)
    scene.advance(1)
    await scene.finish()
    assert scene.written == [("round-000001", 1)]
    cut, _, _ = read_checkpoint(scene.directory / CHECKPOINTS / "round-000001")
    assert int(cut.lineage, 16) == lineage
