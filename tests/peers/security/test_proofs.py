"""A token is signed by its issuer, and its holder signs the key that it admits."""

from dataclasses import replace

import pytest

from peers.security.keys import Key
from peers.security.proofs import FORGED, admission_fault, is_genuine, new_token, proof_of
from protocols.messages.log_entries import TokenSpent
from protocols.state.tokens import decode_token, encode_token, renewed
from protocols.types.ids import PeerId

ROOT, OWN = Key.make(), Key.make()
PEER = PeerId("beta.00000002")
TOKEN = new_token(ROOT, root=ROOT.public, uses=2, hours=1.0, addresses=["a:1"], prints=[b"f" * 16])
SPENT = TokenSpent(
    TOKEN.terms,
    PEER,
    OWN.hex,
    OWN.own_certificate(PEER),
    TOKEN.signature,
    proof_of(TOKEN, OWN.public),
)


def test_the_word_that_a_person_hands_on_holds_all_of_it() -> None:
    token = decode_token(encode_token(TOKEN))
    assert token == TOKEN
    assert is_genuine(token.terms, token.signature, root=ROOT.hex, issuer_key=ROOT.hex)
    assert Key.of(token.secret).public == token.key


def test_the_secret_of_a_token_is_in_no_entry() -> None:
    assert TOKEN.secret not in (SPENT.signature, SPENT.proof, bytes.fromhex(SPENT.terms.key))
    assert admission_fault(SPENT, root=ROOT.hex, issuer_key=ROOT.hex) == ""


@pytest.mark.parametrize(
    "terms",
    [
        replace(TOKEN.terms, uses=3),
        replace(TOKEN.terms, expires=TOKEN.expires + 1),
        replace(TOKEN.terms, witness=True),
        replace(TOKEN.terms, issuer=PEER),
        replace(TOKEN.terms, number="0" * 32),
        replace(TOKEN.terms, key=OWN.hex),
    ],
)
def test_the_signature_covers_every_term(terms: object) -> None:
    forged = replace(SPENT, terms=terms)  # pyright: ignore[reportArgumentType]
    assert admission_fault(forged, root=ROOT.hex, issuer_key=ROOT.hex) == FORGED


def test_another_key_run_or_issuer_is_not_proved() -> None:
    other = Key.make()
    for key in (other.hex, OWN.hex):
        assert admission_fault(SPENT, root=ROOT.hex, issuer_key=key) == FORGED
    assert admission_fault(SPENT, root=other.hex, issuer_key=ROOT.hex) == FORGED
    mine = replace(SPENT, key=other.hex, certificate=other.own_certificate(PEER))
    assert admission_fault(mine, root=ROOT.hex, issuer_key=ROOT.hex) == FORGED
    assert admission_fault(replace(SPENT, peer=PeerId("x.1")), root=ROOT.hex, issuer_key=ROOT.hex)


def test_a_renewal_needs_the_key_alone() -> None:
    name = PeerId("beta.00000009")
    later = TokenSpent(renewed(SPENT), name, OWN.hex, OWN.own_certificate(name), b"", b"")
    assert later.renews
    assert admission_fault(later, root=ROOT.hex, issuer_key="") == ""
    other = replace(later, certificate=Key.make().own_certificate(name))
    assert admission_fault(other, root=ROOT.hex, issuer_key="")
