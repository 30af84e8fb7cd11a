"""One of two peers goes on alone, meets the other again, and one branch of the log stays; with a
witness nobody ever does."""

import pytest

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.leader.voters import BRANCHES
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.sample_ranges import SampleRange
from tests.protocols.room import RULES, Room
from tests.protocols.secure_room import SecureRoom

ALONE_S = RULES.lonely_after_s + 10.0
PATIENCE_S = 3 * RULES.election_timeout_s


def parted(*, rounds: int = 1) -> Room:
    """a and b lost each other after some rounds: a strikes b and goes on, b forks."""
    room = Room("ab")
    for _ in range(rounds):
        room.all_contribute()
    room.cut("a", "b")
    room.wait(ALONE_S)
    return room


def trains(room: Room, name: str, rounds: int, *, tokens: int = 100) -> None:
    for _ in range(rounds):
        room.contribute(name, tokens=tokens)
        room.wait(1.0)


def meet(room: Room) -> None:
    room.down.clear()
    room.meet("a", "b")
    room.wait(2.0)


def stop_of(room: Room, name: str) -> c.Stop | None:
    return next((x for x in room.given[name] if isinstance(x, c.Stop)), None)


def test_the_one_that_is_left_of_two_goes_on_in_a_branch_of_its_own() -> None:
    room = Room("ab")
    room.all_contribute()
    room.kill("a")
    room.wait(RULES.lonely_after_s - 5.0)
    assert not room.peers["b"].leads, "a may be coming back"
    room.wait(15.0)
    core = room.peers["b"]
    assert (core.leads, core.raft.log.voters) == (True, (room.ids["b"],))
    (fork,) = room.log(e.Restore)
    assert (fork.lonely, fork.voters, core.run_state.forks) == (
        True,
        (room.ids["b"],),
        (fork.fork,),
    )
    assert [version.round for version in fork.versions] == [1]
    room.contribute("b")
    assert core.rounds[0].version == 2
    assert core.run_state.tokens == 300


def test_what_its_ranks_did_before_counts_in_its_branch() -> None:
    """The other one may count it too: one of the branches stays."""
    room = Room("ab", samples_ahead=8)
    room.kill("a")
    room.contribute("b", samples=(SampleRange(8, 12),))
    room.wait(ALONE_S)
    assert room.peers["b"].run_state.tokens == 0
    assert [x.kind for x in room.given["b"] if isinstance(x, c.Resume)] == ["anew", "rebase"]
    room.contribute("b", tokens=200, samples=(SampleRange(12, 16),))
    assert room.peers["b"].run_state.tokens == 200
    assert room.peers["b"].run_state.ledger.consumed == 8


def test_it_admits_no_second_voter() -> None:
    room = parted()
    room.contribute("b")
    room.add("c")
    room.down.add(frozenset("ac"))
    room.part("a", "c")
    room.kill("a")
    room.meet("b", "c")
    room.wait(30.0)
    assert room.peers["b"].raft.log.voters == (room.ids["b"],)


def test_of_three_voters_none_goes_on_alone() -> None:
    room = Room("abc")
    room.kill("a")
    room.wait(30.0)
    room.add("d")
    room.cut("b", "c")
    room.cut("b", "d")
    room.cut("c", "d")
    voters = len(room.peers["b"].raft.log.voters)
    room.wait(ALONE_S)
    assert voters > 2
    assert not any(core.leads for core in room.peers.values())


@pytest.mark.parametrize(
    ("at_a", "at_b", "stays"), [(3, 1, "a"), (1, 3, "b"), (2, 2, "a"), (0, 0, "a")]
)
def test_the_branch_with_more_committed_tokens_stays(at_a: int, at_b: int, stays: str) -> None:
    """And at equal tokens the one of the lower name, as the one that never forked has."""
    room = parted()
    trains(room, "a", at_a)
    trains(room, "b", at_b)
    had = {name: core.run_state.tokens for name, core in room.peers.items()}
    assert had == {"a": 200 + 100 * at_a, "b": 200 + 100 * at_b}
    meet(room)
    gone = "b" if stays == "a" else "a"
    stop = stop_of(room, gone)
    assert stop is not None
    assert (stop.outcome, stop.contact) == ("dropped", f"{stays}:1")
    assert stop.why.endswith(f"; ours had {had[gone]} committed tokens")
    assert stop_of(room, stays) is None
    (dropped,) = room.log(e.BranchDropped, of=stays)
    assert (dropped.peer, dropped.tokens) == (room.ids[gone], had[gone])
    room.kill(gone)
    trains(room, stays, 1)
    assert room.peers[stays].run_state.tokens == had[stays] + 100


def test_after_it_was_decided_others_may_vote() -> None:
    room = parted()
    trains(room, "b", 2)
    meet(room)
    room.kill("a")
    room.add("c")
    room.wait(5.0)
    assert set(room.peers["b"].raft.log.voters) == {room.ids["b"], room.ids["c"]}


def test_between_two_branches_nothing_of_the_log_is_said() -> None:
    room = parted()
    room.hold = lambda _, x: isinstance(x, v.MessageReceived) and isinstance(x.message, m.OnBranch)
    room.down.clear()
    before = room.bodies("a")
    room.meet("a", "b")
    head = m.Append(room.peers["b"].raft.run, 99, 0, 0, (), 0)
    room.release()
    room.feed("a", v.MessageReceived(room.ids["b"], head))
    assert room.peers["a"].raft.term < 99
    assert room.bodies("a")[: len(before)] == before


def test_neither_commits_while_they_decide() -> None:
    room = parted()
    room.hold = lambda to, x: (
        to == "a"
        and isinstance(x, v.MessageReceived)
        and isinstance(x.message, m.OnBranch)
        and x.message.final
    )
    room.down.clear()
    room.meet("a", "b")
    room.contribute("a")
    assert room.peers["a"].run_state.tokens == 200, "it waits for the word of b"
    room.release()
    room.wait(1.0)
    assert room.peers["a"].run_state.tokens == 300


def test_what_was_due_waits_until_they_have_decided() -> None:
    """Seed 1703160: the time in which reports are waited for was over meanwhile, for ever."""
    room = Room("ab")
    room.all_contribute()
    room.cut("a", "b")
    while not room.peers["b"].leads:
        room.wait(0.5)
    due = room.now + RULES.election_timeout_s
    room.hold = lambda _, x: (
        isinstance(x, v.MessageReceived) and isinstance(x.message, m.OnBranch) and x.message.final
    )
    room.down.clear()
    room.meet("a", "b")
    not_yet = m.OnBranch((), 0, leads=True, final=False, leader="a:1")
    room.feed("b", v.MessageReceived(room.ids["a"], not_yet))
    led_term = room.peers["b"].led_term
    assert led_term is not None
    assert led_term.frozen
    while room.now <= due:
        room.now = room.peers["b"].deadline
        room.feed("b", v.DeadlineReached())
        assert room.peers["b"].deadline > room.now


def test_who_never_answers_is_hung_up_on_and_the_run_goes_on() -> None:
    room = parted()
    room.hold = lambda to, x: (
        to == "a"
        and isinstance(x, v.MessageReceived)
        and isinstance(x.message, m.OnBranch)
        and x.message.final
    )
    room.down.clear()
    room.meet("a", "b")
    room.contribute("a")
    room.down.add(frozenset("ab"))
    room.wait(RULES.silence_timeout_s + 1.0)
    assert room.peers["a"].run_state.tokens == 300


def test_who_comes_back_without_a_leader_joins_the_branch_that_has_one() -> None:
    room = Room("ab")
    room.all_contribute()
    room.kill("a")
    room.wait(ALONE_S)
    room.restart("a", incarnation=2)
    room.meet("a", "b")
    room.wait(RULES.silence_timeout_s + 5.0)
    stop = stop_of(room, "a")
    assert stop is not None
    assert (stop.outcome, stop.contact) == ("dropped", "b:1")


def test_a_newcomer_reads_the_log_of_a_branch() -> None:
    room = Room("ab")
    room.all_contribute()
    room.kill("a")
    room.wait(ALONE_S)
    room.add("c")
    room.wait(10.0)
    assert room.peers["c"].run_state.forks == room.peers["b"].run_state.forks != ()
    assert room.ids["c"] in room.peers["b"].run_state.members


# A witness ----------------------------------------------------------------------------------


def watched() -> Room:
    room = Room("ab")
    room.add("w", witness=True)
    room.wait(1.0)
    return room


def test_a_witness_is_a_voter_and_nothing_else() -> None:
    room = watched()
    run_state, w = room.peers["a"].run_state, room.ids["w"]
    assert set(room.peers["a"].raft.log.voters) == set(room.ids.values())
    assert (w in run_state.witnesses, w in run_state.receivers) == (True, False)
    for name in "ab":
        room.contribute(name)
    assert room.rosters() == [["a", "b"]]
    sent = [x for x in room.given["w"] if isinstance(x, c.Encode | c.SendResult | c.AdoptState)]
    assert sent == []


def test_either_node_may_die() -> None:
    for victim in "ab":
        room = watched()
        room.kill(victim)
        room.wait(PATIENCE_S)
        (rest,) = {"a", "b"} - {victim}
        room.contribute(rest)
        assert room.peers[rest].run_state.tokens == 100
        assert room.log(e.Restore, of=rest) == [], "no fork"


def test_a_witness_can_lead_and_ends_with_the_run() -> None:
    room = Room("ab", outer_steps=2)
    room.add("0", witness=True)
    room.wait(1.0)
    room.feed("a", v.LeaveRequested("maintenance"))
    assert room.leader() == "0", "the first of those that could"
    room.kill("a")
    for _ in range(2):
        room.contribute("b")
        room.wait(1.0)
    stops = [x for name in "b0" for x in room.given[name] if isinstance(x, c.Stop)]
    assert [stop.outcome for stop in stops] == ["finished", "finished"]


def test_a_witness_goes_when_the_run_is_finished() -> None:
    room = Room("ab", outer_steps=1)
    room.add("w", witness=True)
    room.wait(1.0)
    for name in "ab":
        room.contribute(name)
    room.wait(5.0)
    outcomes = {n: [x.outcome for x in room.given[n] if isinstance(x, c.Stop)] for n in "abw"}
    assert outcomes == {name: ["finished"] for name in "abw"}


def test_a_restarted_witness_votes_again_and_a_lost_one_comes_back() -> None:
    room = watched()
    room.kill("w")
    room.wait(5.0)
    assert room.ids["w"] not in room.peers["a"].raft.log.voters
    room.restart("w", incarnation=2, witness=True)
    room.meet("a", "w")
    room.wait(5.0)
    assert room.ids["w"] in room.peers["a"].raft.log.voters


# Revocations ------------------------------------------------------------------------------------


def secure_branch() -> SecureRoom:
    """b has gone on alone; a died."""
    room = SecureRoom("ab")
    room.kill("a")
    room.wait(ALONE_S + 5.0)
    assert room.peers["b"].run_state.rivals.keys() == {room.ids["a"]}
    return room


def test_in_a_branch_only_the_rival_can_be_revoked_and_that_ends_the_fork() -> None:
    room = secure_branch()
    leaked = e.TokenRevoked("0f" * 16, room.ids["b"], "")
    room.feed("b", v.ActAsked(leaked))
    room.wait(PATIENCE_S + 0.5)
    assert room.peers["b"].certificates.refused == {leaked.token: BRANCHES}
    room.revoke("b", "a")
    assert room.checked("b") == ["a"]
    assert room.peers["b"].run_state.rivals == {}
    room.returns("a")
    room.wait(RULES.silence_timeout_s)
    assert not room.peers["b"].stopped
    assert room.outcome("a") == "refused"


def test_in_a_branch_another_one_is_revoked_by_force() -> None:
    room = secure_branch()
    leaked = e.TokenRevoked("0f" * 16, room.ids["b"], "")
    room.feed("b", v.ActAsked(leaked, force=True))
    assert room.log(e.TokenRevoked, of="b") == [leaked]


def test_a_peer_that_went_on_alone_ends_when_its_rival_says_that_it_is_revoked() -> None:
    """It leads itself, and would for ever."""
    room = secure_branch()
    room.feed("b", v.Barred(room.ids["a"], "this node's certificate was revoked"))
    assert room.outcome("b") == "refused"
