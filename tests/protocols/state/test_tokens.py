"""Join tokens as words, and how often the log spends them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.acts.orders import ADD, REMOVE
from protocols.acts.statements import act_statement
from protocols.messages import log_entries as e
from protocols.state import entry_validation, tokens, transitions
from protocols.state.entry_validation import cannot_act, refusal, snapshot_objection, wrong_role
from protocols.state.run_state import RunState
from protocols.state.tokens import (
    PRINT_BYTES,
    Token,
    claim,
    decode_token,
    encode_token,
    operator_of,
    renewed,
    revocation,
    statement,
)
from protocols.types.errors import ConfigError, LogError
from protocols.types.ids import PeerId, Version
from protocols.types.limits import NAME_MAX, TOKEN_CHARS_MAX
from tests.protocols.scenes import (
    SEALS,
    START,
    A,
    B,
    C,
    D,
    info,
    log_of,
    members_of,
    ordered,
    run,
    state_digest,
)

PUBLIC = bytes(range(32)).hex()
TOKEN = Token(
    ("10.1.2.3:4711", "[2001:db8::1]:4711"),
    (b"a" * PRINT_BYTES, b"b" * PRINT_BYTES),
    root=b"r" * 32,
    key=b"n" * 32,
    secret=b"s" * 32,
    uses=2,
    expires=1000,
    signature=b"g" * 64,
)
PLAIN = Token(("127.0.0.1:4711",))
BEGUN = (run(), e.Member(info(A)))


@pytest.mark.parametrize("token", [TOKEN, PLAIN], ids=["signed", "of a run in the clear"])
def test_a_token_is_one_word_and_comes_back(token: Token) -> None:
    word = encode_token(token)
    assert word.isascii()
    assert len(word.split()) == 1
    assert decode_token(word) == token


def test_the_longest_token_is_one_too() -> None:
    addresses = tuple(f"{n}" * (NAME_MAX - 2) + ":1" for n in range(4))
    prints = tuple(bytes([n]) * PRINT_BYTES for n in range(4))
    token = replace(TOKEN, addresses=addresses, prints=prints, issuer=PeerId("x" * NAME_MAX))
    assert len(encode_token(token)) <= TOKEN_CHARS_MAX
    assert decode_token(encode_token(token)) == token


def test_what_is_signed_covers_all_terms_and_the_run() -> None:
    terms = TOKEN.terms
    others = [
        replace(terms, number="0" * 32),
        replace(terms, key="0" * 64),
        replace(terms, uses=3),
        replace(terms, expires=1001),
        replace(terms, witness=True),
        replace(terms, issuer=B),
    ]
    said = {statement("aa", each) for each in (terms, *others)} | {statement("bb", terms)}
    assert len(said) == 8
    assert not any(each.startswith(claim("aa", terms.key)[:10]) for each in said)
    assert claim("aa", PUBLIC) != claim("bb", PUBLIC) != claim("aa", terms.key)


@pytest.mark.parametrize("length", range(len(encode_token(TOKEN))))
def test_a_part_of_a_token_is_none(length: int) -> None:
    with pytest.raises(ConfigError, match="no join token") as error:
        decode_token(encode_token(TOKEN)[:length])
    assert "\n" not in str(error.value)


@given(st.text(max_size=200))
def test_any_text_is_a_token_or_one_line_for_a_person(text: str) -> None:
    for word in (text, tokens.PREFIX + text):
        with pytest.raises(ConfigError) as error:
            decode_token(word)
        assert "lowcomm token" in str(error.value)
        assert "\n" not in str(error.value)


@given(st.binary(max_size=200))
def test_any_bytes_in_the_dress_of_a_token_are_none(payload: bytes) -> None:
    word = tokens.PREFIX + tokens.urlsafe_b64encode(payload).decode()
    with pytest.raises(ConfigError):
        decode_token(word)


@pytest.mark.parametrize("address", ["127.0.0.1:4711", "[::1]:4711", "host:1"])
def test_an_address_alone_is_refused_and_the_line_says_what_to_do(address: str) -> None:
    with pytest.raises(ConfigError, match=r"is an address: .*takes a token.*lowcomm token"):
        decode_token(address)


# Spending ---------------------------------------------------------------------------------------


def spent(peer: PeerId, token: Token = TOKEN, *, certificate: bytes = b"") -> e.TokenSpent:
    shown = certificate or peer.encode()
    return e.TokenSpent(token.terms, peer, PUBLIC, shown, token.signature, b"p" * 64)


def later(peer: PeerId, known: e.TokenSpent) -> e.TokenSpent:
    """Its node becomes this other peer."""
    return e.TokenSpent(renewed(known), peer, known.key, peer.encode(), b"", b"")


def test_a_token_is_spent_as_often_as_it_says_and_no_more() -> None:
    run_state = members_of(log_of(*BEGUN, spent(B)))
    assert run_state.spendings.uses_left(TOKEN.terms) == 1
    assert refusal(run_state, spent(C)) == ""
    transitions.apply(run_state, e.LogEntry(4, 1, spent(C)))
    assert "used up" in refusal(run_state, spent(D))
    with pytest.raises(LogError, match="used up"):
        transitions.apply(run_state, e.LogEntry(5, 1, spent(D)))
    assert refusal(run_state, spent(D, replace(TOKEN, key=b"m" * 32))) == ""


def test_nobody_is_admitted_as_another_peer() -> None:
    """Whoever has a token could vote in its place."""
    run_state = members_of(log_of(*BEGUN, spent(B), e.Witness(info(D))))
    for peer in (A, B, D):
        assert "another peer" in refusal(run_state, spent(peer, certificate=b"m"))
    assert run_state.spendings.has(spent(B))
    assert not run_state.spendings.has(spent(B, certificate=b"m"))


def test_a_restore_and_a_loss_give_no_use_back() -> None:
    cut = e.Cut(info(B, 1), (A,), (Version(0, 0, START),))
    restore = e.Restore(5, (Version(0, 0, state_digest(0)),), 0, 0, (), 0, False, 3)
    story = (*BEGUN, spent(B), cut, e.Member(info(B, 1)), e.Lost(B, "silent"), restore)
    run_state = members_of(log_of(*story))
    assert run_state.spendings.uses_left(TOKEN.terms) == 1
    assert run_state.spendings.has(spent(B))


def test_of_too_many_the_one_that_expires_first_is_forgotten_and_its_token_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokens, "SPENT_MAX", 2)
    run_state = members_of(log_of(*BEGUN))
    for index, (peer, expires) in enumerate(((B, 50), (C, 40), (D, 60))):
        late = replace(TOKEN, key=bytes([index]) * 32, expires=expires)
        transitions.apply(run_state, e.LogEntry(index + 3, 1, spent(peer, late)))
    assert list(run_state.spendings.peers) == [B, D]
    fresh = PeerId("e.00000005")
    assert "too old" in refusal(run_state, spent(fresh, replace(TOKEN, expires=40)))
    assert refusal(run_state, spent(fresh, replace(TOKEN, expires=41))) == ""
    other = RunState()
    transitions.become(other, transitions.image_of(run_state))
    assert other == run_state


def test_who_is_in_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would trust its certificate after a restart."""
    monkeypatch.setattr(tokens, "SPENT_MAX", 2)
    early = replace(TOKEN, key=b"e" * 32, expires=1)
    run_state = members_of(log_of(*BEGUN, spent(B, early), e.Witness(info(B))))
    for index, peer in enumerate((C, D)):
        late = replace(TOKEN, key=bytes([index]) * 32)
        transitions.apply(run_state, e.LogEntry(index + 5, 1, spent(peer, late)))
    assert list(run_state.spendings.peers) == [B, D]


# Issuers and roles ------------------------------------------------------------------------------


def test_a_voters_token_counts_while_it_votes_and_is_in() -> None:
    voters = replace(TOKEN, key=b"v" * 32, issuer=B)
    cut = e.Cut(info(B, 1), (A,), (Version(0, 0, START),))
    joined = (*BEGUN, spent(B), cut, e.Member(info(B, 1)))
    votes, ends = (
        e.Voter(B, votes=yes, why="", key=PUBLIC if yes else "") for yes in (True, False)
    )
    for story, counts in (
        (joined, False),
        ((*joined, votes), True),
        ((*joined, votes, ends), False),
        ((*joined, votes, ends, e.Revoked(B, A, "")), False),
        ((*joined, votes, e.Lost(B, "silent")), False),
    ):
        why = refusal(members_of(log_of(*story)), spent(C, voters))
        assert (why == "") == counts
        assert counts or "does not vote in the run any more" in why


def test_the_log_must_know_the_key_of_an_issuer() -> None:
    """The founder of this run votes, and no entry has its key."""
    run_state = members_of(log_of(*BEGUN))
    assert run_state.voters == (A,)
    assert "does not vote" in refusal(run_state, spent(C, replace(TOKEN, issuer=A)))


def test_an_operator_may_keep_the_tokens_to_itself() -> None:
    strict = replace(run(), voters_issue=False)
    run_state = members_of(log_of(strict, spent(A), e.Member(info(A))))
    assert refusal(run_state, spent(C)) == "", "the root key signed it"
    why = refusal(run_state, spent(C, replace(TOKEN, key=b"v" * 32, issuer=A)))
    assert "tokens of this run come from its operator only" in why


def test_in_an_encrypted_run_a_peer_takes_part_in_the_role_of_its_token_only() -> None:
    secure = replace(run(), root="aa" * 32)
    witness = replace(TOKEN, key=b"w" * 32, witness=True)
    run_state = members_of(log_of(secure, spent(A), e.Member(info(A)), spent(B, witness), spent(C)))
    cut = e.Cut(info(B, 1), (A,), (Version(0, 0, START),))
    for entry, why in (
        (cut, "makes b.* a member, but its token admitted it as a witness"),
        (replace(cut, info=info(D, 1)), "lets in d.*, which no token admitted"),
        (e.Witness(info(C)), "makes c.* a witness, but its token admitted it as a member"),
        (e.Witness(info(D)), "lets in d.*, which no token admitted"),
    ):
        with pytest.raises(LogError, match=why):
            transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, entry))
    transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, e.Witness(info(B))))
    assert wrong_role(run_state, C, witness=False) == ""
    plain = members_of(log_of(*BEGUN))
    assert wrong_role(plain, D, witness=True) == "", "nobody is admitted there"


OPERATOR = "0a" * 32
BY_OPERATOR = replace(TOKEN, key=b"o" * 32, issuer=PeerId(OPERATOR))
ADDED = (replace(run(), voters_issue=False, root="ab" * 32), spent(A), e.Member(info(A)))


def operator_act(what: str, number: int, lineage: int) -> e.Steered:
    act = e.Steered(what, OPERATOR, "", number, lineage, A, "alice", unix_s=1)
    return ordered(act, "ab" * 32)


def operated(*acts: str) -> RunState:
    """The state after these acts about the operator."""
    run_state = members_of(log_of(*ADDED))
    for number, what in enumerate(acts):
        act = operator_act(what, number + 1, run_state.lineage)
        transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, act))
    return run_state


def test_an_added_operators_token_counts_as_long_as_it_is_one() -> None:
    assert decode_token(encode_token(BY_OPERATOR)) == BY_OPERATOR
    assert (operator_of(BY_OPERATOR.issuer), operator_of(TOKEN.issuer)) == (
        OPERATOR,
        "",
    )
    assert operator_of(replace(TOKEN, issuer=B).terms.issuer) == ""
    why = refusal(operated(), spent(C, BY_OPERATOR))
    assert "the operator 0a0a0a0a issued this token, and is none of the run" in why
    run_state = operated(ADD)
    assert refusal(run_state, spent(C, BY_OPERATOR)) == "", "run.tokens is operators"
    assert "an operator's, which signed it" in cannot_act(
        run_state, e.TokenIssued(BY_OPERATOR.terms)
    )
    transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, spent(B, BY_OPERATOR)))
    act = operator_act(REMOVE, 2, run_state.lineage)
    transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, act))
    assert "and is none of the run" in refusal(run_state, spent(C, BY_OPERATOR))
    with pytest.raises(LogError, match="is none of the run"):
        transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, spent(C, BY_OPERATOR)))
    assert run_state.spendings.has(spent(B, BY_OPERATOR)), "its admission stays"
    assert wrong_role(run_state, B, witness=False) == ""
    assert run_state.orders.ever_operators == (OPERATOR,)
    other = RunState()
    transitions.become(other, transitions.image_of(run_state))
    assert other == run_state


def test_a_snapshot_admits_by_an_operator_only_while_it_was_one() -> None:
    run_state = operated(ADD)
    transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, spent(B, BY_OPERATOR)))
    act = operator_act(REMOVE, 2, run_state.lineage)
    transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, act))
    image, reader = transitions.image_of(run_state), RunState(signatures=SEALS)
    assert image.spent_indices == (2, 5)
    assert snapshot_objection(image, reader) == ""
    for indices in ((2, 3), (2, 7)):
        late = replace(image, spent_indices=indices)
        assert "by a token of no operator" in snapshot_objection(late, reader)
    assert "out of order" in snapshot_objection(replace(image, spent_indices=(2,)), reader)


# A node that becomes another peer ---------------------------------------------------------------


def test_an_admitted_node_may_become_one_other_peer_with_its_key() -> None:
    run_state = members_of(log_of(*BEGUN, spent(B)))
    renewal = later(C, spent(B))
    assert refusal(run_state, renewal) == ""
    for wrong in (
        later(C, spent(D)),
        replace(renewal, key="00" * 32),
        replace(renewal, terms=replace(renewal.terms, uses=9)),
        replace(renewal, terms=replace(renewal.terms, witness=True)),
    ):
        assert "is none of this run" in refusal(run_state, wrong)
    transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, renewal))
    assert "used up" in refusal(run_state, later(D, spent(B)))
    assert refusal(run_state, later(D, renewal)) == "", "its branch may be given up again"
    assert run_state.spendings.uses_left(TOKEN.terms) == 1


def test_a_revoked_peers_node_becomes_no_other_one() -> None:
    run_state = members_of(log_of(*BEGUN, spent(B), e.Revoked(B, A, "stolen")))
    assert "was revoked by" in refusal(run_state, later(C, spent(B)))


# Revocations ------------------------------------------------------------------------------------


def test_a_revocation_stays_whatever_comes() -> None:
    """After a Restore, and in a snapshot: nobody gets the certificate a second time."""
    gone = e.Revoked(B, A, "stolen")
    restore = e.Restore(5, (Version(0, 0, state_digest(0)),), 0, 0, (), 0, False, 3)
    run_state = members_of(log_of(*BEGUN, spent(B), gone, restore))
    other = RunState()
    transitions.become(other, transitions.image_of(run_state))
    for each in (run_state, other):
        assert each.spendings.revoked == {B: gone}
        assert "was revoked by" in refusal(each, spent(B, replace(TOKEN, key=b"m" * 32)))
    with pytest.raises(LogError, match="is revoked already"):
        transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, gone))
    with pytest.raises(LogError, match="only voter"):
        transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, e.Revoked(A, A, "")))


def test_a_token_that_was_revoked_lets_nobody_in_whatever_comes() -> None:
    """Nor is who came with it before shut out."""
    gone = e.TokenRevoked(TOKEN.number, A, "it was in a public chat")
    restore = e.Restore(5, (Version(0, 0, state_digest(0)),), 0, 0, (), 0, False, 3)
    run_state = members_of(log_of(*BEGUN, spent(B), gone, restore))
    other = RunState()
    transitions.become(other, transitions.image_of(run_state))
    why = f"this token was revoked by {A} (it was in a public chat): ask for another one"
    for each in (run_state, other):
        assert refusal(each, spent(C)).startswith(why)
        assert refusal(each, spent(C, replace(TOKEN, key=b"m" * 32))) == ""
        assert (each.spendings.has(spent(B)), each.spendings.revoked) == (True, {})
    for entry, text in ((gone, "is revoked already"), (spent(C), "was revoked by")):
        with pytest.raises(LogError, match=text):
            transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, entry))


def test_acts_have_their_places_in_the_log_also_in_a_snapshot() -> None:
    gone, token = e.Revoked(B, A, "stolen"), e.TokenRevoked("0f" * 16, A, "")
    run_state = members_of(log_of(*BEGUN, spent(B), token, gone))
    other = RunState()
    transitions.become(other, transitions.image_of(run_state))
    for each in (run_state, other):
        assert sorted(each.spendings.acts, key=lambda act: act[0]) == [(4, token), (5, gone)]


def test_an_entry_without_the_signature_that_it_needs_is_not_applied() -> None:
    closed = (replace(BEGUN[0], voters_revoke=False), *BEGUN[1:], spent(B))
    for gone in (e.Revoked(B, A, ""), e.TokenRevoked("0f" * 16, A, "")):
        run_state = members_of(log_of(*closed))
        with pytest.raises(LogError, match="its operator only"):
            transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, gone))
        forged = replace(ordered(gone), why="another reason")
        with pytest.raises(LogError, match="has not signed"):
            transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, forged))
        copied = transitions.copy(run_state)
        transitions.apply(copied, e.LogEntry(run_state.index + 1, 1, ordered(gone)))


def test_a_signed_revocation_is_of_one_subject_of_one_run() -> None:
    gone = e.Revoked(B, A, "stolen")
    said = act_statement("aa" * 32, gone)
    assert act_statement("aa" * 32, replace(gone, by=C)) == said, "any peer hands it on"
    others = (replace(gone, peer=C), replace(gone, why=""), e.TokenRevoked(B, A, "stolen"))
    assert said not in {act_statement("aa" * 32, other) for other in others}
    assert said != act_statement("bb" * 32, gone)
    assert "revoked by the root key, at" in revocation(ordered(gone))


def of_voter(issuer: PeerId, key: bytes = b"i" * 32) -> Token:
    return replace(TOKEN, issuer=issuer, key=key)


FORMER = (
    *(run(), spent(A, replace(TOKEN, key=b"f" * 32)), e.Member(info(A))),
    *(spent(B), e.Cut(info(B, 1), (A,), (Version(0, 0, START),))),
    *(e.Member(info(B, 1)), e.Voter(B, votes=True, why="", key=PUBLIC)),
)
"""B is admitted, and votes."""
GONE = e.Lost(B, "silent")


def test_a_token_that_the_log_has_counts_when_its_issuer_votes_no_more() -> None:
    token = of_voter(B)
    issued, other = e.TokenIssued(token.terms), of_voter(B, b"o" * 32)
    run_state = members_of(log_of(*FORMER, issued, GONE))
    again = RunState()
    transitions.become(again, transitions.image_of(run_state))
    for each in (run_state, again):
        assert refusal(each, spent(C, token)) == ""
        assert "does not vote" in refusal(each, spent(C, other)), "made when it had no vote"
        assert "does not vote" in refusal(each, spent(C, replace(token, uses=9)))
        assert "does not vote" in cannot_act(each, e.TokenIssued(other.terms))
        assert "in the log already" in cannot_act(each, issued)
    transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, e.Revoked(B, A, "stolen")))
    assert "does not vote" in refusal(run_state, spent(C, token)), "its issuer is revoked"


def test_a_token_gets_into_the_log_only_if_it_counts_by_itself() -> None:
    token = of_voter(B)
    run_state = members_of(log_of(*FORMER, e.TokenRevoked(token.number, A, "")))
    assert "was revoked by" in cannot_act(run_state, e.TokenIssued(token.terms))
    assert "root key" in cannot_act(run_state, e.TokenIssued(TOKEN.terms))
    assert "does not vote" in cannot_act(run_state, e.TokenIssued(of_voter(C, b"c" * 32).terms))
    closed = (replace(run(), voters_issue=False), *FORMER[1:])
    assert "operator only" in cannot_act(members_of(log_of(*closed)), e.TokenIssued(token.terms))
    with pytest.raises(LogError, match="logs a token of"):
        transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, e.TokenIssued(token.terms)))


def test_of_many_tokens_those_that_expire_first_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of the issuer of the newest one: a voter cannot displace the tokens of others."""

    def terms(issuer: PeerId, number: int) -> e.TokenTerms:
        token = of_voter(issuer, bytes([number]) * 32)
        return replace(token, expires=1000 - number).terms

    monkeypatch.setattr(tokens, "ISSUED_MAX", 2)
    of_a, of_b = terms(A, 9), [terms(B, number) for number in range(3)]
    run_state = members_of(log_of(*FORMER, *map(e.TokenIssued, [of_a, *of_b])))
    assert [x.terms for x in run_state.spendings.issued.values()] == [of_a, *of_b[:2]]
    monkeypatch.setattr(tokens, "SPENT_MAX", 2)
    run_state = members_of(log_of(*FORMER, *map(e.TokenIssued, [of_a, *of_b[:2]])))
    assert [x.terms for x in run_state.spendings.issued.values()] == of_b[:2]


def test_no_more_are_revoked_than_a_snapshot_can_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_validation, "SPENT_MAX", 1)
    gone = e.TokenRevoked("0f" * 16, A, "")
    run_state = members_of(log_of(*BEGUN, gone))
    assert "begin another run" in cannot_act(run_state, replace(gone, token="1e" * 16))
    assert cannot_act(run_state, e.Revoked(B, A, "")) == ""
