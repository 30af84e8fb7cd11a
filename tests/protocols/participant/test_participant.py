"""What a peer does for the run whoever leads: its arithmetic, payloads, and what it reads."""

from dataclasses import replace

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.participant.participant import Participant
from protocols.state import transitions
from protocols.state.run_state import RunState
from protocols.types.ids import PeerId, Version, digest_text
from tests.protocols.scenes import (
    BORDERS,
    RULES,
    START,
    STRANGER,
    A,
    B,
    C,
    Follower,
    commit,
    contributor,
    follower,
    identity,
    info,
    join,
    log_of,
    members_of,
    part_digest,
    run,
    state_digest,
)
from tests.protocols.stepping import stepwise


def founder(run_state: RunState | None = None) -> Participant:
    return Participant(identity(A), run_state or RunState(), founds=True, kept=None)


def begun() -> RunState:
    run_state = RunState()
    transitions.apply(run_state, e.LogEntry(1, 1, run(fragments=2)))
    return run_state


def looks(part: Participant) -> None:
    """At the rounds of all fragments."""
    part.all_rounds.wake_all()
    part.advance_rounds(0.0, frozenset(), None)


# Beginning ------------------------------------------------------------------------------------


def test_before_the_run_is_known_nothing_is_finished_and_nothing_counts() -> None:
    part = founder()
    assert (part.finished, part.rounds) == (False, [])
    assert (part.state_deadline, part.all_rounds.deadline) == (float("inf"), float("inf"))
    stamp = follower(B, C).stamp(1)
    event = v.SliceReceived(B, stamp, 0, contributor(B))
    assert part.all_rounds.payload(event) == [c.Discard(event)]
    assert part.state(v.StateReceived(1, 0, 0, START), 0.0) == []
    assert part.tend(0.0, frozenset()) == []
    assert part.advance_rounds(0.0, frozenset(), None) == ([], False)


def test_who_founded_the_run_holds_its_initial_state() -> None:
    part = founder(begun())
    part.member_status.accepted = True
    part.initial_digests = (digest_text("zero"), digest_text("one"))
    assert part.began(run(fragments=2), 5.0) == []
    states = [(rounds.version, rounds.state_digest) for rounds in part.rounds]
    assert states == [(0, digest_text("zero")), (0, digest_text("one"))]
    assert part.since == 5.0


def test_who_joins_looks_at_the_run_first_and_once() -> None:
    part = Participant(identity(B), begun(), founds=False, kept=None)
    assert part.began(run(fragments=2), 5.0) == [c.CheckRun(run(fragments=2))]
    assert part.began(run(fragments=2), 9.0) == []
    assert [rounds.version for rounds in part.rounds] == [-1, -1]
    assert part.since == 5.0


# Payloads -------------------------------------------------------------------------------------


def test_payloads_of_receivers_are_kept_and_all_others_are_dropped() -> None:
    scene = follower(B, C)
    stamp = scene.stamp(1)
    kept = v.SliceReceived(C, stamp, 1, contributor(C))
    assert c.Discard(kept) not in scene.on(kept)
    for dropped in (
        v.SliceReceived(STRANGER, stamp, 1, contributor(STRANGER)),
        v.SliceReceived(C, scene.stamp(9), 1, contributor(C, 9)),
        v.ResultReceived(STRANGER, stamp, 0, (contributor(A),), part_digest(0)),
    ):
        assert scene.on(dropped) == [c.Discard(dropped)]


def test_contributions_and_results_name_what_was_sent() -> None:
    scene = follower(B, C)
    scene.encode(1)
    scene.slices(scene.stamp(1), A, C, parts=[1])
    terms = tuple(contributor(x) for x in (A, B, C))
    assert scene.one(c.ReducePart).contributors == terms
    assert {x.peer for x in scene.all(c.SendResult)} == {A, C}
    assert {x.contributors for x in scene.all(c.SendResult)} == {terms}


def test_what_was_under_way_on_a_broken_connection_is_sent_again() -> None:
    scene = follower(B, C)
    scene.encode(1)
    scene.on(v.PeerDisconnected(C, "end of stream"))
    scene.meets(C)
    assert [x.peer for x in scene.all(c.SendSlice)] == [C]


# What the log says ----------------------------------------------------------------------------


def test_a_step_of_a_lineage_that_a_restore_ended_is_not_counted() -> None:
    """It was being made when the run went back."""
    scene = follower(B, C)
    scene.reads(commit(scene, 1, A, B, C))
    for part in range(3):
        scene.result(scene.stamp(1), part, A, A, B, C)
    applying = scene.core.rounds[0].applying
    assert applying is not None
    version = (Version(0, 0, START),)
    scene.reads(e.Restore(scene.core.run_state.lineage, version, 0, 0, (), 0, False, salt=1))
    assert scene.on(v.RoundApplied(applying, state_digest(1))) == []
    assert scene.core.rounds[0].version == -1


def test_who_is_declared_lost_asks_for_a_state_unless_it_does_already() -> None:
    scene = follower(B, C)
    scene.reads(e.Lost(B, "silent"))
    assert scene.sent(m.Join) == [(A, join(B, "declared lost"))]
    scene.reads(e.Elected(A))
    assert scene.sent(m.Join) == []


def test_a_cut_makes_us_repeat_what_the_leader_took_for_a_strangers() -> None:
    """Seed 900269: our Have came before we had read that we are lost; nobody could ever join."""
    scene = follower(B, C)
    told = m.Have(scene.stamp(1).lineage, 0, 0, START)
    scene.reads(e.Elected(A))
    assert scene.sent(m.Have) == [], "it was said when the leader first could hear it"
    scene.reads(e.Lost(B, "silent"))
    assert scene.sent(m.Have) == [], "nobody counts it before we are let in again"
    scene.gets_cut(slot=2)
    assert scene.sent(m.Have) == [(A, told)]


def test_a_snapshot_over_entries_that_we_never_saw_begins_where_it_ends() -> None:
    """Our own cut may have been among them: it is served as if we had read it."""
    run_state, scene = begun(), Follower(B)
    version = tuple(Version(fragment, 0, START) for fragment in (0, 1))
    bodies = (e.Member(info(A)), e.Elected(A), e.Cut(info(B, 1), (A,), version))
    for index, body in enumerate(bodies, 2):
        transitions.apply(run_state, e.LogEntry(index, 1, body))
    part = Participant(scene.core.me, run_state, founds=False, kept=None)
    said = part.jumped(deadline=60.0, lineage=0, now=0.0)
    assert said == [c.CheckRun(run(fragments=2)), c.ExpectState(4, (A,), version)]
    assert [rounds.awaited for rounds in part.rounds] == [0, 0]


def test_a_snapshot_in_which_we_are_not_makes_us_ask() -> None:
    run_state = begun()
    transitions.apply(run_state, e.LogEntry(2, 1, e.Member(info(A))))
    part = Participant(identity(B), run_state, founds=False, kept=None)
    part.member_status.catchup.asking = ""
    part.jumped(deadline=60.0, lineage=run_state.lineage, now=0.0)
    assert part.member_status.catchup.asking == "declared lost"


def test_a_snapshot_in_which_a_cut_is_over_drops_the_copy_for_it() -> None:
    """Seed 2546125660: the joiner was struck and had another cut, in entries we never saw."""
    scene = follower(B, C)
    scene.reads(e.Cut(info(C, 2), (B, A), (Version(0, 0, START),)))
    run_state, part = scene.core.run_state, scene.core.part
    index, cut = run_state.cuts[C]
    run_state.cuts[C] = (index + 2, replace(cut, donors=(A,)))
    part.jumped(deadline=60.0, lineage=run_state.lineage, now=0.0)
    assert c.ReleaseCopy(C, index) in part.tend(0.0, frozenset())


def test_a_snapshot_of_another_lineage_takes_our_state_with_it() -> None:
    part = founder(begun())
    part.member_status.accepted = True
    part.initial_digests = (START, START)
    part.began(run(fragments=2), 0.0)
    old, run_state = part.run_state.lineage, part.run_state
    version = tuple(Version(fragment, 0, START) for fragment in (0, 1))
    transitions.apply(run_state, e.LogEntry(2, 1, e.Member(info(A))))
    transitions.apply(
        run_state, e.LogEntry(3, 1, e.Restore(old, version, 0, 0, (), 0, False, salt=1))
    )
    part.jumped(deadline=60.0, lineage=old, now=0.0)
    assert [rounds.version for rounds in part.rounds] == [-1, -1]
    assert part.member_status.catchup.asking == "the run went back to a checkpoint"


# Leaders --------------------------------------------------------------------------------------


def test_an_owner_whose_result_another_took_the_place_of_is_asked_until_it_comes() -> None:
    """Its sum may have been under way when it was asked first: then it did not answer."""
    scene = follower(B, C)
    scene.encode(1)
    later = scene.stamp(1, attempt=1)
    scene.result(later, 0, C, A, B)
    scene.reads(e.Attempt(1, 0, 1, 1, (A, B, C), (A, B, C), "?"))
    assert scene.one(c.DropResult) == c.DropResult(later, 0)
    assert scene.sent(m.Fetch) == [(A, m.Fetch(later, 0))]
    asked: list[tuple[PeerId, m.Fetch]] = []
    for _ in range(int(RULES.reduction_timeout_s / 2) + 1):
        scene.hears(C, m.Heartbeat())
        scene.beat()
        asked += scene.sent(m.Fetch)
        scene.waits(1.0)
        asked += scene.sent(m.Fetch)
    assert (A, m.Fetch(later, 0)) in asked


def test_a_new_leader_hears_everything_once_more() -> None:
    scene = follower(B, C)
    scene.encode(1)
    scene.hears(C, m.Append(1, 2, scene.log.last_index, 1, (), scene.log.last_index))
    said = [x.message for x in scene.all(c.Send) if x.peer == C]
    told = [message for message in said if not isinstance(message, m.Appended)]
    kinds = {type(message) for message in told}
    assert kinds >= {m.ReadyToTrain, m.ContributionOffered, m.Have, m.ReportsComplete}
    assert [message for message in told if isinstance(message, m.ReportsComplete)] == [
        m.ReportsComplete(2)
    ]
    assert isinstance(told[-1], m.ReportsComplete), "after all the others"
    scene.hears(C, m.Append(1, 2, scene.log.last_index, 1, (), scene.log.last_index))
    assert scene.sent(m.ReportsComplete) == [], "once"


def test_without_a_connection_with_the_leader_nothing_is_reported() -> None:
    scene = follower(B, C)
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.encode(1)
    assert [x for x in scene.all(c.Send) if x.peer == A] == []


def test_who_lacks_one_fragments_result_makes_the_other_steps_before_it_asks() -> None:
    """Seed 3102001: all asked while they made a step of another fragment. The run went back behind
    that, and what their ranks had done since was thrown away."""
    run_state = begun()
    part = founder(run_state)
    part.initial_digests = (START, START)
    part.accepted(v.RunAccepted(RULES))
    part.began(run(fragments=2), 0.0)
    terms, digest = (contributor(A),), digest_text("a result")
    run_state.commits[0] = [e.Commit(1, 0, 9, 0, terms, BORDERS, digest, "")]
    assert part.rounds[0].behind, "nobody remembers its first round"
    part.rounds[1].applying = follower(B, C).stamp(1)
    looks(part)
    assert not part.member_status.catchup.needed
    part.rounds[1].applying = None
    run_state.commits[1] = [e.Commit(1, 1, 1, 0, terms, BORDERS, digest, "")]
    looks(part)
    assert not part.member_status.catchup.needed, "the next result may still come"
    del run_state.commits[1]
    looks(part)
    assert part.member_status.catchup.asking == "results of missed rounds are gone"


def test_a_witness_takes_part_in_nothing_and_looks_at_the_run_once() -> None:
    for known in (run(fragments=2), stepwise()):
        run_state = members_of(log_of(known, e.Member(info(A)), e.Witness(info(B))))
        me = replace(identity(B), witness=True)
        part = Participant(me, run_state, founds=False, kept=None)
        assert part.began(known, 5.0) == [c.CheckRun(known)]
        assert part.began(known, 9.0) == []
        assert (part.rounds, part.steps, part.since) == ([], None, 5.0)
        assert part.waits_for() == set()
        assert not part.finished
