"""What a relay does for its learners, and a learner with a relay: B follows A, and is the one or
the other."""

from dataclasses import replace

from protocols.interface.events import Checkpointed, PeerDisconnected
from protocols.links.log_relay import RESEND, URGENT_SHARE
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.ids import Version, digest_text
from tests.protocols.scenes import (
    RULES,
    START,
    STRANGER,
    A,
    B,
    C,
    D,
    Follower,
    contributor,
    follower,
    view,
)

BEAT_S = RULES.heartbeat_interval_s
DIGEST = digest_text("a result")


def relay() -> Follower:
    """B relays for C and D."""
    scene = follower(B, C, D)
    scene.hears(A, m.Relay(1, (C, D), scene.log.last_index))
    return scene


def learner() -> Follower:
    """C relays for B."""
    scene = follower(B, C, D)
    scene.hears(A, m.Via(1, C))
    return scene


def brought(scene: Follower) -> dict[str, list[int]]:
    """The entries that the last answer brings to whom."""
    return {to: [x.index for x in r.append.entries] for to, r in scene.sent(m.Relayed)}


def ready(scene: Follower, of: str) -> m.ContributionOffered:
    return m.ContributionOffered(scene.stamp(1), contributor(C if of == C else D))


def piece(scene: Follower, *bodies: e.Entry, term: int = 1) -> m.Relayed:
    """What the leader appended meanwhile, as a relay holds it."""
    index, before = scene.log.last_index, scene.log.last_term
    entries = tuple(scene.log.append(body, term=1) for body in bodies)
    return m.Relayed(m.Append(1, term, index, before, entries, scene.log.last_index))


def checkpointed(scene: Follower) -> Checkpointed:
    """Our newest checkpoint is complete."""
    return Checkpointed(m.Kept(scene.core.run_state.lineage, (Version(0, 0, START),), 0, 0))


# As a relay -----------------------------------------------------------------------------------


def test_what_is_committed_is_brought_to_each_learner_once() -> None:
    scene = relay()
    assert brought(scene) == {}, "they have what came before"
    scene.reads(view(2, A, B, C), view(3, A, B, D))
    last = scene.log.last_index
    assert brought(scene) == {C: [last - 1, last], D: [last - 1, last]}
    assert scene.sent(m.Relayed)[0][1].append.commit_index == last
    scene.beat()
    assert brought(scene) == {}


def test_what_is_not_committed_is_not_brought() -> None:
    scene = relay()
    index, term = scene.log.last_index, scene.log.last_term
    entries = tuple(scene.log.append(view(n, A, B, C), term=1) for n in (2, 3))
    scene.hears(A, m.Append(1, 1, index, term, entries, index))
    assert brought(scene) == {}
    scene.hears(A, m.Append(1, 1, index, term, (), index + 1))
    assert brought(scene) == {}, "an empty append says nothing of what is after it"
    scene.hears(A, m.Append(1, 1, index + 1, 1, (), index + 1))
    assert brought(scene) == {C: [index + 1], D: [index + 1]}


def test_a_relay_whose_log_becomes_a_snapshot_still_brings_what_it_has_just_applied() -> None:
    """It applies an entry before it brings it: its learners would miss one, nothing that came
    later would fit for them, and the leader would serve them all itself."""
    scene = relay()
    base, length = scene.core.raft.log.base, 8
    scene.core.log_applier.compact_entries = length
    for number in range(2, 2 + 3 * length):
        scene.reads(view(number, A, B, C))
        last = scene.log.last_index
        assert brought(scene) == {C: [last], D: [last]}
    assert scene.core.raft.log.base > base + length


def test_who_is_not_connected_gets_it_when_it_is_and_the_last_ones_again() -> None:
    scene = relay()
    scene.on(PeerDisconnected(D, "end of stream"))
    scene.reads(view(2, A, B, C))
    assert brought(scene).keys() == {C}
    scene.meets(D)
    index = scene.log.last_index
    assert brought(scene) == {D: list(range(max(1, index - RESEND), index + 1))}


def test_a_new_plan_takes_the_place_of_the_old_one() -> None:
    scene = relay()
    scene.hears(A, m.Relay(1, (D,), 0))
    assert brought(scene) == {}, "D has got it already"
    scene.reads(view(2, A, B, C))
    assert brought(scene).keys() == {D}


def test_only_the_leader_of_this_term_makes_a_relay() -> None:
    scene = follower(B, C, D)
    scene.hears(C, m.Relay(1, (D,), 0))
    scene.hears(A, m.Relay(7, (D,), 0))
    assert brought(scene) == {}
    assert scene.core.log_relay.share == {}


def test_in_another_term_a_relay_is_none() -> None:
    scene = relay()
    scene.hears(C, m.Append(1, 2, scene.log.last_index, scene.log.last_term, (), 0))
    scene.hears(D, ready(scene, D))
    assert scene.core.log_relay.share == {}
    assert scene.core.log_relay.deadline == float("inf")


def test_reports_are_passed_on_together_and_in_order() -> None:
    scene = relay()
    said = [ready(scene, C), m.Hold(scene.stamp(1), DIGEST), m.Hold(scene.stamp(1), DIGEST)]
    scene.hears(C, said[0])
    scene.hears(C, said[1])
    assert scene.sent(m.PassedReports) == [], "D will say so, too"
    scene.hears(D, said[2])
    reports = (m.Report(C, 1, said[0]), m.Report(C, 1, said[1]), m.Report(D, 1, said[2]))
    assert scene.sent(m.PassedReports) == [(A, m.PassedReports(1, reports))]
    scene.waits(2 * BEAT_S)
    assert scene.sent(m.PassedReports) == []


def test_reports_wait_for_others_only_a_little() -> None:
    scene = relay()
    scene.hears(C, m.Hold(scene.stamp(1), DIGEST))
    scene.waits(0.99 * URGENT_SHARE * BEAT_S)
    assert scene.sent(m.PassedReports) == []
    scene.waits(0.02 * URGENT_SHARE * BEAT_S)
    assert len(scene.sent(m.PassedReports)) == 1
    scene.hears(C, ready(scene, C))
    scene.waits(0.99 * BEAT_S)
    assert scene.sent(m.PassedReports) == [], "nothing waits for this"
    scene.waits(0.02 * BEAT_S)
    assert len(scene.sent(m.PassedReports)) == 1


def test_strangers_are_not_passed_on() -> None:
    scene = relay()
    scene.meets(STRANGER)
    scene.hears(STRANGER, m.Hold(scene.stamp(1), DIGEST))
    scene.hears(C, m.Leave("x"))
    scene.waits(2 * BEAT_S)
    assert scene.sent(m.PassedReports) == []


def test_a_report_names_the_life_of_the_connection_on_which_it_came() -> None:
    scene = relay()
    scene.on(PeerDisconnected(C, "end of stream"))
    scene.meets(C, incarnation=2)
    scene.hears(C, ready(scene, C))
    scene.waits(BEAT_S)
    ((_, passed),) = scene.sent(m.PassedReports)
    assert [report.incarnation for report in passed.reports] == [2]


# As a learner ---------------------------------------------------------------------------------


def test_a_learner_reports_to_its_relay_and_says_all_else_to_the_leader() -> None:
    scene = learner()
    scene.encode(1)
    assert [to for to, _ in scene.sent(m.ContributionOffered)] == [C]
    scene.hears(A, m.Via(1, ""))
    assert [to for to, _ in scene.sent(m.ContributionOffered)] == [A], "C may have dropped it"
    scene = learner()
    kept = checkpointed(scene)
    scene.on(kept)
    assert scene.sent(m.Kept) == [(C, kept.kept)]
    assert scene.sent(m.ReadyToTrain) == []


def test_when_the_relay_is_gone_the_leader_hears_everything_itself() -> None:
    scene = learner()
    scene.encode(1)
    kept = checkpointed(scene)
    scene.on(kept)
    scene.on(PeerDisconnected(C, "end of stream"))
    assert [to for to, _ in scene.sent(m.ContributionOffered)] == [A]
    assert scene.sent(m.Kept) == [(A, kept.kept)]


def test_what_the_relay_brings_holds_and_is_not_answered() -> None:
    scene = learner()
    assert scene.hears(C, piece(scene, view(2, A, B, D)))[-1:] != []
    assert scene.core.run_state.views[-1].view == 2
    assert scene.sent(m.Appended) == []


def test_who_brings_the_log_does_not_lead_by_it() -> None:
    """Else a relay could keep a run without a leader from electing one."""
    scene = learner()
    heard = scene.core.raft.deadline
    scene.now += 1.0
    scene.hears(C, piece(scene, view(2, A, B, D)))
    assert scene.core.leader_id == A
    assert scene.core.raft.deadline == heard


def test_nobody_else_brings_us_the_log() -> None:
    scene = learner()
    before = scene.core.raft.log.last_index
    relayed = piece(scene, view(2, A, B, D))
    scene.hears(D, relayed)
    scene.hears(C, m.Relayed(piece(scene, view(3, A, B)).append))  # After a gap.
    scene.hears(C, m.Relayed(replace(relayed.append, run=7)))
    scene.hears(C, m.Relayed(replace(relayed.append, term=2)))
    assert scene.core.raft.log.last_index == before
    assert follower(B, C).hears(C, relayed) == [], "nor does anybody without an order"


def test_a_relay_cannot_rewrite_what_is_committed() -> None:
    scene = follower(B, C)
    index = scene.log.last_index
    term = scene.log.term_at(index - 1)
    assert term is not None
    scene.hears(A, m.Append(1, 2, index, scene.log.last_term, (), index))  # Elected once more.
    scene.hears(A, m.Via(2, C))
    lie = e.LogEntry(index, 2, view(9, A, B))
    scene.hears(C, m.Relayed(m.Append(1, 2, index - 1, term, (lie,), index)))
    assert scene.notes("misbehaviour") == [f"{C}: rewrites log entry {index}"]
