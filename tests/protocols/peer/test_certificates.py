"""A node is answered when the log has spent a token for it, and trusted from then on."""

from dataclasses import replace
from typing import TypeVar

import pytest

from protocols.acts.statements import subject
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links.handshake import Identity
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.peer.certificates import ANSWER_S, ASKING_MAX, NO_PROOF, NOT_NOW, RETRY_S
from protocols.peer.core import PeerCore
from protocols.peer.revoked_peers import FAREWELL_S
from protocols.state.entry_validation import refusal
from protocols.state.tokens import NO_TERMS, renewed
from protocols.types.ids import PROTOCOL_VERSION, PeerId
from tests.protocols.led import Led, leading, written
from tests.protocols.scenes import (
    RULES,
    START,
    STRANGER,
    A,
    B,
    C,
    D,
    Follower,
    Scene,
    follower,
    info,
    ordered,
    run,
)

ROOT = ""
"""The scenes' runs have no root key, so that peers are in them without tokens."""
TERMS = e.TokenTerms("0f" * 16, "5e" * 32, 1, 1000, witness=False, issuer=PeerId(""))
PUBLIC, CERTIFICATE = "70" * 32, b"of d"
SIGNATURES = (b"s" * 64, b"p" * 64)
ADMIT = m.Admit(
    PROTOCOL_VERSION,
    D,
    bytes.fromhex(PUBLIC),
    CERTIFICATE,
    witness=False,
    terms=TERMS,
    signature=SIGNATURES[0],
    proof=SIGNATURES[1],
    earlier=PeerId(""),
)


S = TypeVar("S", bound=Scene)


def secured(scene: S) -> S:
    scene.on(v.Secured())
    return scene


def leading_securely(*others: PeerId) -> Led:
    return secured(leading(*others))


def votes(scene: Scene, *peers: PeerId) -> None:
    """These vote too, by its committed log."""
    scene.core.run_state.voters = (*scene.core.run_state.voters, *peers)


def following() -> Follower:
    return secured(follower(B))


def spent(peer: PeerId = D, *, certificate: bytes = CERTIFICATE) -> e.TokenSpent:
    return e.TokenSpent(TERMS, peer, PUBLIC, certificate, *SIGNATURES)


def proved(
    peer: PeerId = D, *, asker: PeerId = A, number: int = 7, certificate: bytes = CERTIFICATE
) -> v.Event:
    return v.Proved(asker, number, spent(peer, certificate=certificate))


# The leader -------------------------------------------------------------------------------------


def test_a_node_is_admitted_when_the_log_holds_the_spending_and_not_before() -> None:
    scene = leading_securely(B)
    scene.on(v.AdmitAsked(7, ADMIT))
    assert scene.said == [c.CheckProof(A, 7, spent(), ROOT, ROOT)]
    scene.slow_disk = True
    scene.on(proved())
    assert written(scene, e.TokenSpent) == [spent()]
    assert scene.all(c.AdmissionAnswer) == []
    scene.on(v.Persisted(scene.one(c.Persist).write_number))
    assert scene.all(c.AdmissionAnswer) == [c.AdmissionAnswer(7, (), "", False)]


def test_who_is_admitted_hears_the_certificates_of_the_voters() -> None:
    scene = leading_securely(B)
    scene.on(proved(STRANGER, certificate=b"of a stranger"))
    scene.core.run_state.spendings.peers[A] = spent(A, certificate=b"of the voter")
    scene.on(v.AdmitAsked(8, replace(ADMIT, peer=STRANGER, certificate=b"of a stranger")))
    assert scene.one(c.AdmissionAnswer) == c.AdmissionAnswer(8, (b"of the voter",), "", final=False)


def test_who_asks_again_with_the_same_key_gets_it_again_and_spends_nothing() -> None:
    """Its answer may have been lost."""
    scene = leading_securely(B)
    scene.on(proved())
    scene.on(proved(number=8))
    assert scene.all(c.AdmissionAnswer) == [c.AdmissionAnswer(8, (), "", False)]
    assert len(written(scene, e.TokenSpent)) == 1


@pytest.mark.parametrize(
    ("peer", "certificate", "why"),
    [(C, b"of c", "used up"), (D, b"another", "another peer"), (B, b"of b", "another peer")],
)
def test_what_the_log_cannot_spend_is_refused_for_good(
    peer: PeerId, certificate: bytes, why: str
) -> None:
    scene = leading_securely(B)
    scene.on(proved())
    for event in (
        proved(peer, number=8, certificate=certificate),
        v.AdmitAsked(8, replace(ADMIT, peer=peer, certificate=certificate)),
    ):
        scene.on(event)
        answer = scene.one(c.AdmissionAnswer)
        assert (answer.number, answer.certificates, answer.final) == (8, (), True)
        assert why in answer.why
    assert len(written(scene, e.TokenSpent)) == 1


def test_two_that_race_for_the_last_use_do_not_both_get_it() -> None:
    scene = leading_securely(B)
    scene.slow_disk = True
    scene.on(proved(number=7))
    persist = scene.one(c.Persist)
    scene.on(proved(C, number=8, certificate=b"of c"))
    assert scene.one(c.AdmissionAnswer).number == 8
    scene.on(v.Persisted(persist.write_number))
    assert scene.one(c.AdmissionAnswer).number == 7


def test_a_refusal_of_the_shell_is_passed_on() -> None:
    scene = leading_securely(B)
    scene.on(v.NotProved(A, 7, "expired", final=True))
    assert scene.said == [c.AdmissionAnswer(7, (), "expired", True)]
    scene.on(v.NotProved(B, 9, "no key yet", final=False))
    assert scene.sent(m.Decided) == [(B, m.Decided(9, (), "no key yet", False))]


def test_who_asks_before_the_run_is_on_disk_asks_again() -> None:
    """Simulated (seed 6): a token of the root key was called forged, since no root was known."""
    core = PeerCore(Identity(peer=A, name="a", incarnation=1, address="a:1"), join=False)
    core.handle(v.Secured(), 0.0)
    core.handle(v.RunAccepted(RULES), 0.0)
    core.handle(v.Bootstrap(run(founder=A), (START,)), 0.0)
    assert core.leads
    assert core.run_state.run is None
    assert c.AdmissionAnswer(7, (), NOT_NOW, final=False) in core.handle(
        v.AdmitAsked(7, ADMIT), 0.0
    )


def test_another_version_is_told_so_and_spends_nothing() -> None:
    scene = leading_securely(B)
    scene.on(v.AdmitAsked(7, replace(ADMIT, protocol=PROTOCOL_VERSION + 1)))
    answer = scene.one(c.AdmissionAnswer)
    assert answer.final
    assert "same lowcomm version" in answer.why


def test_a_member_may_ask_for_others_and_nobody_else() -> None:
    scene = leading_securely(B)
    scene.hears(B, m.HandOn(3, ADMIT))
    assert scene.all(c.CheckProof) == [c.CheckProof(B, 3, spent(), ROOT, ROOT)]
    scene.on(proved(asker=B, number=3))
    assert scene.sent(m.Decided) == [(B, m.Decided(3, (), "", False))]
    scene.meets(STRANGER)
    scene.hears(STRANGER, m.HandOn(3, ADMIT))
    assert scene.all(c.CheckProof) == []
    assert scene.sent(m.Decided) == [(STRANGER, m.Decided(3, (), NOT_NOW, False))]


def test_what_the_log_does_not_take_in_time_is_answered_all_the_same() -> None:
    scene = leading_securely(B)
    scene.slow_disk = True
    scene.on(proved())
    said = scene.waits(ANSWER_S)
    assert [x for x in said if isinstance(x, c.AdmissionAnswer)] == [
        c.AdmissionAnswer(7, (), NOT_NOW, False)
    ]


def test_many_that_ask_cost_bounded_memory() -> None:
    scene = leading_securely(B)
    scene.slow_disk = True
    for number in range(ASKING_MAX + 1):
        scene.on(proved(number=number))
    assert scene.one(c.AdmissionAnswer).number == ASKING_MAX


# Everybody else ---------------------------------------------------------------------------------


def test_a_member_hands_on_to_the_leader_and_relays_the_answer() -> None:
    scene = following()
    scene.on(v.AdmitAsked(7, ADMIT))
    assert scene.sent(m.HandOn) == [(A, m.HandOn(7, ADMIT))]
    scene.hears(A, m.Decided(7, (CERTIFICATE,), "", final=False))
    assert scene.all(c.AdmissionAnswer) == [c.AdmissionAnswer(7, (CERTIFICATE,), "", False)]
    scene.hears(A, m.Decided(7, (CERTIFICATE,), "", final=False))
    assert scene.all(c.AdmissionAnswer) == []


def test_without_a_leader_the_stranger_hears_so_and_tries_again() -> None:
    scene = following()
    scene.on(v.PeerDisconnected(A, "end of stream"))
    scene.on(v.AdmitAsked(7, ADMIT))
    assert c.AdmissionAnswer(7, (), NOT_NOW, False) in scene.said


def test_a_leader_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    scene = following()
    scene.on(v.AdmitAsked(7, ADMIT))
    answers: list[c.Command] = []
    for _ in range(int(ANSWER_S)):
        scene.beat()
        answers += [x for x in scene.waits(1.0) if isinstance(x, c.AdmissionAnswer)]
    assert answers == [c.AdmissionAnswer(7, (), NOT_NOW, False)]


# Trust ------------------------------------------------------------------------------------------


def test_the_shell_hears_of_each_peer_that_the_log_admits() -> None:
    scene = secured(follower(B))
    scene.reads(spent(D))
    (trust,) = scene.all(c.Trust)
    assert trust == c.Trust(ROOT, (spent(D),), (info(A),))
    scene.reads(e.Voter(B, votes=True, why="there is a place"))
    assert scene.one(c.Trust).voters == (info(A), info(B, 1))
    scene.reads(e.Voter(B, votes=False, why=""))
    scene.beat()
    assert scene.on(v.DeadlineReached()) == [], "it is told once"


def test_in_a_run_in_the_clear_nothing_of_this_is_answered() -> None:
    scene: Led = leading(B)
    for message in (m.HandOn(1, ADMIT), m.Decided(1, (), "", final=True)):
        scene.hears(B, message)
        assert [x for x in scene.said if isinstance(x, c.AtTheGate)] == []


# Roles ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("witness", [True, False])
def test_a_token_admits_no_node_of_the_other_role(witness: bool) -> None:
    scene = leading_securely(B)
    terms = replace(TERMS, witness=not witness)
    scene.on(v.AdmitAsked(7, replace(ADMIT, witness=witness, terms=terms)))
    answer = scene.one(c.AdmissionAnswer)
    assert answer.final
    assert f"admits {'nodes that train' if witness else 'witnesses'} only" in answer.why
    assert "lowcomm token DIRECTORY" in answer.why


# A node that becomes another peer ---------------------------------------------------------------


def test_a_node_whose_branch_was_given_up_needs_no_token() -> None:
    scene = leading_securely(B)
    scene.on(proved())
    again = replace(ADMIT, peer=C, certificate=b"as c", earlier=D, terms=NO_TERMS, signature=b"")
    scene.on(v.AdmitAsked(8, again))
    check = scene.one(c.CheckProof)
    assert check.entry == e.TokenSpent(renewed(spent(D)), C, PUBLIC, b"as c", b"", b"")
    assert check.issuer_key == ""
    scene.on(v.Proved(A, 8, check.entry))
    assert written(scene, e.TokenSpent)[-1] == check.entry
    other = replace(again, peer=STRANGER, certificate=b"as another")
    scene.on(v.AdmitAsked(9, other))
    assert "used up" in scene.one(c.AdmissionAnswer).why, "one other peer, and no more"


def test_a_branch_that_does_not_know_the_earlier_peer_takes_its_token() -> None:
    scene = leading_securely(B)
    scene.on(v.AdmitAsked(8, replace(ADMIT, earlier=C)))
    assert scene.one(c.CheckProof).entry == spent(D)


def test_without_token_or_earlier_peer_nobody_is_admitted() -> None:
    scene = leading_securely(B)
    scene.on(v.AdmitAsked(8, replace(ADMIT, earlier=C, terms=NO_TERMS, signature=b"")))
    assert scene.all(c.AdmissionAnswer) == [c.AdmissionAnswer(8, (), NO_PROOF, final=True)]
    scene.on(proved())
    stolen = replace(ADMIT, peer=C, key=b"m" * 32, earlier=D, terms=NO_TERMS, signature=b"")
    scene.on(v.AdmitAsked(9, stolen))
    assert scene.one(c.AdmissionAnswer).why == NO_PROOF, "it has another key than the earlier peer"


# Issuers ----------------------------------------------------------------------------------------


def issued(issuer: PeerId) -> m.Admit:
    terms = replace(TERMS, number="1f" * 16, issuer=issuer)
    return replace(ADMIT, peer=C, certificate=b"as c", terms=terms)


def test_a_token_counts_as_long_as_its_issuer_votes() -> None:
    scene = leading_securely(B)
    for issuer in (B, STRANGER):
        scene.on(v.AdmitAsked(8, issued(issuer)))
        answer = scene.one(c.AdmissionAnswer)
        assert answer.final
        assert f"{issuer} issued this token, but does not vote" in answer.why


# Certificates that count no more ----------------------------------------------------------------

GONE = e.Revoked(C, A, "stolen")


def test_the_leader_writes_down_who_is_shut_out_and_then_that_it_is_lost() -> None:
    scene = leading_securely(B, C)
    scene.on(v.ActAsked(e.Revoked(C, A, "stolen")))
    assert written(scene, e.Revoked) == [GONE]
    assert written(scene, e.Lost) == [e.Lost(C, f"its certificate was revoked by {A}")]
    scene.on(v.DeadlineReached())
    assert C in scene.core.links.up, "it has to read that it is out"
    scene.waits(FAREWELL_S)
    assert C not in scene.core.links.up
    scene.on(v.ActAsked(e.Revoked(C, A, "once more")))
    assert written(scene, e.Revoked) == [GONE]


def test_who_follows_asks_the_leader_until_the_log_holds_it() -> None:
    scene = follower(B, C)
    scene.on(v.Secured())
    votes(scene, B)
    scene.on(v.ActAsked(e.Revoked(C, B, "stolen")))
    assert scene.sent(m.RequestAct) == [(A, m.RequestAct(e.Revoked(C, B, "stolen"), force=False))]
    scene.beat()
    scene.waits(RETRY_S)
    assert scene.sent(m.RequestAct) == [(A, m.RequestAct(e.Revoked(C, B, "stolen"), force=False))]
    said = scene.reads(GONE) + scene.waits(RETRY_S)
    assert [x.peer for x in said if isinstance(x, c.Disconnect)] == [C]
    assert not [x for x in said if isinstance(x, c.Send) and isinstance(x.message, m.RequestAct)]


def test_only_who_is_in_may_ask_for_it() -> None:
    scene = leading_securely(B, C)
    votes(scene, B, STRANGER)
    scene.meets(STRANGER)
    scene.hears(STRANGER, m.RequestAct(e.Revoked(C, A, ""), force=False))
    assert written(scene, e.Revoked) == []
    scene.hears(B, m.RequestAct(e.Revoked(C, A, "stolen"), force=False))
    assert written(scene, e.Revoked) == [e.Revoked(C, B, "stolen")]
    plain = leading(B, C)
    votes(plain, B)
    plain.hears(B, m.RequestAct(e.Revoked(C, A, "stolen"), force=False))
    assert written(plain, e.Revoked) == [], "there are no certificates"


def operated(*others: PeerId) -> Led:
    """A leads a run of which only the operator revokes."""
    scene = leading(*others, operators=True)
    votes(scene, *others)
    return secured(scene)


def test_who_does_not_vote_revokes_with_the_root_key_s_signature_only() -> None:
    scene = leading_securely(B, C)
    plain = e.Revoked(C, B, "stolen")
    scene.hears(B, m.RequestAct(plain, force=True))
    ((to, refusal_),) = scene.sent(m.ActRefused)
    assert (to, refusal_.subject) == (B, C)
    assert "does not vote" in refusal_.why
    assert "--key FILE" in refusal_.why
    assert written(scene, e.Voter) + written(scene, e.Revoked) == []
    scene.hears(B, m.RequestAct(ordered(plain), force=False))
    assert written(scene, e.Revoked) == [ordered(plain)]


FORGED = (
    e.Revoked(C, B, "stolen"),
    e.Revoked(C, B, "stolen", b"x" * 64),
    replace(ordered(e.Revoked(D, B, "stolen")), peer=C),
    replace(ordered(e.Revoked(C, B, "stolen")), why="another reason"),
    ordered(e.Revoked(C, B, "stolen"), "aa" * 32),
    e.TokenRevoked("0f" * 16, B, ""),
    replace(ordered(e.TokenRevoked("1e" * 16, B, "")), token="0f" * 16),
)


@pytest.mark.parametrize("forged", FORGED)
def test_where_operators_revoke_no_peer_does(forged: e.Revocation) -> None:
    """Neither a voter nor the leader itself."""
    scene = operated(B, C)
    before = scene.core.raft.log.last_index
    scene.hears(B, m.RequestAct(forged, force=True))
    assert [to for to, _ in scene.sent(m.ActRefused)] == [B]
    scene.on(v.ActAsked(replace(forged, by=A), force=True))
    assert list(scene.core.certificates.refused) == [subject(forged)]
    assert scene.core.raft.log.last_index == before


def test_any_member_hands_on_what_the_root_key_signed() -> None:
    scene = operated(B, C)
    gone = ordered(e.Revoked(C, A, "stolen"))
    scene.hears(B, m.RequestAct(gone, force=False))
    assert written(scene, e.Revoked) == [replace(gone, by=B)]
    token = ordered(e.TokenRevoked("0f" * 16, A, ""))
    scene.on(v.ActAsked(token))
    assert written(scene, e.TokenRevoked) == [token]


def test_a_forged_request_does_not_take_the_place_of_a_true_one() -> None:
    scene = operated(B, C)
    scene.slow_disk = True
    gone = ordered(e.Revoked(C, B, "stolen"))
    scene.hears(B, m.RequestAct(gone, force=False))
    scene.hears(B, m.RequestAct(replace(gone, signature=b""), force=True))
    assert scene.core.certificates.acts == {C: m.RequestAct(gone, force=False)}
    assert scene.sent(m.ActRefused) == []


def test_the_only_voter_is_not_shut_out() -> None:
    scene = leading_securely(B, C)
    scene.on(v.ActAsked(e.Revoked(A, A, "")))
    scene.hears(B, m.RequestAct(e.Revoked(A, A, ""), force=False))
    assert written(scene, e.Revoked) == []
    assert not scene.core.stopped


def test_a_certificate_that_was_revoked_stands_for_no_other_one() -> None:
    scene = leading_securely(B, C)
    scene.on(v.ActAsked(e.Revoked(C, A, "stolen")))
    entry = e.TokenSpent(renewed(spent(C)), D, PUBLIC, CERTIFICATE, b"", b"")
    scene.on(v.Proved(A, 7, entry))
    answer = scene.one(c.AdmissionAnswer)
    assert (answer.certificates, answer.final) == ((), True)
    assert "was revoked by" in answer.why


def test_who_reads_that_it_is_shut_out_stops_and_says_so() -> None:
    scene = follower(B, C)
    scene.on(v.Secured())
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
    assert [x.text for x in said if isinstance(x, c.Observation)] == [f"{C} reports: revoked"]
    assert scene.on(v.Barred(C, "revoked")) == [], "it is told once"
    scene.on(v.Barred(STRANGER, "revoked"))
    assert not scene.core.stopped
    scene.on(v.Barred(A, "revoked"))
    assert scene.core.stopped


def test_a_token_is_taken_back_and_who_came_with_it_stays() -> None:
    scene = leading_securely(B)
    scene.on(proved())
    votes(scene, B)
    gone = e.TokenRevoked(TERMS.number, B, "in a public chat")
    scene.hears(B, m.RequestAct(replace(gone, by=A), force=False))
    assert written(scene, e.TokenRevoked) == [gone]
    scene.on(v.ActAsked(gone))
    assert len(written(scene, e.TokenRevoked)) == 1
    scene.on(proved(C, number=8, certificate=b"of c"))
    answer = scene.one(c.AdmissionAnswer)
    assert (answer.certificates, answer.final) == ((), True)
    assert "this token was revoked by" in answer.why
    scene.on(proved(number=9))
    assert scene.one(c.AdmissionAnswer).why == "", "it is admitted already"


def test_the_leader_logs_a_token_that_its_issuer_asks_for_and_no_other() -> None:
    scene = leading_securely(B)
    issued = e.TokenIssued(replace(TERMS, issuer=A))
    assert scene.core.led_term is not None
    for run_state in (scene.core.run_state, scene.core.led_term.head):
        run_state.spendings.peers[A] = spent(A)
    scene.hears(B, m.RequestAct(issued, force=False))
    scene.on(v.ActAsked(e.TokenIssued(replace(TERMS, issuer=B))))
    assert written(scene, e.TokenIssued) == [], "B is not A, and has no vote"
    for _ in range(2):
        scene.on(v.ActAsked(issued))
    assert written(scene, e.TokenIssued) == [issued]


def test_who_asks_while_its_token_is_taken_back_gets_what_the_log_says() -> None:
    scene = leading_securely(B)
    scene.on(v.ActAsked(e.TokenRevoked(TERMS.number, A, "")))
    scene.slow_disk = True
    scene.on(proved())
    assert [x.why for x in scene.all(c.AdmissionAnswer)] == [refusal(scene.core.run_state, spent())]
    assert written(scene, e.TokenSpent) == []


def test_a_refusal_is_believed_from_the_leader_alone() -> None:
    scene = follower(B, C)
    scene.on(v.Secured())
    votes(scene, B)
    scene.on(v.ActAsked(e.Revoked(C, B, "")))
    scene.hears(C, m.ActRefused(C, "no"))
    assert scene.core.certificates.refused == {}
    scene.hears(A, m.ActRefused(D, "no"))
    assert scene.core.certificates.refused == {}
    scene.hears(A, m.ActRefused(C, "no"))
    assert scene.core.certificates.refused == {C: "no"}
    scene.beat()
    said = scene.waits(2 * RETRY_S)
    assert not [x for x in said if isinstance(x, c.Send) and isinstance(x.message, m.RequestAct)]
    scene.on(v.ActAsked(e.Revoked(C, B, "again")))
    assert scene.core.certificates.refused == {}


def test_who_is_admitted_may_ask_any_peer_for_the_certificates_of_the_voters() -> None:
    """Simulated (seed 19): it came back when all peers that it trusted were gone."""
    scene = following()
    scene.reads(spent(D))
    scene.core.run_state.spendings.peers[A] = spent(A, certificate=b"of a")
    scene.on(v.AdmitAsked(7, ADMIT))
    assert scene.all(c.AdmissionAnswer) == [c.AdmissionAnswer(7, (b"of a",), "", final=False)]
    scene.on(v.AdmitAsked(8, replace(ADMIT, certificate=b"another")))
    assert scene.all(c.AdmissionAnswer) == []
    scene.reads(e.Revoked(D, A, "stolen"))
    scene.on(v.AdmitAsked(9, ADMIT))
    assert scene.all(c.AdmissionAnswer) == [], "the leader says why not"
