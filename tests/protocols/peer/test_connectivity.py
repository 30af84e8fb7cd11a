"""Who needs whom: heartbeats, answers, and whom a peer without a leader asks."""

import pytest

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links.leader_discovery import RETRY_S
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.peer.leader_watch import OUTAGE
from protocols.types.ids import PeerId, Version
from protocols.types.rules import ProtocolConfig
from tests.protocols.led import Led, leading
from tests.protocols.scenes import RULES, START, A, B, C, D, Follower, follower, info
from tests.protocols.secure_room import SecureRoom

BEAT_S = RULES.heartbeat_interval_s


def beats(scene: Follower) -> set[PeerId]:
    """Who hears of us at our next heartbeat."""
    scene.beat()
    scene.waits(BEAT_S)
    return {to for to, _ in scene.sent(m.Heartbeat)}


def test_a_peer_lets_the_leader_hear_of_it_and_nobody_else() -> None:
    assert beats(follower(B, C, D)) == {A}


def test_who_waits_for_a_result_watches_those_who_make_it() -> None:
    scene = follower(B, C, D, owners=(A, D, D))
    assert beats(scene) == {A}
    scene.encode(1)
    assert beats(scene) == {A, D}


def test_who_waits_for_a_state_watches_its_donor() -> None:
    scene = follower(B, C)
    scene.gets_cut(donor=C, slot=2)
    assert beats(scene) == {A, C}
    scene.gets_state()
    assert beats(scene) == {A}


def test_voters_watch_each_other() -> None:
    """One of them leads next, and must know with whom."""
    scene = follower(B, C, D)
    scene.reads(e.Voter(B, votes=True, why=""))
    scene.reads(e.Voter(C, votes=True, why=""))
    assert beats(scene) == {A, C}


def test_without_a_leader_everybody_watches_the_voters() -> None:
    scene = follower(B, C, D)
    scene.reads(e.Voter(C, votes=True, why=""))
    assert beats(scene) == {A}
    scene.waits(2 * RULES.election_timeout_s)
    scene.waits(BEAT_S)
    assert {to for to, _ in scene.sent(m.Heartbeat)} == {A, C}


def test_who_is_not_let_in_yet_looks_for_others_than_whom_it_came_by() -> None:
    """Seed 4271888418: the leader died, and it dialled nobody else for ever."""
    scene = Follower(B)
    scene.begins()
    scene.reads(e.Cut(info(C, 1), (A,), (Version(0, 0, START),)), e.Member(info(C, 1)))
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.waits(RETRY_S)
    assert c.Connect(PeerId(""), "c:1") in scene.all(c.Connect)


def test_who_knows_no_log_watches_whomever_it_knows() -> None:
    scene = Follower(B)
    scene.meets(C, leader="")
    scene.waits(BEAT_S)
    assert {to for to, _ in scene.sent(m.Heartbeat)} == {C}


def test_who_is_needed_and_needs_nobody_answers() -> None:
    scene = follower(B, C)
    beats(scene)
    assert scene.hears(C, m.Heartbeat()) == [c.Send(C, m.HeartbeatReply())]
    assert scene.hears(A, m.Heartbeat()) == [], "it hears of us anyway"
    assert scene.hears(C, m.HeartbeatReply()) == []


def test_the_leader_watches_everybody() -> None:
    scene = leading(B, C)
    scene.meets(D)
    scene.waits(BEAT_S)
    assert {x.peer for x in scene.all(c.Send)} == {B, C, D}


def test_other_rules_count_from_the_next_heartbeat() -> None:
    """Seed 83003: the agreed silence was over just then, and the deadline stayed in the past."""
    scene = Follower(B)
    scene.meets(C, leader="")
    first_s = ProtocolConfig().heartbeat_interval_s
    agreed = ProtocolConfig(silence_timeout_s=6.0)
    scene.waits(first_s + agreed.silence_timeout_s - 0.1)
    scene.on(v.RunAccepted(agreed))
    scene.waits(0.2)
    assert C not in scene.core.links.up


# Peers that nobody can dial ---------------------------------------------------------------------


def with_voter(*, hidden: bool, voter: str) -> set[PeerId]:
    """B votes, and has all that A has, who leads. To whom A hands over. `voter`: B's address."""
    scene = Led(hidden=hidden)
    scene.on(v.PeerConnected(B, 1, voter, ""))
    scene.hears(B, m.ReadLog(0))
    scene.hears(B, m.Join("b", 1, voter, "new", ""))
    index, cut = scene.core.run_state.cuts[B]
    version = cut.versions[0]
    scene.hears(B, m.Have(scene.lineage, 0, version.round, version.state_digest))
    scene.hears(B, m.CaughtUp(index, "b", 1, voter))
    asked: set[PeerId] = set()
    for _ in range(4):  # The vote is an entry, which B has to have before it counts.
        scene.hears(B, m.Appended(scene.core.raft.term, True, scene.core.raft.log.last_index))
        asked.update(to for to, _ in scene.sent(m.HandOver))
        scene.waits(1.0)
        asked.update(to for to, _ in scene.sent(m.HandOver))
    assert B in scene.core.raft.log.voters
    return asked


def test_a_leader_that_nobody_can_dial_lets_a_voter_lead_that_can_be() -> None:
    """Who joins has to reach the leader, and nobody carries a stranger's words to it."""
    assert with_voter(hidden=True, voter="b:1") == {B}


@pytest.mark.parametrize("hidden", [True, False])
def test_who_leads_alone_and_cannot_be_dialled_dials_whom_it_lost(*, hidden: bool) -> None:
    """Seed 2150150 of hidden peers: it struck all others, and nobody could come back to it."""
    scene = Led(hidden=hidden)
    scene.joins(B)
    scene.on(v.PeerDisconnected(B, "end of stream"))
    scene.waits(RULES.reconnect_grace_s)
    assert scene.core.run_state.members.keys() == {A}
    scene.waits(RETRY_S)
    scene.waits(RETRY_S)
    assert (c.Connect(PeerId(""), "b:1") in scene.all(c.Connect)) is hidden


def test_who_leads_and_can_be_dialled_goes_on_and_so_does_the_best_there_is() -> None:
    assert with_voter(hidden=False, voter="b:1") == set()
    assert with_voter(hidden=True, voter="") == set()


# Links that are missing -------------------------------------------------------------------------


def missed(said: list[c.Command]) -> list[tuple[PeerId, ...]]:
    return [
        command.message.peers
        for command in said
        if isinstance(command, c.Send) and isinstance(command.message, m.UnreachedMembers)
    ]


def quiet_time(scene: Follower, seconds: float) -> list[c.Command]:
    """The leader is heard of, and nothing else happens."""
    said: list[c.Command] = []
    for _ in range(int(seconds / BEAT_S)):
        scene.beat()
        said += scene.waits(BEAT_S)
    return said


def test_the_leader_hears_once_whom_we_miss_and_when_we_do_no_more() -> None:
    scene = follower(B, C, D)
    assert missed(quiet_time(scene, 10.0)) == []
    scene.on(v.PeerDisconnected(C, "end of stream"))
    assert missed(quiet_time(scene, RULES.election_timeout_s - BEAT_S)) == []
    assert missed(quiet_time(scene, 10.0)) == [(C,)]
    said = scene.meets(C) + quiet_time(scene, 3 * BEAT_S)
    assert missed(said) == [()]


def test_it_hears_it_again_on_a_new_connection() -> None:
    scene = follower(B, C, D)
    scene.on(v.PeerDisconnected(C, "end of stream"))
    assert missed(quiet_time(scene, 10.0)) == [(C,)]
    scene.on(v.PeerDisconnected(A, "end of stream"))
    said = scene.meets(A) + quiet_time(scene, 3 * BEAT_S)
    assert missed(said) == [(C,)]


def test_what_was_said_in_an_earlier_term_is_taken_back_in_the_next() -> None:
    """It may have come late, to the same leader in its new term (seed 1705166)."""
    scene = follower(B, C, D)
    scene.on(v.PeerDisconnected(C, "end of stream"))
    assert missed(quiet_time(scene, 10.0)) == [(C,)]
    last = scene.log.last_index
    said = scene.hears(A, m.Vote(2, last, 1, pre=False, urgent=True))
    assert missed(said + scene.meets(C)) == [], "nobody leads: there is nobody to tell"
    elected = scene.log.append(e.Elected(A), term=2)
    said = scene.hears(A, m.Append(1, 2, last, 1, (elected,), elected.index))
    assert missed(said + scene.waits(2 * BEAT_S)) == [()]


def test_who_leads_says_which_link_is_missing_and_who_waits() -> None:
    scene = leading(B, C, D)
    said = scene.hears(B, m.UnreachedMembers((C,))) + scene.waits(2 * BEAT_S)
    notes = [x.text for x in said if isinstance(x, c.Observation) and x.kind == "links"]
    assert notes == ["no link between b and c: c cannot take part until there is one"]
    said = scene.hears(B, m.UnreachedMembers(())) + scene.waits(2 * BEAT_S)
    notes = [x.text for x in said if isinstance(x, c.Observation) and x.kind == "links"]
    assert notes == ["all members are connected again"]


# Revoked peers ---------------------------------------------------------------------------------


def test_a_peer_that_was_down_is_refused_when_it_comes_back() -> None:
    room = SecureRoom("abc")
    room.kill("c")
    room.wait(RULES.reconnect_grace_s + 1.0)
    room.revoke("b", "c")
    assert room.checked("a") == ["c"]
    room.returns("c")
    room.wait(2.0)
    assert room.outcome("c") == "refused"
    assert room.voters("a") == "ab"


def test_one_voter_alone_ends_no_peer_however_long_it_repeats_that() -> None:
    """Of its three voters one is dead. The other one may have cut it off, and may lie."""
    scene = follower(B, C)
    for peer in (B, C):
        scene.reads(e.Voter(peer, votes=True, why=""))
    for peer in (A, C):
        scene.on(v.PeerDisconnected(peer, "end of stream"))
    scene.on(v.Barred(A, "revoked"))
    scene.waits(2 * OUTAGE * RULES.silence_timeout_s)
    assert not scene.core.stopped
    scene.on(v.Barred(C, "revoked"))
    assert scene.core.stopped


def test_it_is_behind_a_snapshot_too() -> None:
    room = SecureRoom("abcd")
    for core in room.peers.values():
        core.log_applier.compact_entries = 4
    for other in "abc":
        room.cut(other, "d")
    room.wait(2.0)
    room.revoke("a", "b")
    for _ in range(6):
        room.contribute("a")
        room.contribute("c")
        room.wait(1.0)
    core = room.peers["d"]
    assert room.peers["a"].raft.log.base > core.raft.log.last_index
    room.links.add(frozenset("bd"))
    room.feed("d", v.PeerConnected(room.ids["b"], 1, "b:1", ""))
    room.down.clear()
    room.meet("a", "d")
    room.wait(2.0)
    assert room.ids["b"] in core.run_state.spendings.revoked
    assert room.ids["b"] not in core.links.up
    assert room.ids["b"] not in core.run_state.voters
