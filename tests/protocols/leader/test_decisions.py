"""What the leader decides, from what it was told: views, attempts, commits, cuts, losses."""

from dataclasses import replace

from protocols.interface import events as v
from protocols.leader.joins import Joins
from protocols.leader.reports import Reports
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.rounds.suspicions import Complaint
from protocols.types.ids import PeerId, Stamp, Version, digest_text
from tests.protocols.led import (
    DIGEST,
    Led,
    a_rests,
    keep_alive,
    last,
    leading,
    of,
    say,
    three,
    written,
)
from tests.protocols.scenes import (
    BORDERS,
    RULES,
    START,
    A,
    B,
    C,
    D,
    caught_up,
    contributor,
    info,
    join,
    log_of,
    manifest,
    members_of,
    part_digest,
    result_digest,
    run,
    state_digest,
    view,
)

GRACE_S, REDUCTION_S = RULES.round_grace_s, RULES.reduction_timeout_s


# Views ----------------------------------------------------------------------------------------


def test_the_first_view_waits_for_peers_min_able_members() -> None:
    scene = Led(peers_min=2)
    scene.on(v.TrainersReady())
    assert written(scene, e.View) == []
    scene.joins(B, able=False)
    assert written(scene, e.View) == []
    scene.hears(B, m.ReadyToTrain())
    (view,) = written(scene, e.View)
    assert (view.view, view.roster, view.first_round) == (1, (A, B), (1,))


def test_what_an_earlier_leader_was_told_we_were_not() -> None:
    """Seed 7004612: the word was held up on the line, and we led in that term too."""
    scene = leading(B)
    scene.comes(C)
    term = scene.core.raft.term
    scene.hears(C, m.ReportsComplete(term - 1))
    assert not scene.leader.accounts.told(C)
    scene.hears(C, m.ReportsComplete(term))
    assert scene.leader.accounts.told(C)


def test_later_views_do_not_wait() -> None:
    scene = leading(B)
    scene.hears(B, m.NotReadyToTrain("crash"))
    view = last(scene, e.View)
    assert (view.view, view.roster) == (2, (A,))


def test_without_anybody_able_the_old_view_stays() -> None:
    scene = leading(B)
    a_rests(scene)
    before = scene.core.raft.log.last_index
    scene.hears(B, m.NotReadyToTrain("crash"))
    assert scene.core.raft.log.last_index == before


def test_a_round_that_somebody_contributed_to_goes_on_in_its_view() -> None:
    scene = three()
    say(scene, "ready", B)
    scene.on(v.TrainersReady())
    scene.on(v.TrainersAble())
    view = last(scene, e.View)
    assert view.first_round == (2,)


def test_a_round_whose_roster_is_gone_is_taken_over_even_by_an_equal_roster() -> None:
    """Else it would stay open for ever, and nobody could contribute to the next one."""
    scene = three()
    scene.hears(C, m.NotReadyToTrain("crash"))
    scene.hears(D, m.NotReadyToTrain("crash"))
    number = of(scene)
    say(scene, "ready", B)  # The only one of view `number`, which is able.
    scene.hears(B, m.NotReadyToTrain("crash"))
    scene.hears(C, m.ReadyToTrain())
    view = last(scene, e.View)
    assert (view.roster, view.first_round) == ((C,), (2,)), "B has contributed and lives"
    assert scene.core.run_state.views[0].view == number
    scene.on(v.PeerDisconnected(B, "end of stream"))
    scene.waits(RULES.reconnect_grace_s)
    view = last(scene, e.View)
    assert (view.roster, view.first_round) == ((C,), (1,))


# Commits --------------------------------------------------------------------------------------


def test_a_commit_needs_every_live_member_of_the_roster() -> None:
    scene = three()
    say(scene, "ready", B, C, D)
    say(scene, "hold", B, C)
    assert written(scene, e.Commit) == []
    say(scene, "hold", D)
    body = last(scene, e.Commit)
    assert [term.manifest for term in body.contributors] == [manifest(p, 1) for p in (B, C, D)]
    assert (body.result_digest, body.previous_state_digest) == (DIGEST, START)
    assert not body.held_by_all, "A has reported nothing, and is a receiver"


def test_who_holds_before_somebody_is_ready_does_not_help() -> None:
    scene = three()
    say(scene, "ready", B, C)
    say(scene, "hold", B, C, D)
    assert written(scene, e.Commit) == []


def test_a_dead_contributor_still_counts_if_all_others_hold() -> None:
    scene = three()
    say(scene, "ready", B, C, D)
    say(scene, "hold", B, C)
    scene.on(v.PeerDisconnected(D, "end of stream"))
    scene.waits(RULES.reconnect_grace_s)
    assert len(written(scene, e.Lost)) == 1
    assert [term.peer for term in last(scene, e.Commit).contributors] == [B, C, D]
    assert written(scene, e.Attempt) == []


def test_a_revoked_contributor_counts_no_more_though_all_others_hold() -> None:
    scene = three()
    scene.on(v.Secured())
    say(scene, "ready", B, C, D)
    say(scene, "hold", B, C)
    scene.on(v.ActAsked(e.Revoked(D, A, "stolen")))
    assert len(written(scene, e.Revoked)) == 1
    assert written(scene, e.Commit) == []
    assert last(scene, e.Attempt).roster == (B, C)


def test_a_commit_needs_two_live_holders() -> None:
    scene = leading(B)
    scene.hears(B, m.NotReadyToTrain("crash"))  # The roster is A alone, and B is a live member.
    a_rests(scene)
    scene.hears(B, m.ReadyToTrain())
    assert of(scene) == 3
    say(scene, "ready", B)
    say(scene, "hold", B)
    assert written(scene, e.Commit) == [], "if B died now, its result would be gone"
    scene.hears(B, m.NotReadyToTrain("crash"))
    stamp = scene.stamp(1, number=3)
    terms = (contributor(B),)
    for part in range(len(scene.core.run_state.views[-1].parts[0].owners)):
        scene.on(v.ResultReceived(B, stamp, part, terms, part_digest(part)))
    assert written(scene, e.Commit) == [], "another digest than B's"
    scene.hears(B, m.Hold(stamp, result_digest(terms, 1)))
    assert last(scene, e.Commit).contributors == terms


def test_what_a_joiner_holds_counts_once_it_is_a_member() -> None:
    """Seed 2203368: it said so before, and once: nobody else could be the second holder."""
    scene = leading(B)
    a_rests(scene)
    say(scene, "ready", B)
    say(scene, "hold", B)
    scene.comes(C)
    scene.hears(C, m.ReadLog(0))
    scene.hears(C, join(C))
    say(scene, "hold", C)
    assert written(scene, e.Commit) == []
    index, _ = scene.core.run_state.cuts[C]
    scene.hears(C, caught_up(C, index))
    assert last(scene, e.Member).info.peer == C
    assert last(scene, e.Commit).contributors == (contributor(B),)


def test_a_peer_alone_commits_alone() -> None:
    scene = leading()
    scene.encode(1)
    stamp = scene.stamp(1)
    scene.reduced(stamp, *range(len(scene.core.run_state.views[-1].parts[0].owners)))
    body = last(scene, e.Commit)
    assert (body.contributors, body.held_by_all) == ((contributor(A),), True)


def test_different_digests_are_not_committed() -> None:
    scene = three()
    say(scene, "ready", B, C, D)
    say(scene, "hold", B, C)
    scene.hears(D, m.Hold(scene.stamp(1, number=of(scene)), digest_text("another")))
    assert written(scene, e.Commit) == []


def test_after_the_deadline_a_majority_of_the_roster_is_enough() -> None:
    scene = three()
    say(scene, "ready", B, C, D)
    say(scene, "hold", B, C)
    keep_alive(scene, REDUCTION_S - 1, B, C, D)
    assert written(scene, e.Commit) == []
    keep_alive(scene, 2.0, B, C, D)
    assert [term.peer for term in last(scene, e.Commit).contributors] == [B, C, D]


def test_who_is_not_in_the_roster_is_no_part_of_that_majority() -> None:
    scene = three()
    scene.joins(PeerId("e.5"), able=False)
    scene.joins(PeerId("f.6"), able=False)
    say(scene, "ready", B, C, D)
    say(scene, "hold", B, PeerId("e.5"), PeerId("f.6"))
    keep_alive(scene, REDUCTION_S + 1, B, C, D, PeerId("e.5"), PeerId("f.6"))
    assert written(scene, e.Commit) == []
    assert written(scene, e.Attempt) != []


def test_the_last_round_needs_no_view_after_it() -> None:
    scene = three(outer_steps=1)
    say(scene, "ready", B, C, D)
    say(scene, "hold", B, C, D)
    before = scene.core.raft.log.last_index
    scene.hears(B, m.NotReadyToTrain("done"))
    assert scene.core.raft.log.last_index == before


# Attempts -------------------------------------------------------------------------------------


def test_the_grace_window_leaves_out_the_late_one() -> None:
    scene = three()
    say(scene, "ready", B, C)
    keep_alive(scene, GRACE_S - 1, B, C, D)
    assert written(scene, e.Attempt) == []
    keep_alive(scene, 2.0, B, C, D)
    body = last(scene, e.Attempt)
    assert (body.roster, body.attempt) == ((B, C), 1)
    assert body.why == "d not ready within the grace window"
    assert set(body.owners) <= {B, C}


def test_the_window_opens_with_the_first_contribution_of_somebody_who_can_be_counted() -> None:
    """Else a dead peer's contribution would leave out everybody, again and again."""
    scene = three()
    say(scene, "ready", B)
    keep_alive(scene, 15.0, C, D)  # B is silent, and lost.
    assert written(scene, e.Lost) != []
    assert last(scene, e.Attempt).roster == (C, D)
    keep_alive(scene, 4 * GRACE_S, C, D)
    assert len(written(scene, e.Attempt)) == 1, "nobody waits for C and D"
    say(scene, "ready", C)
    keep_alive(scene, GRACE_S + 1, C, D)
    assert last(scene, e.Attempt).roster == (C,)


def test_the_lost_are_left_out_at_once() -> None:
    scene = three()
    say(scene, "ready", B, C, D)
    scene.on(v.PeerDisconnected(D, "end of stream"))
    scene.waits(RULES.reconnect_grace_s)
    body = last(scene, e.Attempt)
    assert (body.roster, body.why) == ((B, C), "without d")
    owners = scene.core.run_state.views[0].parts[0].owners  # Of the view that the round began in.
    moved = [new for old, new in zip(owners, body.owners, strict=True) if old != new]
    assert len(moved) == owners.count(D), "only the lost one's parts move"


def test_whoever_comes_back_in_time_is_not_lost() -> None:
    scene = three()
    say(scene, "ready", B, C, D)
    scene.on(v.PeerDisconnected(D, "end of stream"))
    scene.waits(RULES.reconnect_grace_s / 2)
    scene.meets(D)
    scene.waits(RULES.reconnect_grace_s)
    assert written(scene, e.Lost) == []


def test_a_slow_reduction_leaves_out_whom_most_wait_for() -> None:
    scene = three()
    say(scene, "ready", B, C, D)
    stamp = scene.stamp(1, number=of(scene))
    scene.hears(B, m.WaitsForPeers(stamp, (C, D)))
    scene.hears(D, m.WaitsForPeers(stamp, (C,)))
    scene.hears(C, m.WaitsForPeers(stamp, (B,)))
    keep_alive(scene, REDUCTION_S + 1, B, C, D)
    body = last(scene, e.Attempt)
    assert (body.roster, body.why) == ((B, D), "no result in time because of c")


def test_who_holds_the_result_is_not_to_blame() -> None:
    scene = three()
    say(scene, "ready", B, C, D)
    stamp = scene.stamp(1, number=of(scene))
    scene.hears(C, m.Hold(stamp, DIGEST))
    scene.hears(B, m.WaitsForPeers(stamp, (C,)))
    scene.hears(D, m.WaitsForPeers(stamp, (C,)))
    keep_alive(scene, REDUCTION_S + 1, B, C, D)
    assert C in last(scene, e.Attempt).roster


def test_one_that_nobody_can_replace_gets_more_time() -> None:
    """Its roster cannot become smaller; and a deadline in the past would be a busy loop."""
    scene = three()
    for peer in (C, D):
        scene.hears(peer, m.NotReadyToTrain("crash"))
    say(scene, "ready", B)
    keep_alive(scene, 3 * REDUCTION_S, B, C, D)
    assert written(scene, e.Attempt) == []


def test_a_round_that_only_dead_ones_contributed_to_is_no_busy_loop() -> None:
    """Seed 300040: the clock of a reduction whose only contributor had died."""
    scene = leading(B)
    a_rests(scene)
    say(scene, "ready", B)
    scene.on(v.PeerDisconnected(B, "end of stream"))
    scene.waits(3 * REDUCTION_S)
    assert scene.leader.deadline() == float("inf")


# Going ----------------------------------------------------------------------------------------


def test_a_leader_that_was_on_its_way_when_it_was_elected_goes_last() -> None:
    """Seed 960243: it wrote itself out, and with it went the only state of the last round."""
    scene = leading(B)
    assert scene.core.led_term is not None
    scene.core.led_term.leader.handle_report(A, m.Leave("finished"), scene.now)
    scene.waits(1.0)
    assert written(scene, e.Left) == []


def test_who_leaves_is_written_down() -> None:
    scene = leading(B)
    scene.hears(B, m.Leave("asked to"))
    assert written(scene, e.Left) == [e.Left(B, "asked to")]
    assert B not in scene.core.run_state.receivers


def test_who_holds_a_state_that_the_leader_lacks_stays_until_it_has_it() -> None:
    """Else the last result could leave with it."""
    # Fails while Voters.next_voter makes a voter of B, which is about to go (it is in `gone`).
    scene = three(outer_steps=1)
    say(scene, "ready", B, C, D)
    say(scene, "hold", B, C, D)
    scene.hears(B, m.Have(scene.lineage, 0, 1, state_digest(1)))
    scene.hears(B, m.Leave("finished"))
    assert written(scene, e.Left) == []
    scene.hears(A, m.Have(scene.lineage, 0, 1, state_digest(1)))
    assert written(scene, e.Left) == [e.Left(B, "finished")]


def test_who_may_be_the_only_one_to_hold_the_last_result_stays_for_a_while() -> None:
    """Seeds 1020, 139: its Leave came before its word that it had made the step."""
    scene = three(outer_steps=1)
    say(scene, "ready", B, C, D)
    say(scene, "hold", B, C, D)
    scene.hears(B, m.Leave("a person asked"))
    assert written(scene, e.Left) == []
    needs = scene.leader.joins.needs
    assert (needs(B, patient=True), needs(B, patient=False)) == (True, False)
    assert not needs(PeerId("e.5"), patient=True), "no member: it never had a state"
    scene.hears(C, m.Have(scene.lineage, 0, 1, state_digest(1)))
    assert written(scene, e.Left) == [e.Left(B, "a person asked")]


def test_who_wanted_to_leave_long_ago_has_time_to_report_a_new_round() -> None:
    """Seed 3100899: its only holder went with a round that it had not reported yet."""
    scene = three(outer_steps=1)
    scene.leader.reports.forget_states(A)
    scene.hears(B, m.Leave("a person asked"))
    keep_alive(scene, 2 * RULES.transfer_timeout_s, B, C, D)
    assert written(scene, e.Left) == [], "A has no state"
    say(scene, "ready", B, C, D)
    say(scene, "hold", B, C, D)
    assert (len(written(scene, e.Commit)), written(scene, e.Left)) == (1, [])
    keep_alive(scene, RULES.transfer_timeout_s, B, C, D)
    assert written(scene, e.Left) == [e.Left(B, "a person asked")], "nor does it say anything"


def test_a_joiner_that_has_all_of_its_cut_may_be_needed() -> None:
    """Seed 80204: it held the only state, and went before a new leader had let it in."""
    cut = e.Cut(info(B, 1), (A,), (Version(0, 0, START),))
    commit = e.Commit(1, 0, 1, 0, (contributor(A),), BORDERS, DIGEST, "")
    run_state = members_of(log_of(run(), e.Member(info(A)), cut, view(1, A), commit))
    joins = Joins(A, run_state, Reports(A, run_state))
    joins.caught_up[B] = caught_up(B, 2)
    assert not joins.needs(B, patient=True), "it waits for the state of its cut"
    joins.caught_up[B] = caught_up(B, 3)
    assert not joins.needs(B, patient=False)
    assert joins.needs(B, patient=True), "it may make the step since then, as members do"
    assert joins.next_entry(0.0) == e.Member(info(B, 1))


def test_reasons_are_one_printable_line() -> None:
    scene = leading(B)
    scene.on(v.PeerDisconnected(B, "two\nlines\x1b[2J " + "x" * 9999))
    scene.waits(RULES.reconnect_grace_s)
    (lost,) = written(scene, e.Lost)
    assert lost.why.startswith("two lines?[2J x")
    assert len(lost.why) == 1024


def test_a_stale_stamp_of_another_fragment_changes_nothing() -> None:
    scene = three()
    before = scene.core.raft.log.last_index
    scene.hears(B, m.ContributionOffered(Stamp(1, 1, 1, 7, 1, 0), contributor(B)))
    assert scene.core.raft.log.last_index == before


# Wrong results --------------------------------------------------------------------------------


def doubt(scene: Led, reporter: PeerId, *peers: PeerId, attempt: int = 0) -> None:
    """A peer complains about the result of the part that the first of `peers` owns."""
    stamp = replace(scene.stamp(1, number=of(scene)), attempt=attempt)
    view = last(scene, e.View)
    attempts = written(scene, e.Attempt)
    owners = view.parts[0].owners if not attempt else attempts[attempt - 1].owners
    scene.hears(reporter, m.WrongResult(stamp, owners.index(peers[0]), peers))


def contributed() -> Led:
    scene = three()
    say(scene, "ready", B, C, D)
    return scene


def test_a_part_with_a_wrong_result_gets_another_owner() -> None:
    scene = contributed()
    doubt(scene, B, C)
    body = last(scene, e.Attempt)
    assert body.roster == (B, C, D), "what C contributed still counts"
    assert C not in body.owners
    assert "c is the reason" in body.why
    assert written(scene, e.Lost) == [], "one peer alone removes nobody"


def test_a_wrong_result_is_not_committed_whoever_holds_it() -> None:
    scene = contributed()
    stamp = scene.stamp(1, number=of(scene))
    for peer in (B, C):
        scene.hears(peer, m.Hold(stamp, DIGEST))
    (reports,) = scene.leader.reports.rounds.values()
    reports.wrong.add(Complaint(B, stamp, 1, frozenset((C,))))
    scene.hears(D, m.Hold(stamp, DIGEST))
    assert written(scene, e.Commit) == []
    assert last(scene, e.Attempt).attempt == 1


def test_two_peers_have_a_liar_removed() -> None:
    """The second one complains about the same attempt, which is over by then."""
    scene = contributed()
    doubt(scene, B, C)
    doubt(scene, D, C)
    (lost,) = written(scene, e.Lost)
    assert (lost.peer, lost.why) == (C, "two peers found that it falsified results")
    assert last(scene, e.Attempt).roster == (B, D)


def test_who_was_removed_for_its_results_owns_no_part_when_it_is_back() -> None:
    scene = contributed()
    reports = scene.leader.reports
    reports.suspicions.distrusted.add(C)
    run_ = scene.leader.run_state.run
    assert run_ is not None
    (parts,) = reports.parts(run_, (B, C, D))
    assert set(parts.owners) == {B, D}
    (alone,) = reports.parts(run_, (C,))
    assert alone.owners == (C,), "somebody has to own it"


def test_one_peer_that_complains_again_is_excluded_from_the_round() -> None:
    scene = contributed()
    doubt(scene, B, C)
    owner = next(x for x in last(scene, e.Attempt).owners if x != B)
    doubt(scene, B, owner, attempt=1)
    assert last(scene, e.Attempt).roster == (C, D)
    assert written(scene, e.Lost) == []


def test_complaints_that_fit_no_plan_change_nothing() -> None:
    scene = contributed()
    stamp = scene.stamp(1, number=of(scene))
    for peers in ((), (A,), (B,), (D,), (B, C, D), (C, PeerId("x.0"))):
        scene.hears(B, m.WrongResult(stamp, 1, peers))
    scene.hears(A, m.WrongResult(stamp, 1, (C,)))
    scene.hears(B, m.WrongResult(replace(stamp, attempt=5), 1, (C,)))
    scene.hears(B, m.WrongResult(replace(stamp, fragment=9), 1, (C,)))
    assert written(scene, e.Attempt) == []


def test_a_leader_gives_its_own_parts_away_and_stays() -> None:
    scene = leading(B, C)
    for peer in (A, B, C):
        scene.hears(
            peer, m.ContributionOffered(scene.stamp(1, number=of(scene)), contributor(peer))
        )
    doubt(scene, B, A)
    doubt(scene, C, A)
    assert A not in last(scene, e.Attempt).owners
    assert written(scene, e.Lost) == []
    assert scene.leader.reports.suspicions.distrusted == {A}
