"""A revocation takes the vote first, then the certificate: any peers at once, whatever fails."""

from dataclasses import replace

import pytest

from protocols.interface import events as v
from protocols.leader import voters
from protocols.leader.voters import PATIENCE_S
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.peer.certificates import RETRY_S
from protocols.peer.revoked_peers import FAREWELL_S
from protocols.state.entry_validation import cannot_act
from tests.protocols.led import leading
from tests.protocols.room import RULES, is_message
from tests.protocols.scenes import A, B, C, join
from tests.protocols.secure_room import SecureRoom

GRACE_S = RULES.reconnect_grace_s
SLOW = replace(RULES, reconnect_grace_s=5.0)
"""A dead peer is not counted as lost for so long."""


def goes_on(room: SecureRoom, *names: str) -> None:
    """These train, and nobody else: a round of theirs is committed."""
    before = len(room.log(e.Commit, of=names[0]))
    room.wait(2.0)
    for name in names:
        room.contribute(name)
    room.wait(2.0)
    rosters = [
        [room.name_of(x.peer) for x in y.contributors] for y in room.log(e.Commit, of=names[0])
    ]
    assert rosters[before:] == [list(names)]


def changes(room: SecureRoom) -> list[e.Entry]:
    """What a revocation may write, in a's log."""
    return [x for x in room.bodies("a") if isinstance(x, e.Voter | e.Revoked | e.Lost)]


# Any peers at once ------------------------------------------------------------------------------


@pytest.mark.parametrize("asked_at", ["a", "b", "c"])
def test_two_of_three_voters_at_once_and_the_third_goes_on(asked_at: str) -> None:
    """Both were shut out, and to strike one took the vote of the other: the run stood still."""
    room = SecureRoom("abc")
    room.hold = lambda name, event: name == "a" and is_message(event, m.Appended)
    room.revoke(asked_at, "b", "c")  # Within one round trip.
    room.release_newest()
    room.wait(FAREWELL_S)
    assert sorted(room.checked("a")) == ["b", "c"]
    assert room.voters("a") == "a"
    assert [room.outcome(name) for name in "abc"] == ["", "refused", "refused"]
    goes_on(room, "a")


def test_each_is_asked_for_at_another_one() -> None:
    room = SecureRoom("abc")
    asked = {"b": "c", "c": "b"}
    room.together(
        *(
            (at, v.ActAsked(e.Revoked(room.ids[whom], room.ids[at], "")))
            for at, whom in asked.items()
        )
    )
    room.wait(RETRY_S + FAREWELL_S)
    assert sorted(room.checked("a")) == ["b", "c"]
    goes_on(room, "a")


def test_four_of_seven_at_once_each_in_its_turn() -> None:
    room = SecureRoom("abcdefg")
    assert room.voters("a") == "abcdefg"
    room.revoke("b", *"defg")
    room.wait(FAREWELL_S)
    assert sorted(room.checked("a")) == ["d", "e", "f", "g"]
    ends = [x for x in room.log(e.Voter) if not x.votes]
    assert len(ends) == 4
    goes_on(room, "a", "b", "c")


def test_no_vote_ends_before_the_last_change_of_voters_is_committed() -> None:
    """Else two majorities might not overlap."""
    room = SecureRoom("abcde")
    room.hold = lambda name, event: name == "a" and is_message(event, m.Appended)
    room.revoke("a", "b", "c")
    core = room.peers["a"]
    ends = [x.index for x in core.raft.log.entries if x.body == _ends(room, "a", "b")]
    assert [x for x in room.log(e.Voter, of="a") if not x.votes] == [_ends(room, "a", "b")]
    assert room.log(e.Revoked, of="a") == [], "it votes until that is committed"
    assert core.raft.commit_index < ends[0]
    room.release()
    assert room.checked("a") == ["b", "c"]


def _ends(room: SecureRoom, by: str, peer: str) -> e.Voter:
    why = f"its certificate is about to be revoked, as {room.ids[by]} asked"
    return e.Voter(room.ids[peer], votes=False, why=why)


def test_a_revoked_voter_that_is_silent_is_not_needed() -> None:
    """b and c answer nothing: a and d are a majority once one of them is out."""
    room = SecureRoom("abcd")
    silent = {room.ids[name] for name in "bc"}
    room.hold = lambda name, event: (
        name == "a" and is_message(event, m.Appended) and getattr(event, "peer", "") in silent
    )
    room.revoke("a", "b", "c")
    assert sorted(room.checked("a")) == ["b", "c"]
    assert room.voters("a") == "ad"


def test_its_acknowledgement_counts_no_more_from_that_entry_on() -> None:
    """Only c's can commit it."""
    room = SecureRoom("abc")
    room.hold = lambda name, event: (
        name == "a"
        and is_message(event, m.Appended)
        and getattr(event, "peer", "") == room.ids["c"]
    )
    room.revoke("a", "b")
    assert room.log(e.Voter, of="a")[-1] == _ends(room, "a", "b")
    assert room.log(e.Revoked, of="a") == []
    room.release()
    assert room.checked("a") == ["b"]


# While another one is dead ----------------------------------------------------------------------


def test_of_four_while_another_one_is_dead() -> None:
    room = SecureRoom("abcd", rules=SLOW)
    room.kill("d")
    room.revoke("c", "b")
    assert room.checked("a") == ["b"]
    assert room.voters("a") == "acd"


def test_the_dead_one_of_two_goes_first_while_the_other_one_still_votes() -> None:
    room = SecureRoom("abc", rules=SLOW)
    room.kill("b")
    room.revoke("a", "c", "b")
    assert room.checked("a") == ["b", "c"]
    room.wait(FAREWELL_S)
    goes_on(room, "a")


def test_without_a_majority_of_those_that_stay_it_is_refused_and_changes_nothing() -> None:
    room = SecureRoom("abc", rules=SLOW)
    room.kill("c")
    before = changes(room)
    room.revoke("b", "b")
    assert room.refused("b", "b") == "", "c may be back in a moment"
    room.wait(PATIENCE_S + 0.5)
    why = room.refused("b", "b")
    assert why.startswith("of the 2 voters that would remain only 1 can be reached (not c)")
    assert "--force" in why
    assert changes(room) == before
    room.wait(SLOW.reconnect_grace_s + 1.0)
    assert room.voters("a") == "ab", "c is lost"
    room.revoke("b", "b")
    assert room.checked("a") == ["b"]
    goes_on(room, "a")


def test_a_voter_that_hangs_is_not_reckoned_with() -> None:
    """Its connection stands, and nothing comes: what takes its answer would never be decided."""
    room = SecureRoom("abc", rules=replace(RULES, silence_timeout_min_s=RULES.silence_timeout_s))
    room.hold = lambda name, event: "c" in (name, room.sender(event))
    room.wait(2.0)
    room.revoke("b", "b")
    room.wait(PATIENCE_S + 1.0)
    assert "(not c)" in room.refused("b", "b")
    assert room.voters("a") == "abc"
    assert room.ids["c"] in room.peers["a"].links.up


def test_those_that_are_asked_for_count_together() -> None:
    room = SecureRoom("abcd", rules=SLOW)
    room.kill("d")
    room.revoke("a", "b", "c")
    room.wait(PATIENCE_S + 0.5)
    assert room.checked("a") == ["b"]
    assert room.refused("a", "b") == ""
    assert "(not d)" in room.refused("a", "c")
    assert room.voters("a") == "acd"


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_of_all_voters_one_stays(order: str) -> None:
    room = SecureRoom("ab")
    room.revoke("a", *order)
    room.wait(2 * RETRY_S + PATIENCE_S)
    stays, goes = ("b", "a") if order == "ab" else ("a", "b")
    assert room.checked(stays) == [goes]
    assert room.voters(stays) == stays
    goes_on(room, stays)


def test_two_that_are_all_are_refused_while_none_of_them_went(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a learner that cannot vote: its disk is full."""
    monkeypatch.setattr(voters, "LAG_MAX", -1)
    room = SecureRoom("abc")
    assert room.voters("a") == "a"
    room.revoke("b", "a")
    assert "only voter" in cannot_act(room.peers["b"].run_state, e.Revoked(room.ids["a"], B, ""))
    assert room.log(e.Revoked) == []


def test_a_learner_votes_first_where_no_majority_would_remain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(voters, "VOTERS_MAX", 3)
    room = SecureRoom("abcd", rules=SLOW)
    assert room.voters("a") == "abc"
    room.kill("c")
    room.revoke("a", "b")
    assert room.checked("a") == ["b"]
    changes = [(room.name_of(x.peer), x.votes) for x in room.log(e.Voter)][-2:]
    assert changes == [("d", True), ("b", False)]
    assert room.voters("a") == "acd"


# By force ---------------------------------------------------------------------------------------


def test_by_force_it_is_written_and_holds_when_a_majority_is_back() -> None:
    room = SecureRoom("abc", rules=SLOW)
    room.kill("c")
    room.revoke("b", "b")
    assert room.log(e.Revoked) == []
    room.revoke("b", "b", force=True)
    kinds = [type(x) for x in room.bodies("a")]
    at = kinds.index(e.Revoked)
    assert kinds[at - 1 : at + 2] == [e.Voter, e.Revoked, e.Lost]
    assert room.peers["a"].run_state.spendings.revoked == {}, "nothing of it is committed"
    room.returns("c")
    room.meet("c", "a")
    room.wait(2.0)
    assert room.checked("a") == ["b"]
    assert room.peers["a"].run_state.voters == room.peers["a"].raft.log.voters


def test_the_last_vote_does_not_end_by_force() -> None:
    room = SecureRoom("a")
    room.revoke("a", "a", force=True)
    assert room.voters("a") == "a"
    assert not room.peers["a"].stopped


# The leader -------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked_at", ["a", "b"])
def test_a_leader_hands_over_and_then_loses_its_vote(asked_at: str) -> None:
    room = SecureRoom("abc")
    room.revoke(asked_at, "a")
    room.wait(FAREWELL_S)
    assert room.outcome("a") == "refused"
    assert room.checked("b") == ["a"]
    assert room.voters("b") == "bc"
    goes_on(room, "b", "c")


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_leader_and_another_one_at_once(order: str) -> None:
    """The lead is not handed over to the other one, once that is known to be revoked."""
    room = SecureRoom("abc")
    room.revoke("a", *order)
    room.wait(FAREWELL_S)
    assert sorted(room.checked("c")) == ["a", "b"]
    assert [room.outcome(name) for name in "abc"] == ["refused", "refused", ""]
    leaders = "".join(room.name_of(body.peer) for body in room.log(e.Elected, of="c"))
    assert leaders == {"ab": "abc", "ba": "ac"}[order]
    goes_on(room, "c")


def test_a_leader_that_leaves_hands_over_to_one_that_keeps_its_vote() -> None:
    room = SecureRoom("abc")
    room.hold = lambda name, event: name == "a" and is_message(event, m.Appended)
    room.revoke("a", "b")
    room.feed("a", v.LeaveRequested("done"))
    room.release()
    room.wait(2.0)
    assert [body.peer for body in room.log(e.Elected, of="c")][-1] == room.ids["c"]
    assert room.checked("c") == ["b"]


def test_a_leader_that_dies_between_the_two_entries() -> None:
    """The one that was asked asks the next leader; the vote that ended may have come back."""
    room = SecureRoom("abcd")
    room.hold = lambda name, event: name == "a" and is_message(event, m.Appended)
    room.revoke("d", "b")
    assert room.log(e.Voter, of="a")[-1] == _ends(room, "d", "b")
    room.kill("a")
    room.hold = lambda name, event: False
    room.wait(3 * RULES.election_timeout_s + RETRY_S + FAREWELL_S)
    assert room.checked("d") == ["b"]
    assert room.voters("d") == "cd"
    goes_on(room, "c", "d")


def test_a_leader_that_dies_with_the_certificate_revoked_and_the_peer_not_lost() -> None:
    """Its successor reads on in the log: nobody has to ask again."""
    room = SecureRoom("abcd")
    room.revoke("a", "b")
    kinds = [type(x) for x in room.bodies("a")]
    assert kinds[kinds.index(e.Revoked) + 1] is e.Lost, "no entry can come between"
    room.kill("a")
    room.wait(3 * RULES.election_timeout_s)
    assert room.checked("d") == ["b"]


# Whoever it is ----------------------------------------------------------------------------------


def test_a_joiner_needs_no_vote_taken() -> None:
    scene = leading(B)
    scene.on(v.Secured())
    scene.comes(C)
    scene.hears(C, m.ReadLog(0))
    scene.hears(C, join(C))
    assert C in scene.core.run_state.joiners
    scene.on(v.ActAsked(e.Revoked(C, A, "")))
    assert [type(x.body) for x in scene.core.raft.log.entries][-2:] == [e.Revoked, e.Lost]
    assert C not in scene.core.run_state.cuts
    scene.hears(C, join(C))
    scene.hears(C, m.ReportsComplete(scene.core.raft.term))
    assert C not in scene.core.run_state.joiners, "nothing that it says counts"
    assert not scene.leader.accounts.told(C)


def test_a_joiner_gets_its_state_from_another_one_when_its_donor_is_revoked() -> None:
    room = SecureRoom("abc")
    room.contribute("a")
    room.hold = lambda name, event: isinstance(event, v.CellReceived)
    room.add("d")
    donors = [x.donors for x in room.log(e.Cut)][-1]
    (donor,) = {room.name_of(x) for x in donors[:1]}
    room.revoke("a", donor)
    room.wait(FAREWELL_S)
    room.release()
    room.wait(RULES.transfer_timeout_s + 1.0)
    keeps = next(name for name in "abc" if name != donor)
    assert room.ids["d"] in room.peers[keeps].run_state.members
    assert room.checked(keeps) == [donor]


def test_a_witness_loses_its_vote_as_members_do() -> None:
    room = SecureRoom("ab")
    room.add("w", witness=True)
    assert room.voters("a") == "abw"
    room.revoke("a", "w", "b")
    room.wait(FAREWELL_S)
    assert sorted(room.checked("a")) == ["b", "w"]
    assert room.outcome("w") == "refused"
    goes_on(room, "a")
