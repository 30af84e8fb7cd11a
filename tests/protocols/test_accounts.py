"""A voter that cannot write says so, and loses its vote for as long as that lasts."""

from protocols import commands as c
from protocols import entries as e
from protocols import events as v
from protocols import messages as m
from protocols.ids import PeerId
from tests.protocols.led import Led, a_rests, last, leading, written
from tests.protocols.scenes import A, B, C, D, follower

FULL = "no space left on device"


def acknowledge(scene: Led, *peers: PeerId) -> None:
    """They have the whole log on their disks."""
    for peer in peers:
        index = scene.core.raft.log.last_index
        scene.hears(peer, m.Appended(1, matches=True, index=index))


def voters() -> Led:
    """A leads; B and C vote with it, and D does not."""
    scene = leading(B, C, D)
    a_rests(scene)
    for voter in (B, C):
        acknowledge(scene, B, C, D)
        scene.hears(voter, m.Durable(works=True, why=""))
    acknowledge(scene, B, C)
    assert scene.core.members.voters == (A, B, C)
    return scene


def test_a_voter_with_a_full_disk_loses_its_vote() -> None:
    scene = voters()
    scene.hears(B, m.Durable(works=False, why=FULL))
    assert last(scene, e.Voter) == e.Voter(B, votes=False, why=FULL)
    acknowledge(scene, C)
    assert scene.core.members.voters == (A, C)
    assert not scene.core.raft.reconfiguring


def test_it_gets_its_vote_back_when_its_disk_works_and_not_before() -> None:
    scene = voters()
    scene.hears(B, m.Durable(works=False, why=FULL))
    acknowledge(scene, C)
    votes = len(written(scene, e.Voter))
    acknowledge(scene, B, C, D)
    scene.hears(B, m.Able())
    assert len(written(scene, e.Voter)) == votes
    scene.hears(B, m.Durable(works=True, why=""))
    assert last(scene, e.Voter) == e.Voter(B, votes=True, why="there is a place")


def test_a_later_life_is_not_blamed_for_the_full_disk_of_an_earlier_one() -> None:
    """It has nothing to say of its disk, which works: silence must not keep it from voting."""
    scene = voters()
    scene.hears(B, m.Durable(works=False, why=FULL))
    acknowledge(scene, C)
    scene.on(v.PeerDisconnected(B, "it ended"))
    scene.meets(B, leader="", incarnation=2)
    acknowledge(scene, B, C, D)
    assert last(scene, e.Voter) == e.Voter(B, votes=True, why="there is a place")


def test_a_peer_says_when_its_disk_is_full_and_when_it_is_not_any_more() -> None:
    scene = follower(B)
    scene.slow_disk = True
    scene.reads(e.Elected(A))
    ticket = scene.one(c.Persist).ticket
    scene.on(v.PersistFailed(ticket, FULL))
    assert scene.sent(m.Durable) == [(A, m.Durable(works=False, why=FULL))]
    scene.beat()
    assert scene.sent(m.Durable) == []
    scene.slow_disk = False
    scene.waits(5.0)
    assert scene.sent(m.Durable) == [(A, m.Durable(works=True, why=""))]
