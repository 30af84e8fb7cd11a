"""Each checker fires when it is fed what must never happen, and keeps quiet otherwise."""

from dataclasses import replace

import pytest

from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.ids import PeerId, Stamp, Version, digest_text
from sims.checkers import Checkers, World
from sims.checkers.containment import KEPT_MAX
from sims.checkers.history import HistoryCheckers
from sims.node.node import Node
from sims.node.toy_model import PRIME, ToyContribution, state_digest
from tests.protocols.scenes import BORDERS, A, B, contributor, manifest, run

OURS, THEIRS = 2, 3
"""Lineages."""
STAMP = Stamp(1, OURS, 1, 0, 1, 0)
STEPS = 10
X = digest_text("x")


def commit(round_: int = 1, *peers: PeerId) -> e.Commit:
    terms = tuple(contributor(peer, round_) for peer in peers or (A, B))
    return e.Commit(1, 0, round_, 0, terms, BORDERS, X, "")


def begun() -> HistoryCheckers:
    """A run whose initial state is X."""
    checkers = HistoryCheckers()
    checkers.entry_applied(A, OURS, 1, run())
    checkers.state(A, OURS, 0, 0, X)
    return checkers


def back_to(round_: int, digest: str = X) -> e.Restore:
    return e.Restore(OURS, (Version(0, round_, digest),), 0, 0, (), 0, False, 0)


def fed(*, first: int = 0) -> HistoryCheckers:
    """A and B encoded their first ten steps, worth 3 and 5."""
    checkers = begun()
    for peer, delta in ((A, 3), (B, 5)):
        made = ToyContribution(peer, 0, delta, first, first + STEPS, delta, delta)
        checkers.encoded(manifest(peer, 1), made)
    return checkers


def test_one_log_for_all() -> None:
    checkers = fed()
    checkers.entry_applied(A, OURS, 2, commit())
    checkers.entry_applied(B, OURS, 2, commit())
    assert checkers.violations == []
    checkers.entry_applied(B, OURS, 2, replace(commit(), result_digest=digest_text("y")))
    assert "has another entry 2" in checkers.violations[0]


def test_a_step_counts_once() -> None:
    checkers = fed()
    checkers.entry_applied(A, OURS, 2, commit(1))
    for peer, delta in ((A, 3), (B, 5)):
        checkers.encoded(
            manifest(peer, 2), ToyContribution(peer, 0, delta, 5, 5 + STEPS, delta, delta)
        )
    checkers.entry_applied(A, OURS, 3, commit(2))
    assert [text for text in checkers.violations if "are counted already" in text] == (
        checkers.violations
    )
    assert len(checkers.violations) == 2
    assert "round 2 counts steps 5 to 15" in checkers.violations[0]


def test_later_steps_count_too() -> None:
    checkers = fed()
    checkers.entry_applied(A, OURS, 2, commit(1))
    for peer in (A, B):
        checkers.encoded(manifest(peer, 2), ToyContribution(peer, 0, 1, STEPS, 2 * STEPS, 1, 1))
    checkers.entry_applied(A, OURS, 3, commit(2))
    assert checkers.violations == []


def test_a_contribution_says_how_many_steps_it_holds() -> None:
    checkers = begun()
    checkers.encoded(manifest(A, 1), ToyContribution(A, 0, 3, 0, STEPS + 1, 3, 3))
    checkers.entry_applied(A, OURS, 2, commit(1, A))
    assert checkers.violations != []


def test_a_contribution_holds_exactly_the_uncounted_steps() -> None:
    checkers = HistoryCheckers()
    checkers.encoded(X, ToyContribution(A, 0, 3, 0, STEPS, 4, 3))
    assert checkers.violations == [f"{A} contributes 3, its steps add up to 4"]


def test_a_round_is_applied_with_what_its_commit_lists() -> None:
    checkers = fed()
    checkers.entry_applied(A, OURS, 2, commit())
    mean = 8 * pow(2, -1, PRIME) % PRIME
    checkers.means(A, STAMP, {mean})
    assert checkers.violations == []
    checkers.means(A, STAMP, {3})
    checkers.means(A, STAMP, {mean, 3})
    assert len(checkers.violations) == 2


def test_all_arrive_at_one_state() -> None:
    checkers = HistoryCheckers()
    checkers.state(A, OURS, 0, 1, X)
    checkers.state(B, OURS, 0, 1, X)
    checkers.state(B, OURS, 0, 2, digest_text("y"))
    assert checkers.violations == []
    checkers.state(B, OURS, 0, 1, digest_text("y"))
    assert "round 1" in checkers.violations[0]


def test_live_work_is_not_thrown_away() -> None:
    checkers = fed()
    checkers.dropped(A, 0, (0, 0), OURS)
    checkers.entry_applied(A, OURS, 2, commit())
    checkers.dropped(A, 0, (0, STEPS), OURS)
    assert checkers.violations == []
    checkers.dropped(A, 0, (STEPS, STEPS + 3), OURS)
    assert checkers.violations == [f"steps 10 to 13 of {A} are thrown away"]


def test_what_was_counted_until_a_restore_was_not_thrown_away() -> None:
    """Simulated: others went back while the ranks were still being told of the round."""
    checkers = fed()
    checkers.entry_applied(A, OURS, 2, commit())
    checkers.entry_applied(B, THEIRS, 3, back_to(0))
    checkers.dropped(A, 0, (0, STEPS), OURS)
    assert checkers.violations == []
    checkers.dropped(A, 0, (0, STEPS), THEIRS)
    assert checkers.violations == [f"steps 0 to 10 of {A} are thrown away"]


@pytest.mark.parametrize(("corrupted", "kind", "found"), [
    (False, "diverged", 1),
    (True, "diverged", 0),
    (False, "misbehaviour", 1),
    (True, "misbehaviour", 1),
    (False, "transfer", 0),
])  # fmt: skip
def test_notes_that_need_a_reason(corrupted: bool, kind: str, found: int) -> None:
    checkers = Checkers()
    checkers.history.agreement.corrupted = corrupted
    checkers.note(kind, "x")
    assert len(checkers.violations) == found


def test_the_same_round_may_be_committed_again_after_it_was_taken_back() -> None:
    checkers = fed()
    checkers.entry_applied(A, OURS, 2, commit(1))
    checkers.state(A, OURS, 0, 1, digest_text("y"))
    checkers.entry_applied(A, THEIRS, 3, back_to(0))
    checkers.entry_applied(
        A, THEIRS, 4, commit(1)
    )  # Its steps count in no other state that stands.
    checkers.state(A, THEIRS, 0, 1, digest_text("z"))
    assert checkers.violations == []
    checkers.entry_applied(A, THEIRS, 5, commit(1))
    assert checkers.violations[0] == "round 1 is committed twice"


def test_what_is_before_the_cut_stays_counted() -> None:
    checkers = fed()
    checkers.entry_applied(A, OURS, 2, commit(1))
    checkers.state(A, OURS, 0, 1, digest_text("y"))
    checkers.entry_applied(A, THEIRS, 3, back_to(1, digest_text("y")))
    for peer in (A, B):
        checkers.encoded(manifest(peer, 2), ToyContribution(peer, 0, 1, 5, 5 + STEPS, 1, 1))
    checkers.entry_applied(A, THEIRS, 4, commit(2))
    assert ["are counted already" in text for text in checkers.violations] == [True, True]


def test_a_branch_begins_with_a_round_that_its_log_does_not_reach() -> None:
    """Seed 1808216: what its disk had not taken was committed by the other one alone."""
    whole, y = fed(), digest_text("y")
    whole.entry_applied(A, OURS, 2, commit(1))
    whole.state(A, OURS, 0, 1, y)
    branch = HistoryCheckers()
    branch.share(whole)
    branch.entry_applied(B, OURS, 1, run())
    branch.entry_applied(B, THEIRS, 2, back_to(1, y))
    branch.encoded(manifest(B, 2), ToyContribution(B, 0, 1, 5, 5 + STEPS, 1, 1))
    branch.entry_applied(B, THEIRS, 3, commit(2, B))
    assert [text for text in branch.violations if "are counted already" in text] != []
    assert len(branch.violations) == 1


def test_what_a_second_way_back_took_back_stands_no_more() -> None:
    """Seed 11000703: the run went back to round 1 and then to round 0."""
    checkers, y = fed(), digest_text("y")
    checkers.entry_applied(A, OURS, 2, commit(1))
    checkers.state(A, OURS, 0, 1, y)
    checkers.entry_applied(A, THEIRS, 3, back_to(1, y))
    assert checkers.agreement.origin(0, 1) == THEIRS
    checkers.entry_applied(A, THEIRS + 1, 4, back_to(0))
    assert (checkers.agreement.origin(0, 1), checkers.violations) == (0, [])


@pytest.mark.parametrize(
    ("round_", "digest", "tainted", "found"),
    [
        (0, X, False, []),
        (0, digest_text("y"), False, [f"restored to another state of round 0 than {A} had"]),
        (0, digest_text("y"), True, []),
        (1, X, False, ["restored to round 1, which never was"]),
        (1, X, True, ["restored to round 1, which never was"]),
    ],
)
def test_a_run_goes_back_only_to_what_it_was(
    round_: int, digest: str, tainted: bool, found: list[str]
) -> None:
    checkers = fed()
    checkers.agreement.tainted = tainted
    checkers.entry_applied(A, THEIRS, 2, back_to(round_, digest))
    assert checkers.violations == found


def test_nothing_may_pile_up() -> None:
    world = World(3, peers=2, outer_steps=10)
    world.run(until_s=5.0)
    (node,) = world.leaders
    world.checkers.memory(node)
    assert world.checkers.violations == []
    node.data_plane.store.results.update(
        {(replace(STAMP, round=n), 0): 1 for n in range(KEPT_MAX + 1)}
    )
    world.checkers.memory(node)
    size = len(node.data_plane.store.results)
    assert world.checkers.violations == [f"{node.peer} keeps {size} results"]


def test_a_run_does_not_go_back_to_what_it_took_back() -> None:
    """Round 1 was made, taken back, and not made again: its old state is no state of the run."""
    checkers = fed()
    checkers.entry_applied(A, OURS, 2, commit(1))
    checkers.state(A, OURS, 0, 1, digest_text("y"))
    checkers.entry_applied(A, THEIRS, 3, back_to(0))
    assert checkers.violations == []
    checkers.entry_applied(A, 4, 4, back_to(1, digest_text("y")))
    assert checkers.violations == ["restored to round 1, which never was"]


def test_the_log_names_no_state_that_is_not_the_runs() -> None:
    checkers = fed()
    checkers.entry_applied(A, OURS, 2, replace(commit(1), previous_state_digest=X))
    assert checkers.violations == []
    checkers.state(A, OURS, 0, 1, digest_text("y"))
    checkers.entry_applied(A, OURS, 3, replace(commit(2), previous_state_digest=X, contributors=()))
    assert "the log says that round 1 led to" in checkers.violations[0]


def settled() -> tuple[World, Node, Node]:
    """(the world, its leader, a follower) of a run in which nothing fails."""
    world = World(9, peers=3, outer_steps=30)
    world.run(until_s=8.0)
    (leader,) = world.leaders
    follower = next(node for node in world.live if node is not leader)
    assert world.checkers.violations == []
    return world, leader, follower


def test_a_vote_is_given_once_and_only_when_the_disk_knows() -> None:
    world, leader, follower = settled()
    term = leader.raft.term
    world.checkers.sent(follower, leader.peer, m.Voted(term, True, pre=False))
    world.checkers.sent(follower, B, m.Voted(term, True, pre=False))
    found = " | ".join(world.checkers.violations)
    assert f"{follower.peer} votes for {B} in term {term} before its disk has the vote" in found
    assert f"votes for {B} in term {term}, and voted for {leader.peer} before" in found


def test_nobody_stands_unasked_nor_helps_to_unseat_a_leader_that_it_hears() -> None:
    world, leader, follower = settled()
    term = leader.raft.term + 1
    world.checkers.leaders.elections.asked_or_voted(
        follower, leader.peer, m.Vote(term, 9, 1, False, False)
    )
    assert "without a majority of pre-votes" in world.checkers.violations.pop()
    world.checkers.sent(follower, B, m.Voted(term, True, pre=True))
    assert "hears" in world.checkers.violations.pop()


@pytest.mark.parametrize("ahead", [0, 1])
def test_what_is_acknowledged_is_on_the_disk(ahead: int) -> None:
    world, leader, follower = settled()
    raft = follower.raft
    answer = m.Appended(raft.term, True, raft.log.last_index + ahead)
    world.checkers.sent(follower, leader.peer, answer)
    assert len(world.checkers.violations) == ahead


def test_an_acknowledgement_is_for_who_leads() -> None:
    world, _, follower = settled()
    raft = follower.raft
    world.checkers.sent(follower, B, m.Appended(raft.term, True, raft.log.last_index))
    assert "which does not lead term" in world.checkers.violations[0]


def test_a_life_begins_with_what_its_disk_has() -> None:
    world, _, follower = settled()
    follower.raft.election.state.term -= 1
    world.checkers.woke(follower)
    assert "wakes in term" in world.checkers.violations[0]


def test_what_is_applied_is_on_the_disks_of_a_majority() -> None:
    world, leader, _ = settled()
    log = leader.raft.log
    entry = log.append(e.Elected(leader.peer), term=leader.raft.term)
    world.checkers.survives(leader, entry.index, entry.body)
    assert world.checkers.violations == [
        f"{leader.peer} applies entry {entry.index}, which only [] have"
    ]


def test_a_peer_contributes_to_a_round_once_and_in_one_life() -> None:
    world, _, follower = settled()
    given = follower.core.rounds[0].work.given
    assert given is not None
    world.checkers.history.accounting.contributed(follower, 0, given.round + 1)  # No such one.
    assert world.checkers.violations == []
    world.checkers.history.accounting.contributed(follower, 0, given.round)
    again = f"{follower.peer} contributes to round {given.round} a second time"
    assert world.checkers.violations == [again]
    stamp = replace(STAMP, view=99)
    world.checkers.history.accounting.offered(follower, stamp)
    world.operator.restart(follower)
    world.run(until_s=world.clock.now + 5.0)
    world.checkers.history.accounting.offered(world.nodes[follower.peer], stamp)
    assert "in its incarnations 1 and 2" in world.checkers.violations[1]


def test_nobody_ends_with_a_state_that_was_wrong_for_long() -> None:
    world = World(9, peers=3, outer_steps=10)
    world.run(until_s=90.0)
    node = next(iter(world.nodes.values()))
    node.states.corrupt[0] = 7
    world.checkers.run_ended(world)
    assert world.checkers.violations == []
    node.states.corrupt[0] = 6
    world.checkers.run_ended(world)
    assert "corrupted 4 rounds ago" in world.checkers.violations[0]


def test_what_a_restore_overtook_while_it_was_encoded_is_no_contribution() -> None:
    """Seed 910022: the same round is encoded again in the new lineage."""
    world, _, follower = settled()
    given = follower.core.rounds[0].work.given
    assert given is not None
    world.checkers.handled(follower, v.Encoded(0, given.round, digest_text("older")), [])
    assert world.checkers.violations == []
    world.checkers.handled(follower, v.Encoded(0, given.round, given.manifest), [])
    assert "a second time" in world.checkers.violations[0]


def test_when_nobody_holds_the_true_state_any_more_the_one_that_is_named_counts() -> None:
    """Seed 910233."""
    world, leader, follower = settled()
    follower.states.outers[0] += 1
    follower.states.corrupt[0] = 0
    following = commit(follower.core.rounds[0].version + 1)
    theirs = replace(following, previous_state_digest=state_digest(leader.states.outers[0]))
    ours = replace(following, previous_state_digest=state_digest(follower.states.outers[0]))
    for named, others, tainted in ((theirs, True, True), (ours, True, True), (ours, False, False)):
        for node in world.nodes.values():
            node.process.alive = others or node is follower
        world.checkers.history.agreement.tainted = tainted
        world.checkers.progress.named(world, named, members=3)
        assert follower.states.corrupt
    world.checkers.history.agreement.tainted = True
    world.checkers.progress.named(world, ours, members=3)
    assert not follower.states.corrupt


def test_the_last_one_that_has_the_state_may_not_leave_unless_it_is_corrupt() -> None:
    world, leader, follower = settled()
    for node in world.nodes.values():
        node.process.alive = node is follower
    log = leader.raft.log
    for corrupt, found in (({0: 1}, []), ({}, ["and no other peer has round"])):
        follower.states.corrupt = corrupt
        reign = world.checkers.leaders.elections.reigns[leader.peer]
        reign.seen = log.append(e.Left(follower.peer, "x"), term=leader.raft.term).index - 1
        world.checkers.leaders.decisions.made(leader, reign)
        texts = [text for text in world.checkers.violations if "may leave" in text]
        assert len(texts) == len(found)
        assert all(part in text for part, text in zip(found, texts, strict=True))


def test_a_joiner_that_has_all_of_the_state_is_another_one_that_has_it() -> None:
    """Seed 3650069."""
    world, leader, follower = settled()
    log, catchup = leader.raft.log, leader.member_status.catchup
    assert leader.core.led_term is not None
    head = leader.core.led_term.head
    for peer in [peer for peer in head.members if peer != follower.peer]:
        head.joiners[peer] = head.members.pop(peer)
        world.nodes[peer].process.alive = peer == leader.peer
    for asking, found in (("", False), ("restarted", True)):
        catchup.asking = asking
        reign = world.checkers.leaders.elections.reigns[leader.peer]
        reign.seen = log.append(e.Left(follower.peer, "x"), term=leader.raft.term).index - 1
        world.checkers.leaders.decisions.made(leader, reign)
        assert any("no other peer has" in text for text in world.checkers.violations) == found
