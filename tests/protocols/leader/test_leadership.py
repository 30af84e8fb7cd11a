"""Who leads, and who did a moment ago."""

from protocols.messages import log_entries as e
from protocols.messages import peer as m
from tests.protocols.scenes import RULES, A, B, C, Follower, follower


def hurried(scene: Follower) -> bool:
    return scene.core.rounds[0].work.others_wait


def voter() -> Follower:
    """B may stand for election."""
    scene = follower(B, C)
    scene.reads(e.Voter(B, votes=True, why=""))
    return scene


def test_a_leader_that_was_not_heard_for_a_while_is_still_believed_that_others_wait() -> None:
    """It says so once per connection, and the connection stays while we ask for an election."""
    scene = voter()
    scene.waits(2 * RULES.election_timeout_s)
    assert scene.core.leader_id is None
    scene.hears(C, m.ContributeNow(scene.stamp(1)))
    assert not hurried(scene), "C never led"
    scene.hears(A, m.ContributeNow(scene.stamp(1)))
    assert hurried(scene)


def test_who_led_in_an_earlier_term_is_not_believed() -> None:
    scene = voter()
    last = scene.log.last_index
    scene.hears(C, m.Vote(2, last, 1, pre=False, urgent=True))
    assert (scene.core.leader_id, scene.core.raft.term) == (None, 2)
    scene.hears(A, m.ContributeNow(scene.stamp(1)))
    assert not hurried(scene)
