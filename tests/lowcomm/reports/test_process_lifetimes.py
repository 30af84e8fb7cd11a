"""Who lived when: ends, restarts, kills and joins, from short lists of events."""

from collections.abc import Sequence

import pytest

from lowcomm.reports.events import (
    Commit,
    Event,
    Fault,
    Finished,
    Left,
    Lost,
    Member,
    Metrics,
    Ready,
    Start,
    Stopped,
)
from lowcomm.reports.process_lifetimes import (
    JoinFigures,
    find_joins,
    find_kills,
    find_lives,
    first_commits,
)

A, B, C = "alpha.1", "beta.2", "gamma.3"
NAMES = {A: "alpha", B: "beta", C: "gamma"}


def start(peer: str, t: float) -> Start:
    return Start(t=t + 0.5, peer=peer, name=NAMES[peer], pid=1, exec_t=t, ranks=1, params=0)


def ready(peer: str, t: float, round_: int) -> Ready:
    return Ready(t=t, peer=peer, name=NAMES[peer], fragment=0, round=round_, steps=10, tokens=100)


def commit(peer: str, t: float, round_: int, roster: Sequence[str], *, lineage: str = "") -> Commit:
    return Commit(
        t=t,
        peer=peer,
        name=NAMES[peer],
        fragment=0,
        round=round_,
        attempt=0,
        roster=tuple(roster),
        tokens=100 * len(roster),
        counted=peer in roster,
        state_digest="ab",
        inner_step=10 * round_,
        lineage=lineage,
    )


def metrics(peer: str, t: float) -> Metrics:
    return Metrics(
        t=t,
        peer=peer,
        name=NAMES[peer],
        step=1,
        tokens=1,
        loss=1.0,
        tokens_per_s=1.0,
        bytes_sent=1,
        bytes_received=1,
    )


def lost(by: str, t: float, member: str) -> Lost:
    return Lost(t=t, peer=by, name=NAMES[by], member=member, member_name="", why="end of stream")


def killed(t: float, peer: str = C, name: str = "gamma", what: str = "SIGKILL") -> Fault:
    return Fault(t=t, peer=peer, name=name, what=what)


def ends(events: Sequence[Event], peer: str) -> list[tuple[float | None, str]]:
    lives = find_lives(sorted(events, key=lambda event: event.t))
    return [(lifetime.end_t, lifetime.end) for lifetime in lives if lifetime.peer == peer]


def three_peers() -> list[Event]:
    """Round 0 at 10, round 1 at 20 in which gamma dies at 15."""
    return [
        *(start(peer, 0.0) for peer in (A, B, C)),
        *(Member(t=1, peer=p, name="", member=p, member_name=NAMES[p]) for p in (A, B, C)),
        *(ready(peer, 9.0, 0) for peer in (A, B, C)),
        commit(A, 10.0, 0, (A, B, C)),
        commit(C, 10.1, 0, (A, B, C)),
        commit(B, 15.2, 0, (A, B, C)),  # Applied late, after the kill: not what came next.
        ready(C, 14.0, 1),
        killed(15.0),
        lost(A, 15.3, C),
        lost(B, 15.4, C),
        ready(A, 18.0, 1),
        ready(B, 19.5, 1),
        commit(B, 20.0, 1, (A, B)),
        commit(A, 20.5, 1, (A, B)),
    ]


def kills(events: Sequence[Event]) -> list[tuple[str, int | None, float | None, float | None]]:
    ordered = sorted(events, key=lambda event: event.t)
    figures = find_kills(ordered, find_lives(ordered), NAMES)
    return [
        (
            kill.name,
            kill.round,
            kill.kill_to_next_commit_s,
            kill.kill_to_next_commit_wall_s,
        )
        for kill in figures
    ]


def test_a_kill_counts_from_the_last_surviving_peer_that_was_ready() -> None:
    assert kills(three_peers()) == [("gamma", 1, 0.5, 5.0)]


def test_survivors_that_were_ready_before_the_kill_count_from_the_kill() -> None:
    events = [e for e in three_peers() if not (isinstance(e, Ready) and e.t > 15)]
    events += [ready(A, 12.0, 1), ready(B, 14.5, 1)]
    assert kills(events) == [("gamma", 1, 5.0, 5.0)]


def test_a_dead_peer_that_still_counts_is_not_waited_for() -> None:
    events = [e for e in three_peers() if not (isinstance(e, Commit) and e.round == 1)]
    events += [commit(A, 20.0, 1, (A, B, C)), commit(B, 20.1, 1, (A, B, C))]
    assert kills(events) == [("gamma", 1, 0.5, 5.0)]


def test_a_killed_peer_that_is_back_in_time_is_no_survivor() -> None:
    events = [e for e in three_peers() if not (isinstance(e, Commit) and e.round == 1)]
    member = Member(t=17.0, peer=C, name="gamma", member=C, member_name="gamma")
    events += [start(C, 16.0), member, ready(C, 19.9, 1)]
    events += [commit(A, 20.0, 1, (A, B, C)), commit(B, 20.1, 1, (A, B, C))]
    assert kills(events) == [("gamma", 1, 0.5, 5.0)]


def test_a_kill_after_which_nothing_was_committed_has_no_figure() -> None:
    events = [e for e in three_peers() if e.t < 16]
    assert kills(events) == [("gamma", None, None, None)]


@pytest.mark.parametrize(
    "fault",
    [
        killed(15.0, peer="", name="launcher", what="SIGKILL to gamma"),
        killed(15.0, peer=A, name="alpha", what="kill -9 gamma.3"),
    ],
)
def test_a_fault_hits_whom_it_names(fault: Fault) -> None:
    events = [e for e in three_peers() if not isinstance(e, Fault)] + [fault]
    assert kills(events) == [("gamma", 1, 0.5, 5.0)]
    assert ends(events, A) == [(None, "")]


@pytest.mark.parametrize("what", ["SIGSTOP", "rank 0 killed"])
def test_a_fault_that_its_peer_survives_is_no_kill(what: str) -> None:
    events = [e for e in three_peers() if not isinstance(e, Fault | Lost)]
    events += [killed(15.0, what=what), metrics(C, 17.0)]
    assert kills(events) == []
    assert ends(events, C) == [(None, "")]


def test_a_peer_that_others_called_lost_lives_on_if_it_writes_on() -> None:
    assert ends([*three_peers(), metrics(C, 17.0)], C) == [(None, "")]


def test_without_a_fault_event_the_first_who_misses_a_peer_dates_its_end() -> None:
    events = [e for e in three_peers() if not isinstance(e, Fault)]
    assert ends(events, C) == [(15.3, "lost")]
    assert kills(events) == []


def test_who_finished_did_not_die_when_the_others_saw_it_go() -> None:
    done = Finished(
        t=21.0, peer=A, name="alpha", outer_steps=2, bytes_sent=0, bytes_received=0, state_digest=""
    )
    assert ends([*three_peers(), done, lost(B, 21.5, A)], A) == [(21.0, "finished")]


def test_stopping_and_leaving_are_ends_too() -> None:
    stopped = Stopped(t=21.0, peer=A, name="alpha", why="asked to")
    left = Left(t=22.0, peer=A, name="alpha", member=B, member_name="beta", why="asked to")
    assert ends([*three_peers(), stopped, left], A) == [(21.0, "stopped")]
    assert ends([*three_peers(), left], B) == [(22.0, "left")]


def test_a_restarted_peer_has_two_lives_and_the_second_is_a_join() -> None:
    events = [
        *three_peers(),
        start(C, 16.0),
        Member(t=17.0, peer=C, name="gamma", member=C, member_name="gamma"),
        commit(C, 20.2, 1, (A, B)),
        ready(C, 29.0, 2),
        commit(C, 30.0, 2, (A, B, C)),
    ]
    events.sort(key=lambda event: event.t)
    lives = find_lives(events)
    assert ends(events, C) == [(15.0, "killed"), (None, "")]
    assert [lifetime.lives_at(14.9) for lifetime in lives if lifetime.peer == C] == [True, False]
    assert [lifetime.lives_at(17.0) for lifetime in lives if lifetime.peer == C] == [False, True]
    assert find_joins(lives, first_commits(events), NAMES) == [
        JoinFigures(
            peer=C,
            name="gamma",
            t_s=16.0,
            join_to_member_s=1.0,
            join_to_contribution_s=14.0,
            state_bytes=None,
            state_s=None,
        )
    ]


def test_a_kill_after_a_restore_is_not_answered_by_what_the_run_had_committed_before_it() -> None:
    events = [commit(A, 5.0, 1, (A, B, C), lineage="a")]
    events += [commit(A, 6.0, 2, (A, B, C), lineage="a")]
    again = [commit(A, 20.0, 1, (A, B), lineage="b"), commit(A, 30.0, 2, (A, B), lineage="b")]
    born = [start(A, 0.0), start(B, 0.0), start(C, 0.0), commit(C, 14.0, 0, (A, B, C), lineage="b")]
    everything = sorted([*born, *events, killed(15.0), *again], key=lambda event: event.t)
    assert kills(everything) == [("gamma", 1, 5.0, 5.0)]


def standing(events: Sequence[Commit]) -> list[tuple[int, str, float]]:
    by_time = sorted(events, key=lambda event: event.t)
    return [(each.round, each.lineage, each.t) for each in first_commits(by_time)]


def test_rounds_that_a_restore_took_back_are_none() -> None:
    """Not even those that the run has not come to again."""
    before = [commit(p, t, t, (A, B, C), lineage="a") for p in (A, B, C) for t in (1, 2, 3, 4, 5)]
    after = [commit(p, t + 8, t, (A, C), lineage="b") for p in (A, C) for t in (3, 4)]
    assert standing([*before, *after]) == [(1, "a", 1), (2, "a", 2), (3, "b", 11), (4, "b", 12)]


def test_of_two_restores_that_one_peer_slept_through_both_count() -> None:
    events = [commit(p, t, t, (A, B), lineage="a") for p in (A, B) for t in (1, 2, 3)]
    events += [commit(A, t + 8, t, (A,), lineage="b") for t in (2, 3, 4)]
    # Beta is back, and the first to tell of the third lineage.
    events += [commit(B, 20, 4, (A, B), lineage="c"), commit(A, 21, 4, (A, B), lineage="c")]
    assert standing(events) == [(1, "a", 1), (2, "b", 10), (3, "b", 11), (4, "c", 20)]


def test_the_branch_of_a_fork_that_was_given_up_counts_for_nothing() -> None:
    """Both went on at the same time; its node comes back as another peer."""
    events = [commit(p, 1, 1, (A, B), lineage="a") for p in (A, B)]
    for at in (2, 3, 4):
        events += [commit(A, at, at, (A,), lineage="b"), commit(B, at - 0.5, at, (B,), lineage="c")]
    events += [commit(A, 5, 5, (A, C), lineage="b"), commit(C, 5.5, 5, (A, C), lineage="b")]
    assert standing(events) == [(1, "a", 1), *((each, "b", each) for each in (2, 3, 4, 5))]


def test_clocks_that_were_set_back_make_no_circle() -> None:
    events = [commit(A, 1, 1, (A,), lineage="a"), commit(A, 3, 2, (A,), lineage="b")]
    assert standing([*events, commit(A, 4, 3, (A,), lineage="a")]) == [(1, "a", 1), (3, "a", 4)]


def test_a_life_ends_with_its_last_word_when_nobody_missed_it() -> None:
    events = [e for e in three_peers() if not isinstance(e, Fault | Lost)]
    events += [start(C, 16.0), metrics(C, 18.0), lost(A, 19.0, C)]
    assert ends(events, C) == [(14.0, "lost"), (19.0, "lost")]


def test_a_peer_of_which_only_a_fault_is_known_has_no_life() -> None:
    assert find_lives([killed(1.0)]) == []
