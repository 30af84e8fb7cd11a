"""The leader's plan of relays: who carries for whom, and what happens when one does not."""

import pytest

from protocols.interface import commands as c
from protocols.interface.events import PeerDisconnected
from protocols.leader import relay_plan
from protocols.leader.relay_plan import deal
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.ids import PeerId, Version, digest_text
from tests.protocols.led import DIGEST, Led, a_rests, last, leading, of, written
from tests.protocols.scenes import RULES, START, A, B, C, D, contributor, info

BEAT_S = RULES.heartbeat_interval_s
LEARNERS = [PeerId(f"l{i:03}.1") for i in range(120)]
VOTERS = [PeerId(f"v{i}.1") for i in range(6)]


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_plan, "LEARNERS_MIN", 2)


def acknowledge(scene: Led, *peers: PeerId) -> list[c.Command]:
    """They have the whole log on their disks. All that A said."""
    said: list[c.Command] = []
    for peer in peers:
        index = scene.core.raft.log.last_index
        said += scene.hears(peer, m.Appended(1, matches=True, index=index))
    scene.said = said
    return said


def relayed() -> Led:
    """A leads, B votes and relays for C and D; round 1 is open."""
    scene = leading(B, C, D)
    a_rests(scene)
    acknowledge(scene, B, C, D)
    scene.hears(B, m.Durable(works=True, why=""))
    assert last(scene, e.Voter) == e.Voter(B, votes=True, why="there is a place")
    acknowledge(scene, B)
    scene.waits(BEAT_S)
    return scene


def passed(scene: Led, *said: tuple[PeerId, m.Reported], term: int = 1) -> list[c.Command]:
    """B passes on what its learners told it."""
    return scene.hears(
        B, m.PassedReports(term, tuple(m.Report(peer, 1, what) for peer, what in said))
    )


def is_ready(scene: Led, peer: PeerId) -> tuple[PeerId, m.ContributionOffered]:
    return peer, m.ContributionOffered(scene.stamp(1, number=of(scene)), contributor(peer))


def holds(scene: Led, peer: PeerId) -> tuple[PeerId, m.Hold]:
    return peer, m.Hold(scene.stamp(1, number=of(scene)), DIGEST)


def told_to_report(scene: Led) -> dict[PeerId, str]:
    """Through whom, as said in the last answer."""
    return {to: via.relay for to, via in scene.sent(m.Via)}


# The plan -------------------------------------------------------------------------------------


def test_the_plan_is_the_same_for_the_same_peers_and_shares_the_work() -> None:
    plan = deal(LEARNERS, VOTERS)
    assert plan == deal(reversed(LEARNERS), set(VOTERS))
    shares = [list(plan.values()).count(relay) for relay in VOTERS]
    assert sum(shares) == len(LEARNERS)
    assert max(shares) <= 2 * min(shares), shares


def test_the_loss_of_a_relay_moves_only_its_own_learners() -> None:
    before, after = deal(LEARNERS, VOTERS), deal(LEARNERS, VOTERS[1:])
    assert all(after[x] == relay for x, relay in before.items() if relay != VOTERS[0])
    assert deal(LEARNERS, []) == {}


def test_a_relay_that_failed_a_learner_comes_last_for_it() -> None:
    before = deal(LEARNERS, VOTERS)
    failed = {LEARNERS[0]: {before[LEARNERS[0]]}, LEARNERS[1]: set(VOTERS)}
    after = deal(LEARNERS, VOTERS, failed)
    assert {x for x in LEARNERS if after[x] != before[x]} == {LEARNERS[0]}
    assert deal(LEARNERS, VOTERS[:1], {LEARNERS[0]: {VOTERS[0]}})[LEARNERS[0]] == VOTERS[0]


def test_relay_and_learners_are_told_of_it_once() -> None:
    scene = relayed()
    index = scene.core.raft.log.last_index - 1  # C and D have not said that they have the last.
    assert scene.sent(m.Relay) == [(B, m.Relay(1, (C, D), index))]
    assert told_to_report(scene) == {C: B, D: B}
    acknowledge(scene, B, C, D)
    scene.waits(2 * BEAT_S)
    assert [*scene.sent(m.Relay), *scene.sent(m.Via)] == []


def test_a_few_learners_are_served_by_the_leader_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_plan, "LEARNERS_MIN", 3)
    assert relayed().sent(m.Relay) == []


def test_a_relay_that_says_nothing_is_none() -> None:
    """Long before it is lost: its learners would wait for so long."""
    scene = relayed()
    told: dict[PeerId, str] = {}
    for _ in range(int(RULES.election_timeout_s) + 2):
        scene.hears(C, m.Heartbeat())
        scene.hears(D, m.Heartbeat())
        scene.waits(BEAT_S)
        told |= told_to_report(scene)
    assert told == {C: "", D: ""}
    assert B in scene.core.run_state.members


# The log --------------------------------------------------------------------------------------


def test_entries_and_what_is_committed_go_to_relays_only() -> None:
    scene = relayed()
    acknowledge(scene, B, C, D)
    said = scene.hears(C, m.NotReadyToTrain("crash"))
    said += acknowledge(scene, B)
    assert written(scene, e.View)[-1].roster == (B, D)
    appends = [x for x in said if isinstance(x, c.Send) and isinstance(x.message, m.Append)]
    assert {x.peer for x in appends} == {B}


def test_who_becomes_a_voter_reads_from_the_leader() -> None:
    """A relay brings what is committed, and this is not until a majority has it."""
    scene = relayed()
    said = scene.hears(C, m.Durable(works=True, why=""))
    index = scene.core.raft.log.last_index
    assert scene.core.raft.log.entries[-1].body == e.Voter(C, votes=True, why="there is a place")
    sent = [x.message for x in said if isinstance(x, c.Send) and x.peer == C]
    assert any(isinstance(x, m.Append) and x.entries[-1].index == index for x in sent)


def test_who_lacks_what_its_relay_should_have_brought_gets_it_at_once() -> None:
    scene = relayed()
    acknowledge(scene, B, C, D)
    scene.hears(C, m.NotReadyToTrain("crash"))
    acknowledge(scene, B)
    index = scene.core.raft.log.last_index
    scene.waits(2 * BEAT_S)
    (asked,) = [x for to, x in scene.sent(m.Append) if to == D and x.previous_index == index]
    assert asked.entries == ()
    scene.hears(D, m.Appended(1, matches=False, index=index - 1))
    ((to, append),) = scene.sent(m.Append)
    assert (to, append.entries[-1].index) == (D, index)
    acknowledge(scene, B, C, D)
    scene.waits(BEAT_S)
    assert told_to_report(scene) == {D: "", C: ""}, "and one learner alone needs no relay"


def test_a_learner_gets_another_relay_than_the_one_that_failed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_plan, "LEARNERS_MIN", 1)
    monkeypatch.setattr(relay_plan, "DIRECT_ROUNDS", 1)
    scene = relayed()
    scene.hears(C, m.Durable(works=True, why=""))  # C votes too, so it is the second relay.
    acknowledge(scene, B, C, D)
    scene.waits(BEAT_S)
    index = scene.core.raft.log.last_index
    scene.hears(D, m.Appended(1, matches=False, index=index - 1))
    told: list[str] = []
    for _ in range(int(RULES.reduction_timeout_s / BEAT_S) + 2):
        for peer in (B, C, D):
            scene.hears(peer, m.Heartbeat())
        acknowledge(scene, B, C, D)
        scene.waits(BEAT_S)
        told += [via.relay for to, via in scene.sent(m.Via) if to == D]
    assert told == ["", C]


# Reports --------------------------------------------------------------------------------------


def test_what_a_relay_passes_on_is_as_good_as_said_by_themselves() -> None:
    scene = relayed()
    scene.hears(*is_ready(scene, B))
    passed(scene, is_ready(scene, C), is_ready(scene, D))
    scene.hears(*holds(scene, B))
    passed(scene, holds(scene, C), holds(scene, D))
    assert [term.peer for term in last(scene, e.Commit).contributors] == [B, C, D]


def test_reports_of_another_life_or_term_and_of_the_lost_do_not_count() -> None:
    scene = relayed()
    _, ready = is_ready(scene, C)
    scene.hears(B, m.PassedReports(1, (m.Report(C, 2, ready),)))
    passed(scene, (C, ready), term=2)
    assert scene.leader.reports.rounds == {}
    scene.on(PeerDisconnected(C, "end of stream"))
    passed(scene, (C, ready))
    assert scene.leader.reports.rounds == {}


def test_what_a_relay_passes_on_of_a_life_before_the_log_s_does_not_count() -> None:
    """Relay and leader are connected with the earlier life alike."""
    scene = relayed()
    assert scene.core.led_term is not None
    scene.core.led_term.append(e.Cut(info(C, 2, incarnation=2), (A,), (Version(0, 0, START),)))
    word = m.Kept(scene.lineage, (Version(0, 0, START),), 0, 0)
    passed(scene, (C, word), (D, word))
    assert scene.leader.joins.rollback.kept == {D: word}


def test_nobody_speaks_for_others_unasked() -> None:
    scene = relayed()
    scene.hears(C, m.PassedReports(1, (m.Report(D, 1, is_ready(scene, D)[1]),)))
    assert scene.notes("misbehaviour") == [f"{C}: speaks for {D}, and is not its relay"]
    assert scene.leader.reports.rounds == {}


def test_a_learner_that_is_out_is_forgotten_and_a_late_word_for_it_is_no_lie() -> None:
    scene = relayed()
    late = is_ready(scene, D)
    scene.hears(D, m.Leave("a person asked"))
    acknowledge(scene, B, C)
    scene.on(PeerDisconnected(D, "it ended"))
    for _ in range(4):
        scene.hears(B, m.Heartbeat())
        scene.hears(C, m.Heartbeat())
        scene.waits(BEAT_S)
    assert scene.core.led_term is not None
    assert set(scene.core.led_term.relay_plan._ever) == {C}
    passed(scene, late)
    assert scene.notes("misbehaviour") == []
    assert scene.leader.reports.rounds == {}


def test_one_wrong_report_does_not_take_the_others_with_it() -> None:
    scene = relayed()
    never = m.Have(scene.lineage, 0, 7, digest_text("x"))
    passed(scene, (C, never), is_ready(scene, D))
    assert scene.one(c.Disconnect).peer == C
    assert [set(x.ready) for x in scene.leader.reports.rounds.values()] == [{D}]


def test_before_a_learner_is_left_out_it_is_asked_without_its_relay() -> None:
    """A relay may keep to itself what it was told."""
    scene = relayed()
    scene.hears(*is_ready(scene, B))
    passed(scene, is_ready(scene, D))
    said: dict[PeerId, str] = {}
    for _ in range(int(RULES.round_grace_s / 2) + 1):
        for peer in (B, C, D):
            scene.hears(peer, m.Heartbeat())
        acknowledge(scene, B, C, D)
        scene.waits(1.0)
        said |= told_to_report(scene)
    assert said[C] == ""
    scene.hears(*is_ready(scene, C))
    assert written(scene, e.Attempt) == []


def test_when_a_relay_is_gone_its_learners_are_served_at_once() -> None:
    scene = relayed()
    acknowledge(scene, B, C, D)
    scene.on(PeerDisconnected(B, "end of stream"))
    assert told_to_report(scene) == {C: "", D: ""}
    assert A in scene.core.run_state.members
