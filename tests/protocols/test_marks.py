"""What wakes which parts of a core: what changes a part raises its mark, and nothing else does."""

import pytest

from protocols import events as v
from protocols import marks
from protocols import messages as m
from tests.protocols.led import leading
from tests.protocols.scenes import A, B, C, Follower, contributor, follower
from tests.protocols.stepping import Stepper, payload, stepper

PARTS = [getattr(marks, name) for name in vars(marks) if name.isupper()]


def woken(scene: Follower, event: v.Event) -> int:
    """The marks that an event raises, before any part has run."""
    found: list[int] = []
    look = scene.core.look

    def noted(now: float) -> None:
        found.append(scene.core.raised)
        look(now)

    scene.core.look = noted
    scene.core.handle(event, scene.now)
    scene.core.look = look
    return found[0]


def test_each_part_has_a_mark_of_its_own() -> None:
    single = [mark for mark in PARTS if isinstance(mark, int) and mark.bit_count() == 1]
    assert set(single) == {1 << number for number in range(16)}
    assert sum(set(single)) == marks.ALL


def test_a_heartbeat_wakes_nothing_and_an_entry_only_elections() -> None:
    scene = follower(B, C)
    assert woken(scene, v.MessageReceived(C, m.Heartbeat())) == 0
    index, term = scene.log.last_index, scene.log.last_term
    beat = m.Append(1, 1, index, term, (), index)
    assert woken(scene, v.MessageReceived(A, beat)) == marks.RAFT
    assert woken(scene, v.Persisted(1)) == marks.RAFT


@pytest.mark.parametrize(
    "event",
    [
        v.PeerConnected(C, 1, "c:1", ""),
        v.PeerDisconnected(C, "end of stream"),
        v.TrainersReady(),
        v.TrainersLost("crash"),
        v.LeaveRequested("asked to"),
    ],
)
def test_what_all_parts_read_wakes_all(event: v.Event) -> None:
    assert woken(follower(B, C), event) == marks.ALL


def test_time_wakes_the_parts_whose_deadline_has_come() -> None:
    scene = follower(B, C)
    assert woken(scene, v.DeadlineReached()) == 0, "nothing is due"
    scene.now = scene.core.deadline
    assert woken(scene, v.DeadlineReached()) != 0
    assert scene.core.deadline > scene.now


def test_what_peers_report_wakes_the_office_and_nothing_where_there_is_none() -> None:
    scene = leading(B)
    scene.now += 0.01
    assert woken(scene, v.MessageReceived(B, m.Able())) == marks.OFFICE
    assert woken(scene, v.MessageReceived(B, m.Unlinked(()))) == marks.OFFICE | marks.COMPANY
    assert woken(follower(B, C), v.MessageReceived(C, m.Able())) == 0


def test_a_slice_wakes_its_round_when_the_sum_is_complete() -> None:
    scene = follower(B, C)
    stamp = scene.stamp(1)
    plan = scene.core.members.open_plan(0)
    assert plan is not None
    (part,) = plan.owned_by(B)[:1]
    others = [peer for peer in plan.roster if peer != B]
    for peer in others:
        event = v.SliceReceived(peer, stamp, part, contributor(peer))
        assert woken(scene, event) == 0, "our own is not there yet"
    made = v.ContributionReady(0, 10, 1)
    assert woken(scene, made) == marks.OUR_ROUND


def is_woken(scene: Stepper, step: int, peer: str) -> bool:
    who = A if peer == "a" else C
    event = v.StepReceived(who, scene.at(step), who, payload(who, step))
    return woken(scene, event) == marks.NEXT_STEP


def test_a_payload_wakes_the_next_step_when_it_was_the_last_one() -> None:
    scene = stepper(C)
    scene.makes(1)
    assert not is_woken(scene, 1, "c")
    assert is_woken(scene, 1, "a")


def test_a_payload_of_a_later_step_may_say_that_we_are_behind() -> None:
    scene = stepper(C)
    scene.makes(1)
    assert is_woken(scene, 2, "c")
