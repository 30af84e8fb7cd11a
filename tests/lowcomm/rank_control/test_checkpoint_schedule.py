"""When a node's checkpoints are written, of which state, and what is kept beside them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lowcomm.checkpoints import checkpoint
from lowcomm.checkpoints.checkpoint import (
    CHECKPOINTS,
    FragmentCut,
    PeerCut,
    read_checkpoint,
)
from lowcomm.checkpoints.rank_states import RANK_STATES
from lowcomm.checkpoints.residue_file import find_residue
from lowcomm.methods import DiLoCoMethod
from lowcomm.outer_state.replica import Replica
from protocols.messages import log_entries as e
from protocols.messages.snapshot import Branch
from tests.lowcomm.checkpoint_scene import ALPHA, EVERY, LAYOUT, SIZES, Scene
from tests.lowcomm.replicas import arrays


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.gate.set()
    made.checkpoint_schedule.close()


@pytest.mark.parametrize(("round_", "due"), [(0, False), (1, False), (4, False), (5, True)])
def test_every_so_many_rounds_but_not_at_once(scene: Scene, round_: int, due: bool) -> None:
    assert scene.checkpoint_schedule.is_due(round_) == due
    assert scene.checkpoint_schedule.is_due(round_ + EVERY) == (due or round_ == 0)


def test_a_person_asks_for_one_of_the_next_round_and_gets_one(scene: Scene) -> None:
    schedule = scene.checkpoint_schedule
    scene.commit(1)
    scene.apply(1)
    asked = schedule.request(scene.core, scene.replica)
    assert asked is not None
    assert (asked.version, asked.begun, schedule.is_due(1)) == (2, 0, False)
    assert schedule.is_due(2)
    assert schedule.is_requested(3), "the ranks were busy at round 2"
    assert not schedule.is_regular(2)


def test_a_request_while_the_run_is_paused_is_met_at_once(scene: Scene) -> None:
    schedule, orders = scene.checkpoint_schedule, scene.core.run_state.orders
    scene.jobs = []
    scene.commit(1)
    scene.apply(1)
    orders.paused = e.Steered("pause", "", "", 1, 0, ALPHA, "")
    asked = schedule.request(scene.core, scene.replica)
    assert asked is not None
    assert (asked.version, len(scene.jobs)) == (1, 1)
    schedule._last_round = 1
    assert schedule.request(scene.core, scene.replica) is None, "there is one of it"


@pytest.mark.asyncio
async def test_the_person_is_told_where_it_is_and_no_further_one_is_due(scene: Scene) -> None:
    schedule = scene.checkpoint_schedule
    asked = schedule.request(scene.core, scene.replica)
    assert asked is not None
    scene.commit(1)
    scene.apply(1)
    schedule.begin_writing(scene.core, scene.replica)
    assert (asked.begun, asked.path) == (1, None)
    assert (schedule.is_due(1), schedule.is_due(2)) == (True, False)
    scene.gate.set()
    await schedule.finish(scene.core, scene.replica)
    assert asked.path is not None
    assert asked.path.name == scene.written[-1][0]


@pytest.mark.asyncio
async def test_a_rollback_puts_a_request_off(scene: Scene) -> None:
    schedule = scene.checkpoint_schedule
    asked = schedule.request(scene.core, scene.replica)
    assert asked is not None
    scene.commit(1)
    scene.apply(1)
    schedule.begin_writing(scene.core, scene.replica)
    scene.take_back(0)
    assert schedule._pending is not None
    await schedule._pending
    assert (asked.begun, asked.path, schedule.is_due(2)) == (0, None, True)


def test_ranks_write_where_the_checkpoint_of_the_round_says(scene: Scene) -> None:
    place = scene.checkpoint_schedule.rank_state(20)
    assert place == scene.directory / RANK_STATES / "round-000020"


@pytest.mark.asyncio
async def test_a_checkpoint_says_where_the_run_was(scene: Scene) -> None:
    await scene.write(2)
    assert scene.written == [("round-000002", 2)]
    assert scene.on_disk() == ("round-000002", scene.state())
    cut, layout, _ = read_checkpoint(scene.directory / CHECKPOINTS / "round-000002")
    run_state = scene.core.run_state
    assert (cut.log_index, cut.run_digest) == (run_state.index, "0000000000000abc")
    assert int(cut.lineage, 16) == run_state.lineage
    assert cut.fragments == tuple(
        FragmentCut(version=version, inner_step=30, tokens=3000, state_digest=digest)
        for version, digest in map(scene.replica.version, (0, 1))
    )
    assert [each.version for each in cut.fragments] == [2, 0]
    assert cut.own == PeerCut(peer=ALPHA, incarnation=3, data_slot=0, rank_state="")
    assert layout == ((("embed", (2, 3), 0), ("head", (), 6)), (("norm", (4,), 0),))


@pytest.mark.asyncio
async def test_progress_is_that_of_the_state_when_the_log_is_ahead(scene: Scene) -> None:
    scene.advance(2)
    scene.commit(3)
    scene.commit(4)
    await scene.finish()
    cut, _, _ = read_checkpoint(scene.directory / CHECKPOINTS / "round-000002")
    assert (cut.fragments[0].inner_step, cut.fragments[0].tokens) == (30, 3000)
    scene.apply(3)
    await scene.finish()
    cut, _, _ = read_checkpoint(scene.directory / CHECKPOINTS / "round-000003")
    assert (cut.fragments[0].inner_step, cut.fragments[0].tokens) == (60, 6000)


@pytest.mark.asyncio
async def test_the_state_is_copied_before_training_goes_on(scene: Scene) -> None:
    scene.hold()
    scene.advance(1)
    before = scene.state()
    scene.begin()
    scene.advance(2)
    scene.replica.restore(
        1, 9, np.zeros(4, np.float32), np.ones(4, np.float32), lineage=scene.core.run_state.lineage
    )
    scene.gate.set()
    assert scene.checkpoint_schedule._pending is not None
    await scene.checkpoint_schedule._pending
    assert scene.on_disk() == ("round-000001", before)


@pytest.mark.asyncio
async def test_what_is_written_is_the_state_whose_turn_it_was(scene: Scene) -> None:
    scene.jobs = []
    scene.advance(1)
    scene.begin()
    scene.advance(2)  # This step came before.
    scene.begin()
    (job,) = scene.jobs
    job()
    await scene.finish()
    assert scene.written == [("round-000002", 2)]
    assert scene.on_disk() == ("round-000002", scene.state())


@pytest.mark.asyncio
async def test_the_end_waits_for_no_turn(scene: Scene) -> None:
    scene.jobs = []
    scene.advance(1)
    scene.begin()
    await scene.finish()
    assert scene.on_disk() == ("round-000001", scene.state())
    (job,) = scene.jobs
    job()  # Too late, and of no use.
    await scene.finish()
    assert scene.written == [("round-000001", 1)]


@pytest.mark.asyncio
async def test_one_is_written_at_a_time_and_the_newest_at_the_end(scene: Scene) -> None:
    scene.hold()
    for round_ in (1, 2, 3):
        scene.advance(round_)
        scene.begin()
    assert scene.written == []
    scene.gate.set()
    await scene.finish()
    assert scene.written == [("round-000001", 1), ("round-000003", 3)]
    assert scene.on_disk() == ("round-000003", scene.state())
    scene.begin()
    await scene.finish()
    assert len(scene.written) == 2  # It is on the disk already.


@pytest.mark.asyncio
async def test_before_the_first_commit_there_is_nothing_to_keep(scene: Scene) -> None:
    await scene.finish()
    assert scene.written == scene.failed == []
    assert not (scene.directory / CHECKPOINTS).exists()


@pytest.mark.asyncio
async def test_a_disk_that_refuses_costs_one_checkpoint_and_is_told(scene: Scene) -> None:
    (scene.directory / CHECKPOINTS).touch()
    await scene.write(1)
    assert scene.written == []
    assert len(scene.failed) == 1
    assert scene.failed[0].startswith(f"cannot write {scene.directory}/checkpoints/round-000001: ")
    await scene.finish()
    assert len(scene.failed) == 2
    (scene.directory / CHECKPOINTS).unlink()
    await scene.finish()
    assert scene.written == [("round-000001", 1)]
    assert scene.on_disk() == ("round-000001", scene.state())


@pytest.mark.asyncio
async def test_as_many_checkpoints_are_kept_as_the_node_is_told(tmp_path: Path) -> None:
    scene = Scene(tmp_path, kept=3)
    for round_ in (1, 2, 3, 4, 5):
        await scene.write(round_)
    names = sorted(path.name for path in (tmp_path / CHECKPOINTS).iterdir())
    assert names == ["round-000003", "round-000004", "round-000005"]
    scene.checkpoint_schedule.close()


@pytest.mark.asyncio
async def test_a_write_that_fails_deletes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    scene = Scene(tmp_path, kept=1)
    await scene.write(1)
    monkeypatch.setattr(checkpoint, "write_arrays", full)
    await scene.write(2)
    assert [why.endswith("No space left on device") for why in scene.failed] == [True]
    assert [path.name for path in (tmp_path / CHECKPOINTS).iterdir()] == ["round-000001"]
    scene.checkpoint_schedule.close()


@pytest.mark.asyncio
async def test_rank_states_go_with_their_checkpoints(scene: Scene) -> None:
    for round_ in (3, 5, 8, 10, 15, 20):
        scene.checkpoint_schedule.rank_state(round_).mkdir(parents=True)
        (scene.checkpoint_schedule.rank_state(round_) / "rank-0-of-1.safetensors").touch()
    (scene.directory / RANK_STATES / "round-notes").mkdir()
    for round_ in (5, 10, 15):
        await scene.write(round_)
    # 15 and 10 are what is kept; ranks may be writing 20 by now; notes are not ours.
    kept = ["round-000010", "round-000015"]
    assert sorted(path.name for path in (scene.directory / CHECKPOINTS).iterdir()) == kept
    assert sorted(path.name for path in (scene.directory / RANK_STATES).iterdir()) == [
        *kept,
        "round-000020",
        "round-notes",
    ]


@pytest.mark.asyncio
async def test_between_two_due_rounds_a_checkpoint_names_what_the_ranks_wrote_last(
    scene: Scene,
) -> None:
    scene.checkpoint_schedule.kept_rank_state = scene.checkpoint_schedule.rank_state(5)
    named: list[str] = []
    for round_ in (5, 7, 10):
        await scene.write(round_)
        path = scene.directory / CHECKPOINTS / f"round-{round_:06d}"
        named.append(read_checkpoint(path)[0].own.rank_state)
    # In the tenth the ranks are asked again, and may not have begun.
    assert named == ["round-000005", "round-000005", "round-000010"]


@pytest.mark.asyncio
async def test_the_last_whole_rank_state_stays_although_its_checkpoint_went(scene: Scene) -> None:
    for round_ in (3, 5):
        scene.checkpoint_schedule.rank_state(round_).mkdir(parents=True)
    scene.checkpoint_schedule.kept_rank_state = scene.checkpoint_schedule.rank_state(5)
    for round_ in (5, 7, 8):
        await scene.write(round_)
    assert [path.name for path in (scene.directory / RANK_STATES).iterdir()] == ["round-000005"]


@pytest.mark.asyncio
async def test_the_first_checkpoint_takes_no_rank_state_but_the_old(scene: Scene) -> None:
    for round_ in (5, 10):
        scene.checkpoint_schedule.rank_state(round_).mkdir(parents=True)
    await scene.write(5)
    left = sorted(path.name for path in (scene.directory / RANK_STATES).iterdir())
    assert left == ["round-000005", "round-000010"]


@pytest.mark.asyncio
async def test_what_the_run_took_back_is_taken_off_the_disk(scene: Scene) -> None:
    for round_ in (3, 5):
        await scene.write(round_)
    checkpoints = scene.directory / CHECKPOINTS
    (checkpoints / "round-000009.new").mkdir()  # Begun, and never finished.
    (checkpoints / "round-notes").mkdir()
    scene.take_back(4)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["round-000003", "round-notes"]
    scene.take_back(3)
    assert scene.on_disk()[0] == "round-000003"


@pytest.mark.asyncio
async def test_rounds_that_come_again_are_written_again(scene: Scene) -> None:
    await scene.write(5)
    scene.begin()
    scene.take_back(3)
    outer, momentum = arrays(scene.replica, 0)
    scene.replica.restore(
        0, 3, outer, momentum, lineage=scene.core.run_state.lineage
    )  # As if it had been kept.
    for round_ in (4, 5):
        scene.apply(round_)
    await scene.finish()
    assert scene.written == [("round-000005", 5), ("round-000005", 5)]
    assert scene.on_disk() == ("round-000005", scene.state())


@pytest.mark.asyncio
async def test_what_is_being_written_when_the_run_goes_back_does_not_stay(scene: Scene) -> None:
    """Its lineage has ended; a restart would find it instead of the one that counts."""
    await scene.write(3)
    scene.hold()
    scene.advance(5)
    scene.begin()
    scene.take_back(3)
    scene.gate.set()
    assert scene.checkpoint_schedule._pending is not None
    await scene.checkpoint_schedule._pending
    assert scene.on_disk()[0] == "round-000003"


@pytest.mark.asyncio
async def test_history_takes_nothing_back_that_came_after_it(scene: Scene) -> None:
    """A peer that starts again reads of every Restore once more."""
    await scene.write(5)
    run_state = scene.rolled_back()
    run_state.branches.append(Branch(0xABC, (3, 3)))
    scene.checkpoint_schedule.take_back(3, run_state)
    assert scene.on_disk()[0] == "round-000005"
    unknown = scene.rolled_back()
    unknown.lineage = 0xABC
    scene.checkpoint_schedule.take_back(3, unknown)
    assert scene.on_disk()[0] == "round-000005", "its lineage begins with a later entry"


@pytest.mark.asyncio
async def test_a_later_rollback_to_a_checkpoint_voids_it_for_no_earlier_one(scene: Scene) -> None:
    """All nodes were killed, went on from round 5, and were killed again: the log that they read
    then has both rollbacks, and is read at once (seed 271590843)."""
    await scene.write(5)
    scene.checkpoint_schedule.take_back(3, scene.rolled_back((5, 5)))
    assert scene.on_disk()[0] == "round-000005"
    scene.checkpoint_schedule.take_back(3, scene.rolled_back((5, 5), (5, 5)))
    assert scene.on_disk()[0] == "round-000005"
    scene.checkpoint_schedule.take_back(3, scene.rolled_back((5, 5), (4, 5)))
    assert not list((scene.directory / CHECKPOINTS).iterdir())


def test_ranks_write_beside_no_file_of_others(scene: Scene) -> None:
    """Rank 0 of two was lost while it wrote, or what both wrote was rolled back: a part of it and a
    part of new files would look whole."""
    schedule = scene.checkpoint_schedule
    for round_ in (5, 10):
        schedule.rank_state(round_).mkdir(parents=True)
        (schedule.rank_state(round_) / "rank-1-of-2.safetensors").touch()
    schedule.kept_rank_state = schedule.rank_state(5)
    for round_, files in ((5, 1), (10, 0), (15, 0)):
        place = schedule.fresh_rank_state(round_)
        assert place == schedule.rank_state(round_)
        assert len(list(place.glob("*"))) == files


@pytest.mark.asyncio
async def test_what_ranks_wrote_in_a_branch_goes_with_it(scene: Scene) -> None:
    """FlexDeMo's ranks write none of the steps that come again: a start from the next checkpoint of
    these would find the momentum of the branch that was given up."""
    schedule = scene.checkpoint_schedule
    await scene.write(5)
    await scene.write(10)
    for round_ in (3, 5, 8, 10):
        schedule.rank_state(round_).mkdir(parents=True)
        (schedule.rank_state(round_) / "rank-0-of-1.safetensors").touch()
    schedule.take_back(4, scene.rolled_back((10, 10)))  # A peer reads of it once more.
    states = scene.directory / RANK_STATES
    assert sorted(path.name for path in states.iterdir()) == [
        *("round-000003", "round-000005", "round-000010")
    ]
    scene.take_back(7)
    assert sorted(path.name for path in states.iterdir()) == ["round-000003", "round-000005"]


@pytest.mark.asyncio
async def test_new_ranks_do_not_start_from_what_was_rolled_back(scene: Scene) -> None:
    schedule = scene.checkpoint_schedule
    for round_ in (5, 10):
        schedule.rank_state(round_).mkdir(parents=True)
        (schedule.rank_state(round_) / "rank-0-of-1.safetensors").touch()
        schedule.kept_rank_state = schedule.rank_state(round_)
        await scene.write(round_)
    schedule.take_back(7, scene.rolled_back((10, 10)))  # A peer reads of it once more.
    assert schedule.kept_rank_state == schedule.rank_state(10)
    scene.take_back(7)
    assert schedule.kept_rank_state == schedule.rank_state(5)
    scene.take_back(4)
    assert schedule.kept_rank_state is None


@pytest.mark.asyncio
async def test_what_a_codec_left_out_is_kept_with_the_state(scene: Scene) -> None:
    scene.replica = Replica(DiLoCoMethod(contribution_codec="topk"), LAYOUT)
    for fragment, size in enumerate(SIZES):
        scene.replica.initialise(fragment, np.ones(size, np.float32).data.cast("B"))
    scene.begin()
    assert scene.checkpoint_schedule._pending is not None
    await scene.checkpoint_schedule._pending
    assert scene.failed == []
    for fragment, size in enumerate(SIZES):
        version, digest = scene.replica.version(fragment)
        place = scene.directory / CHECKPOINTS
        found = find_residue(place, fragment, version, digest, elements=size)
        assert found is not None
        assert found.tobytes() == scene.replica.capture().residues[fragment].tobytes()
