"""Who needs whom: heartbeats, answers, and whom a peer without a leader asks."""

from protocols import commands as c
from protocols import entries as e
from protocols import events as v
from protocols import messages as m
from protocols.config import ProtocolConfig
from protocols.ids import PeerId
from tests.protocols.led import leading
from tests.protocols.scenes import RULES, A, B, C, D, Follower, follower

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


def test_who_knows_no_log_watches_whomever_it_knows() -> None:
    scene = Follower(B)
    scene.meets(C, leader="")
    scene.waits(BEAT_S)
    assert {to for to, _ in scene.sent(m.Heartbeat)} == {C}


def test_who_is_needed_and_needs_nobody_answers() -> None:
    scene = follower(B, C)
    beats(scene)
    assert scene.hears(C, m.Heartbeat()) == [c.Send(C, m.Here())]
    assert scene.hears(A, m.Heartbeat()) == [], "it hears of us anyway"
    assert scene.hears(C, m.Here()) == []


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
