"""Certificates leave when the log has spent a token for them, and the key goes to voters alone."""

from dataclasses import replace

import pytest

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.peer.certificates import ANSWER_S, ASKING_MAX, KEY_RETRY_S, NOT_NOW
from protocols.peer.connectivity import FAREWELL_S
from protocols.state.entry_validation import refusal
from protocols.state.tokens import Token, spending
from protocols.types.ids import PROTOCOL_VERSION, PeerId
from tests.protocols.led import Led, leading, written
from tests.protocols.scenes import STRANGER, A, B, C, D, Follower, follower

TOKEN = Token(("a:1",), b"a" * 32, b"n" * 16, 1, 1000).sealed(b"k" * 32)
PUBLIC, CERTIFICATE = b"p" * 32, b"signed"
ADMIT = m.Admit(PROTOCOL_VERSION, "lc1-word", D, PUBLIC, b"", b"")


def leading_securely(*others: PeerId) -> Led:
    scene = leading(*others)
    scene.on(v.Secured(has_key=True))
    return scene


def following() -> Follower:
    scene = follower(B)
    scene.on(v.Secured(has_key=False))
    return scene


def signed(peer: PeerId = D, *, asker: PeerId = A, number: int = 7, key: bytes = PUBLIC) -> v.Event:
    return v.Signed(asker, number, spending(TOKEN, peer, key), CERTIFICATE)


# The leader -------------------------------------------------------------------------------------


def test_a_certificate_leaves_when_the_log_holds_the_spending_and_not_before() -> None:
    scene = leading_securely(B)
    scene.on(v.AdmitAsked(7, ADMIT))
    assert scene.said == [c.Sign(A, 7, ADMIT)]
    scene.slow_disk = True
    scene.on(signed())
    assert written(scene, e.TokenSpent) == [spending(TOKEN, D, PUBLIC)]
    assert scene.all(c.Answer) == []
    scene.on(v.Persisted(scene.one(c.Persist).write_number))
    assert scene.all(c.Answer) == [c.Answer(7, CERTIFICATE, "", False)]


def test_who_asks_again_with_the_same_key_gets_it_again_and_spends_nothing() -> None:
    """Its answer may have been lost."""
    scene = leading_securely(B)
    scene.on(signed())
    scene.on(signed(number=8))
    assert scene.all(c.Answer) == [c.Answer(8, CERTIFICATE, "", False)]
    assert len(written(scene, e.TokenSpent)) == 1


@pytest.mark.parametrize(
    ("peer", "key", "why"),
    [(C, PUBLIC, "used up"), (D, b"m" * 32, "another peer"), (B, PUBLIC, "another peer")],
)
def test_what_the_log_cannot_spend_is_refused_for_good(peer: PeerId, key: bytes, why: str) -> None:
    scene = leading_securely(B)
    scene.on(signed())
    scene.on(signed(peer, number=8, key=key))
    answer = scene.one(c.Answer)
    assert (answer.number, answer.certificate, answer.final) == (8, b"", True)
    assert why in answer.why
    assert len(written(scene, e.TokenSpent)) == 1


def test_two_that_race_for_the_last_use_do_not_both_get_it() -> None:
    scene = leading_securely(B)
    scene.slow_disk = True
    scene.on(signed(number=7))
    persist = scene.one(c.Persist)
    scene.on(signed(C, number=8))
    assert scene.one(c.Answer).number == 8
    scene.on(v.Persisted(persist.write_number))
    assert scene.one(c.Answer).number == 7


def test_a_refusal_of_the_shell_is_passed_on() -> None:
    scene = leading_securely(B)
    scene.on(v.NotSigned(A, 7, "expired", final=True))
    assert scene.said == [c.Answer(7, b"", "expired", True)]
    scene.on(v.NotSigned(B, 9, "no key yet", final=False))
    assert scene.sent(m.Decided) == [(B, m.Decided(9, b"", "no key yet", False))]


def test_another_version_is_told_so_and_spends_nothing() -> None:
    scene = leading_securely(B)
    scene.on(v.AdmitAsked(7, replace(ADMIT, protocol=PROTOCOL_VERSION + 1)))
    answer = scene.one(c.Answer)
    assert answer.final
    assert "same lowcomm version" in answer.why


def test_a_member_may_ask_for_others_and_nobody_else() -> None:
    scene = leading_securely(B)
    scene.hears(B, m.HandOn(3, ADMIT))
    assert scene.all(c.Sign) == [c.Sign(B, 3, ADMIT)]
    scene.on(signed(asker=B, number=3))
    assert scene.sent(m.Decided) == [(B, m.Decided(3, CERTIFICATE, "", False))]
    scene.meets(STRANGER)
    scene.hears(STRANGER, m.HandOn(3, ADMIT))
    assert scene.all(c.Sign) == []
    assert scene.sent(m.Decided) == [(STRANGER, m.Decided(3, b"", NOT_NOW, False))]


def test_what_the_log_does_not_take_in_time_is_answered_all_the_same() -> None:
    scene = leading_securely(B)
    scene.slow_disk = True
    scene.on(signed())
    said = scene.waits(ANSWER_S)
    assert [x for x in said if isinstance(x, c.Answer)] == [c.Answer(7, b"", NOT_NOW, False)]


def test_many_that_ask_cost_bounded_memory() -> None:
    scene = leading_securely(B)
    scene.slow_disk = True
    for number in range(ASKING_MAX + 1):
        scene.on(signed(number=number))
    assert scene.one(c.Answer).number == ASKING_MAX


# Everybody else ---------------------------------------------------------------------------------


def test_a_member_hands_on_to_the_leader_and_relays_the_answer() -> None:
    scene = following()
    scene.on(v.AdmitAsked(7, ADMIT))
    assert scene.sent(m.HandOn) == [(A, m.HandOn(7, ADMIT))]
    scene.hears(A, m.Decided(7, CERTIFICATE, "", final=False))
    assert scene.all(c.Answer) == [c.Answer(7, CERTIFICATE, "", False)]
    scene.hears(A, m.Decided(7, CERTIFICATE, "", final=False))
    assert scene.all(c.Answer) == []


def test_without_a_leader_the_stranger_hears_so_and_tries_again() -> None:
    scene = following()
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.on(v.AdmitAsked(7, ADMIT))
    assert c.Answer(7, b"", NOT_NOW, False) in scene.said


def test_a_leader_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    scene = following()
    scene.on(v.AdmitAsked(7, ADMIT))
    answers: list[c.Command] = []
    for _ in range(int(ANSWER_S)):
        scene.beat()
        answers += [x for x in scene.waits(1.0) if isinstance(x, c.Answer)]
    assert answers == [c.Answer(7, b"", NOT_NOW, False)]


# The key ----------------------------------------------------------------------------------------


def voter(*learners: PeerId, secure: bool = True) -> Follower:
    scene = follower(B, *learners)
    if secure:
        scene.on(v.Secured(has_key=False))
    scene.reads(e.Voter(B, votes=True, why="there is a place"))
    return scene


def test_a_voter_without_the_key_asks_until_it_has_it() -> None:
    scene = voter()
    assert scene.sent(m.AskKey) == [(A, m.AskKey())]
    asked = 0
    for _ in range(3):
        scene.beat()
        said = scene.waits(KEY_RETRY_S)
        asked += sum(isinstance(x, c.Send) and x.message == m.AskKey() for x in said)
    assert asked == 3
    scene.on(v.Secured(has_key=True))
    scene.beat()
    said = scene.waits(KEY_RETRY_S)
    assert not any(isinstance(x, c.Send) and x.message == m.AskKey() for x in said)


def test_a_voter_that_no_other_voter_answers_asks_all_who_are_in() -> None:
    """Seed 7004125: the founder had the key, and came back when seven others had the votes."""
    scene = voter(C)
    asked = [to for to, _ in scene.sent(m.AskKey)]
    assert asked == [A], "voters have it, as a rule"
    scene.beat()
    said = scene.waits(KEY_RETRY_S)
    again = [x.peer for x in said if isinstance(x, c.Send) and x.message == m.AskKey()]
    assert again == [A, C]


def test_nobody_asks_in_a_run_in_the_clear_nor_who_does_not_vote() -> None:
    scene = voter(secure=False)
    assert scene.sent(m.AskKey) == []
    learner = follower(B)
    learner.on(v.Secured(has_key=False))
    assert learner.sent(m.AskKey) == []


def test_the_key_goes_to_voters_and_to_nobody_else() -> None:
    scene = voter()
    scene.on(v.Secured(has_key=True))
    for peer in (C, STRANGER):
        scene.meets(peer)
        scene.hears(peer, m.AskKey())
        assert scene.all(c.GiveKey) == []
    scene.hears(A, m.AskKey())
    assert scene.all(c.GiveKey) == [c.GiveKey(A)]


def test_who_has_no_key_gives_none_and_takes_it_from_anybody() -> None:
    scene = voter()
    scene.hears(A, m.AskKey())
    assert scene.all(c.GiveKey) == []
    scene.hears(A, m.AuthorityKey(b"a key"))
    assert scene.all(c.TakeKey) == [c.TakeKey(b"a key")]
    scene.on(v.Secured(has_key=True))
    scene.hears(A, m.AuthorityKey(b"another"))
    assert scene.all(c.TakeKey) == []


def test_in_a_run_in_the_clear_nothing_of_this_is_answered() -> None:
    scene: Led = leading(B)
    for message in (m.HandOn(1, ADMIT), m.Decided(1, b"", "", final=True), m.AskKey()):
        scene.hears(B, message)
        assert [x for x in scene.said if isinstance(x, c.AtTheGate)] == []


# Certificates that count no more ----------------------------------------------------------------

GONE = e.Revoked(C, A, "stolen")


def test_the_leader_writes_down_who_is_shut_out_and_then_that_it_is_lost() -> None:
    scene = leading_securely(B, C)
    scene.on(v.RevokeAsked(e.Revoked(C, A, "stolen")))
    assert written(scene, e.Revoked) == [GONE]
    assert written(scene, e.Lost) == [e.Lost(C, f"its certificate was revoked by {A}")]
    scene.on(v.DeadlineReached())
    assert C in scene.core.links.up, "it has to read that it is out"
    scene.waits(FAREWELL_S)
    assert C not in scene.core.links.up
    scene.on(v.RevokeAsked(e.Revoked(C, A, "once more")))
    assert written(scene, e.Revoked) == [GONE]


def test_who_follows_asks_the_leader_until_the_log_holds_it() -> None:
    scene = follower(B, C)
    scene.on(v.Secured(has_key=False))
    scene.on(v.RevokeAsked(e.Revoked(C, B, "stolen")))
    assert scene.sent(m.Revoke) == [(A, m.Revoke(e.Revoked(C, B, "stolen"), force=False))]
    scene.beat()
    scene.waits(KEY_RETRY_S)
    assert scene.sent(m.Revoke) == [(A, m.Revoke(e.Revoked(C, B, "stolen"), force=False))]
    said = scene.reads(GONE) + scene.waits(KEY_RETRY_S)
    assert [x.peer for x in said if isinstance(x, c.Disconnect)] == [C]
    assert not [x for x in said if isinstance(x, c.Send) and isinstance(x.message, m.Revoke)]


def test_only_who_is_in_may_ask_for_it() -> None:
    scene = leading_securely(B, C)
    scene.meets(STRANGER)
    scene.hears(STRANGER, m.Revoke(e.Revoked(C, A, ""), force=False))
    assert written(scene, e.Revoked) == []
    scene.hears(B, m.Revoke(e.Revoked(C, A, "stolen"), force=False))
    assert written(scene, e.Revoked) == [e.Revoked(C, B, "stolen")]
    plain = leading(B, C)
    plain.hears(B, m.Revoke(e.Revoked(C, A, "stolen"), force=False))
    assert written(plain, e.Revoked) == [], "there are no certificates"


def test_the_only_voter_is_not_shut_out() -> None:
    scene = leading_securely(B, C)
    scene.on(v.RevokeAsked(e.Revoked(A, A, "")))
    scene.hears(B, m.Revoke(e.Revoked(A, A, ""), force=False))
    assert written(scene, e.Revoked) == []
    assert not scene.core.stopped


def test_a_certificate_that_was_revoked_stands_for_no_other_one() -> None:
    scene = leading_securely(B, C)
    scene.on(v.RevokeAsked(e.Revoked(C, A, "stolen")))
    scene.on(v.Signed(A, 7, spending(TOKEN, D, PUBLIC), CERTIFICATE, C))
    answer = scene.one(c.Answer)
    assert (answer.certificate, answer.final) == (b"", True)
    assert "was revoked by" in answer.why


def test_who_reads_that_it_is_shut_out_stops_and_says_so() -> None:
    scene = follower(B, C)
    scene.on(v.Secured(has_key=False))
    scene.reads(e.Revoked(B, A, "stolen"))
    stop = scene.one(c.Stop)
    assert stop.outcome == "refused"
    assert stop.why.startswith(f"this node's certificate was revoked by {A} (stolen): ask for")


def test_who_comes_back_believes_it_from_most_of_the_voters_and_not_from_one() -> None:
    scene = follower(B, C, D)
    for peer in (B, C, D):
        scene.reads(e.Voter(peer, votes=True, why=""))
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.waits(60.0)
    assert not scene.core.stopped
    said = scene.on(v.Barred(C, "revoked"))
    assert [x.text for x in said if isinstance(x, c.Note)] == [f"{C} reports: revoked"]
    assert scene.on(v.Barred(C, "revoked")) == [], "it is told once"
    scene.on(v.Barred(STRANGER, "revoked"))
    assert not scene.core.stopped
    scene.on(v.Barred(A, "revoked"))
    assert scene.core.stopped


def test_a_token_is_taken_back_and_who_came_with_it_stays() -> None:
    scene = leading_securely(B)
    scene.on(signed())
    gone = e.TokenRevoked(TOKEN.number.hex(), B, "in a public chat")
    scene.hears(B, m.Revoke(replace(gone, by=A), force=False))
    assert written(scene, e.TokenRevoked) == [gone]
    scene.on(v.RevokeAsked(gone))
    assert len(written(scene, e.TokenRevoked)) == 1
    scene.on(signed(C, number=8))
    answer = scene.one(c.Answer)
    assert (answer.certificate, answer.final) == (b"", True)
    assert "this token was revoked by" in answer.why
    scene.on(signed(number=9))
    assert scene.one(c.Answer).certificate == CERTIFICATE, "it has one already"


def test_who_asks_while_its_token_is_taken_back_gets_what_the_log_says() -> None:
    scene = leading_securely(B)
    scene.on(v.RevokeAsked(e.TokenRevoked(TOKEN.number.hex(), A, "")))
    scene.slow_disk = True
    scene.on(signed())
    assert [x.why for x in scene.all(c.Answer)] == [
        refusal(scene.core.run_state, spending(TOKEN, D, PUBLIC))
    ]
    assert written(scene, e.TokenSpent) == []


def test_a_refusal_is_believed_from_the_leader_alone() -> None:
    scene = follower(B, C)
    scene.on(v.Secured(has_key=False))
    scene.on(v.RevokeAsked(e.Revoked(C, B, "")))
    scene.hears(C, m.NotRevoked(C, "no"))
    assert scene.core.certificates.refused == {}
    scene.hears(A, m.NotRevoked(D, "no"))
    assert scene.core.certificates.refused == {}
    scene.hears(A, m.NotRevoked(C, "no"))
    assert scene.core.certificates.refused == {C: "no"}
    scene.beat()
    said = scene.waits(2 * KEY_RETRY_S)
    assert not [x for x in said if isinstance(x, c.Send) and isinstance(x.message, m.Revoke)]
    scene.on(v.RevokeAsked(e.Revoked(C, B, "again")))
    assert scene.core.certificates.refused == {}
