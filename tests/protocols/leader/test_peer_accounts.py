"""What the leader remembers of a peer: of its present life, and nothing once it is gone."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import cast

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.leader.peer_accounts import Accounts
from protocols.links.connections import Connections
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.peer.wait_reason import describe
from protocols.raft.log import Log
from protocols.raft.node import Raft
from protocols.state.run_state import RunState
from protocols.types.ids import PeerId, Version
from tests.protocols.led import Led, a_rests, keep_alive, last, leading, three, written
from tests.protocols.scenes import START, A, B, C, D, caught_up, follower, join

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
    assert scene.core.run_state.voters == (A, B, C)
    return scene


def test_a_voter_with_a_full_disk_loses_its_vote() -> None:
    scene = voters()
    scene.hears(B, m.Durable(works=False, why=FULL))
    assert last(scene, e.Voter) == e.Voter(B, votes=False, why=FULL)
    acknowledge(scene, C)
    assert scene.core.run_state.voters == (A, C)
    assert not scene.core.raft.reconfiguring


def test_it_gets_its_vote_back_when_its_disk_works_and_not_before() -> None:
    scene = voters()
    scene.hears(B, m.Durable(works=False, why=FULL))
    acknowledge(scene, C)
    votes = len(written(scene, e.Voter))
    acknowledge(scene, B, C, D)
    scene.hears(B, m.ReadyToTrain())
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
    assert last(scene, e.Voter).votes is False, "the log does not know this life yet"
    scene.hears(B, join(B, "restarted", incarnation=2))
    acknowledge(scene, C)
    index, _ = scene.core.run_state.cuts[B]
    scene.hears(B, m.Have(scene.lineage, 0, 0, START))
    scene.hears(B, caught_up(B, index, incarnation=2))
    acknowledge(scene, B, C)
    assert last(scene, e.Voter) == e.Voter(B, votes=True, why="there is a place")


def test_a_peer_says_when_its_disk_is_full_and_when_it_is_not_any_more() -> None:
    scene = follower(B)
    scene.slow_disk = True
    scene.reads(e.Elected(A))
    write_number = scene.one(c.Persist).write_number
    scene.on(v.PersistFailed(write_number, FULL))
    assert scene.sent(m.Durable) == [(A, m.Durable(works=False, why=FULL))]
    scene.beat()
    assert scene.sent(m.Durable) == []
    scene.slow_disk = False
    scene.waits(5.0)
    assert scene.sent(m.Durable) == [(A, m.Durable(works=True, why=""))]


def test_a_member_with_a_full_disk_is_not_waited_for_until_its_disk_works() -> None:
    """It gets at most eight entries of the log more: the others waited for its slices of the next
    round, for the grace of 30 s."""
    scene = follower(B)
    scene.encode(1)
    scene.slow_disk = True
    scene.reads(e.Elected(A))
    scene.on(v.PersistFailed(scene.one(c.Persist).write_number, FULL))
    assert scene.sent(m.NotReadyToTrain) == [(A, m.NotReadyToTrain(FULL))]
    assert FULL in describe(scene.core, scene.now).reason
    scene.on(v.TrainersAble())
    assert scene.sent(m.ReadyToTrain) == []
    scene.slow_disk = False
    scene.waits(5.0)
    assert scene.sent(m.ReadyToTrain) == [(A, m.ReadyToTrain())]


def test_a_disk_that_hangs_is_told_as_a_full_one_and_so_is_its_return() -> None:
    scene = follower(B)
    scene.encode(1)
    scene.slow_disk = True
    scene.reads(e.Elected(A))
    write_number = scene.one(c.Persist).write_number
    scene.said = scene.waits(1.0)
    ((to, report),) = scene.sent(m.Durable)
    assert (to, report.works) == (A, False)
    assert "a write to this node's log has not returned for 0.8 s" in report.why
    assert scene.sent(m.NotReadyToTrain) == [(A, m.NotReadyToTrain(report.why))]
    assert scene.notes("disk") == [f"the log cannot be written: {report.why}"]
    assert report.why in describe(scene.core, scene.now).reason
    scene.said = scene.beat() + scene.waits(2.0)
    assert (scene.sent(m.Durable), scene.notes("disk")) == ([], [])
    scene.slow_disk = False
    scene.on(v.Persisted(write_number))
    assert scene.sent(m.Durable) == [(A, m.Durable(works=True, why=""))]
    assert scene.sent(m.ReadyToTrain) == [(A, m.ReadyToTrain())]


def test_of_two_nodes_both_say_what_they_wait_for_while_the_leaders_disk_hangs() -> None:
    """The other one has no majority."""
    scene = leading(B)
    scene.slow_disk = True
    scene.hears(B, join(B, "restarted", incarnation=9))
    assert scene.all(c.Persist)
    scene.said = scene.waits(1.0)
    assert not scene.core.leads
    assert scene.sent(m.HandOver) == [], "B lacks the last entries"
    assert "this node's disk: a write" in describe(scene.core, scene.now).reason
    other = follower(B)
    other.reads(e.Voter(B, votes=True, why=""))
    for _ in range(20):
        other.waits(0.25)
        other.hears(A, m.Heartbeat())
    assert describe(other.core, other.now).reason == "an election, in which a vote"


def test_of_two_members_the_one_with_a_working_disk_goes_on() -> None:
    """The other one gets too few entries of the log to hold the results."""
    scene = leading(B)
    scene.on(v.TrainersReady())
    scene.hears(B, m.Durable(works=False, why=FULL))
    scene.hears(B, m.NotReadyToTrain(FULL))
    assert scene.core.run_state.voters == (A,)
    scene.encode(1)
    scene.reduced(scene.stamp(1, number=last(scene, e.View).view), 0)
    assert last(scene, e.Commit).round == 1


def test_that_a_disk_works_again_is_said_though_the_connection_broke_meanwhile() -> None:
    """Else the leader, which saw no end of the connection, gave the peer no vote any more (stepwise
    seed 5100299)."""
    scene = follower(B)
    scene.slow_disk = True
    scene.reads(e.Elected(A))
    scene.on(v.PersistFailed(scene.one(c.Persist).write_number, FULL))
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.slow_disk = False
    scene.waits(5.0)
    scene.meets(A)
    assert scene.sent(m.Durable) == [(A, m.Durable(works=True, why=""))]


def test_another_life_begins_with_an_empty_record() -> None:
    links = Connections()
    accounts = Accounts(links)
    links.connected(v.PeerConnected(B, 1, "b:1", ""), 0.0)
    first = accounts.for_peer(B)
    first.told, first.broken, first.going = True, FULL, True
    assert (accounts.told(B), accounts.broken(B), accounts.going) == (True, FULL, {B})
    links.connected(v.PeerConnected(B, 2, "b:1", ""), 1.0)
    assert (accounts.told(B), accounts.broken(B), accounts.going) == (False, "", set())
    assert accounts.goes(B, 1)
    assert not accounts.goes(B, 2)
    accounts.for_peer(B).told = True
    assert (accounts.told(B), accounts.broken(B)) == (True, "")


# Reports of another lineage -------------------------------------------------------------------


def test_what_is_said_in_another_lineage_is_dropped() -> None:
    """A Restore took back what it speaks of; the peer says it anew when it has read that."""
    scene = three()
    leader, other = scene.leader, scene.lineage ^ 1
    before = set(leader.reports.able)
    for message in (
        m.NotReadyToTrain("its ranks are not ready", lineage=other),
        m.WantSamples(40, 0, lineage=other),
        replace(join(B, "diverged"), lineage=other),
        replace(caught_up(B, 7), lineage=other),
    ):
        assert leader.handle_report(B, message, scene.now) == ""
    assert (leader.reports.able, leader.sample_leases.wants) == (before, {})
    assert (leader.joins.joins, leader.joins.caught_up) == ({}, {})
    leader.handle_report(
        B, m.NotReadyToTrain("its ranks are not ready", lineage=scene.lineage), scene.now
    )
    assert leader.reports.able == before - {B}
    leader.handle_report(B, m.ReadyToTrain(lineage=other), scene.now)
    assert leader.reports.able == before - {B}


def test_who_was_able_before_a_restore_has_to_say_so_again() -> None:
    """Else the first view of the new lineage would wait for peers that have no state yet."""
    scene = three()
    lineage, versions = scene.lineage, (Version(0, 0, START),)
    assert scene.core.led_term is not None
    scene.core.led_term.append(e.Restore(lineage, versions, 0, 0, (), 0, False, 1))
    assert scene.leader.reports.able == set()
    assert scene.leader.next_entry(scene.now) is None
    for peer in (B, C):
        scene.leader.handle_report(
            peer, m.ReadyToTrain(lineage=scene.core.led_term.head.lineage), scene.now
        )
    view = scene.leader.next_entry(scene.now)
    assert isinstance(view, e.View)
    assert view.roster == (B, C)


def test_a_peer_names_the_lineage_that_it_has_read() -> None:
    scene = follower(B)
    scene.on(v.TrainersLost("crash"))
    said = [x.message for x in scene.all(c.Send) if isinstance(x.message, m.NotReadyToTrain)]
    lineage = scene.core.run_state.lineage
    assert [(each.why, each.lineage) for each in said] == [("crash", lineage)]
    scene.reads(e.Restore(lineage, (Version(0, 0, START),), 0, 0, (), 0, False, 1))
    asked = [x.message for x in scene.all(c.Send) if isinstance(x.message, m.Join)]
    assert [each.lineage for each in asked] == [scene.core.run_state.lineage] != [lineage]


# What is left of peers that came and went within a term --------------------------------------


def come_and_go(scene: Led, number: int) -> PeerId:
    """A peer comes, says everything that a peer can say, and goes in one of several ways."""
    peer = PeerId(f"x{number:05}.{number:08x}")
    scene.comes(peer)
    scene.hears(peer, m.ReadLog(0))
    scene.hears(peer, m.Kept(scene.lineage, (Version(0, 0, START),), 0, 0))
    way = number % 6
    if way == 5:
        scene.hears(peer, m.Durable(works=False, why=FULL))
    elif way:
        scene.joins(peer)
        scene.hears(peer, m.WantSamples(8, 0))
        scene.hears(peer, m.UnreachedMembers((B,)))
        scene.hears(peer, m.UnreachedMembers(()) if number % 2 else m.UnreachedMembers((C,)))
    else:
        scene.hears(peer, m.Witnessing("x", 1, "x:1"))
    if way == 1:
        scene.hears(peer, m.Leave("a person asked"))
        scene.on(v.PeerDisconnected(peer, "it ended"))
    elif way == 2:
        scene.on(v.PeerDisconnected(peer, "it ended"))
        scene.comes(peer, incarnation=2)
        scene.hears(peer, join(peer, "restarted", incarnation=2, against=B))
    if way != 1:
        scene.on(v.PeerDisconnected(peer, "it ended"))
    keep_alive(scene, 3, B, C, D)
    return peer


def leaves(root: object) -> Iterator[tuple[str, object]]:
    """Whatever an object holds in its tables, and where; but for the log and what that says."""
    seen: set[int] = set()
    pending: list[tuple[str, object]] = [("", root)]
    while pending:
        path, at = pending.pop()
        if isinstance(at, str | int | float):
            yield path, at
            continue
        if id(at) in seen or isinstance(at, Log | RunState | Raft):
            continue
        seen.add(id(at))
        if isinstance(at, Mapping):
            table = cast(Mapping[object, object], at)
            pending += ((f"{path}.keys", key) for key in table)
            pending += ((f"{path}[]", value) for value in table.values())
        elif isinstance(at, Collection):
            pending += ((f"{path}[]", each) for each in cast(Collection[object], at))
        elif type(at).__module__.startswith("protocols."):
            names = {*getattr(at, "__dict__", {}), *getattr(type(at), "__slots__", ())}
            pending += ((f"{path}.{name}", getattr(at, name, None)) for name in names)


def test_nothing_is_left_of_peers_that_came_and_went_within_a_term() -> None:
    scene = three()
    gone: set[PeerId] = set()
    sizes: list[int] = []
    for number in range(400):
        gone.add(come_and_go(scene, number))
        if number in (9, 399):
            sizes += (len(list(leaves(x))) for x in (scene.core.led_term, scene.core.links))
    assert scene.core.raft.term == 1
    assert not gone & scene.core.run_state.readers.keys()
    for root in (scene.core.led_term, scene.core.links):
        left = [path for path, leaf in leaves(root) if leaf in gone]
        # The connection that ended last is one, whichever peer it was with.
        assert [path for path in left if not path.endswith(".ended[]")] == []
    assert sizes[:2] == sizes[2:], "nothing else grew either"
