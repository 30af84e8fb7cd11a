"""Join tokens as words, and how often the log spends them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.messages import log_entries as e
from protocols.state import entry_validation, tokens, transitions
from protocols.state.entry_validation import cannot_revoke, refusal
from protocols.state.run_state import RunState
from protocols.state.tokens import Token, decode_token, encode_token, spending
from protocols.types.errors import ConfigError, LogError
from protocols.types.ids import PeerId, Version
from tests.protocols.scenes import START, A, B, C, D, info, log_of, members_of, run, state_digest

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
PUBLIC = bytes(range(32))
TOKEN = Token(("10.1.2.3:4711", "[2001:db8::1]:4711"), b"a" * 32, b"n" * 16, 2, 1000).sealed(KEY)
PLAIN = Token(("127.0.0.1:4711",))
BEGUN = (run(), e.Member(info(A)))


@pytest.mark.parametrize("token", [TOKEN, PLAIN], ids=["sealed", "of a run in the clear"])
def test_a_token_is_one_word_and_comes_back(token: Token) -> None:
    word = encode_token(token)
    assert word.isascii()
    assert len(word.split()) == 1
    assert decode_token(word) == token


def test_only_the_holder_of_the_key_can_seal_what_it_says() -> None:
    assert TOKEN.is_sealed(KEY)
    assert not TOKEN.is_sealed(OTHER_KEY)
    for forged in (
        replace(TOKEN, uses=3),
        replace(TOKEN, expires=1001),
        replace(TOKEN, number=b"m" * 16),
        replace(TOKEN, addresses=("10.6.6.6:4711",)),
        replace(TOKEN, authority=b"b" * 32),
        replace(TOKEN, seal=b""),
    ):
        assert not forged.is_sealed(KEY)


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


def spent(peer: PeerId, token: Token = TOKEN, *, key: bytes = PUBLIC) -> e.TokenSpent:
    return spending(token, peer, key)


def test_a_token_is_spent_as_often_as_it_says_and_no_more() -> None:
    run_state = members_of(log_of(*BEGUN, spent(B)))
    assert run_state.spendings.uses_left(spent(C)) == 1
    assert refusal(run_state, spent(C)) == ""
    transitions.apply(run_state, e.LogEntry(4, 1, spent(C)))
    assert "used up" in refusal(run_state, spent(D))
    with pytest.raises(LogError, match="used up"):
        transitions.apply(run_state, e.LogEntry(5, 1, spent(D)))
    assert refusal(run_state, spent(D, replace(TOKEN, number=b"m" * 16))) == ""


def test_nobody_gets_the_certificate_of_another_peer() -> None:
    """Whoever has a token could vote in its place."""
    run_state = members_of(log_of(*BEGUN, spent(B), e.Witness(info(D))))
    for peer in (A, B, D):
        assert "another peer" in refusal(run_state, spent(peer, key=b"m" * 32))
    assert run_state.spendings.has(spent(B))
    assert not run_state.spendings.has(spent(B, key=b"m" * 32))


def test_a_restore_and_a_loss_give_no_use_back() -> None:
    cut = e.Cut(info(B, 1), (A,), (Version(0, 0, START),))
    restore = e.Restore(5, (Version(0, 0, state_digest(0)),), 0, 0, (), 0, False, 3)
    story = (*BEGUN, spent(B), cut, e.Member(info(B, 1)), e.Lost(B, "silent"), restore)
    run_state = members_of(log_of(*story))
    assert run_state.spendings.uses_left(spent(C)) == 1
    assert run_state.spendings.has(spent(B))


def test_of_too_many_the_one_that_expires_first_is_forgotten_and_its_token_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokens, "SPENT_MAX", 2)
    run_state = members_of(log_of(*BEGUN))
    for index, (peer, expires) in enumerate(((B, 50), (C, 40), (D, 60))):
        late = replace(TOKEN, number=bytes([index]) * 16, expires=expires)
        transitions.apply(run_state, e.LogEntry(index + 3, 1, spent(peer, late)))
    assert list(run_state.spendings.peers) == [B, D]
    fresh = PeerId("e.00000005")
    assert "too old" in refusal(run_state, spent(fresh, replace(TOKEN, expires=40)))
    assert refusal(run_state, spent(fresh, replace(TOKEN, expires=41))) == ""
    other = RunState()
    other.become(run_state.image())
    assert other == run_state


def test_a_revocation_stays_whatever_comes() -> None:
    """After a Restore, and in a snapshot: nobody gets the certificate a second time."""
    gone = e.Revoked(B, A, "stolen")
    restore = e.Restore(5, (Version(0, 0, state_digest(0)),), 0, 0, (), 0, False, 3)
    run_state = members_of(log_of(*BEGUN, spent(B), gone, restore))
    other = RunState()
    other.become(run_state.image())
    for each in (run_state, other):
        assert each.spendings.revoked == {B: gone}
        assert "was revoked by" in refusal(each, spent(B, replace(TOKEN, number=b"m" * 16)))
    with pytest.raises(LogError, match="is revoked already"):
        transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, gone))
    with pytest.raises(LogError, match="only voter"):
        transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, e.Revoked(A, A, "")))


def test_a_token_that_was_revoked_lets_nobody_in_whatever_comes() -> None:
    """Nor is who came with it before shut out."""
    gone = e.TokenRevoked(spent(B).token, A, "it was in a public chat")
    restore = e.Restore(5, (Version(0, 0, state_digest(0)),), 0, 0, (), 0, False, 3)
    run_state = members_of(log_of(*BEGUN, spent(B), gone, restore))
    other = RunState()
    other.become(run_state.image())
    why = f"this token was revoked by {A} (it was in a public chat): ask for another one"
    for each in (run_state, other):
        assert refusal(each, spent(C)).startswith(why)
        assert refusal(each, spent(C, replace(TOKEN, number=b"m" * 16))) == ""
        assert (each.spendings.has(spent(B)), each.spendings.revoked) == (True, {})
    for entry, text in ((gone, "is revoked already"), (spent(C), "was revoked by")):
        with pytest.raises(LogError, match=text):
            transitions.apply(run_state, e.LogEntry(run_state.index + 1, 1, entry))


def test_no_more_are_revoked_than_a_snapshot_can_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_validation, "SPENT_MAX", 1)
    gone = e.TokenRevoked("0f" * 16, A, "")
    run_state = members_of(log_of(*BEGUN, gone))
    assert "begin another run" in cannot_revoke(run_state, replace(gone, token="1e" * 16))
    assert cannot_revoke(run_state, e.Revoked(B, A, "")) == ""
