"""Who is let in, and what the others are told."""

from dataclasses import replace

import pytest

from protocols.links.handshake import Identity, refusal
from protocols.messages.log_entries import Revoked
from protocols.messages.peer import Hello
from protocols.state.run_state import RunState
from protocols.types.ids import PROTOCOL_VERSION, PeerId, PeerInfo
from protocols.types.limits import PEERS_MAX

ME = Identity(peer=PeerId("a.1"), name="a", incarnation=1, address="h:1")
HELLO = Hello(PROTOCOL_VERSION, 0, PeerId("b.2"), "b", 2, "h:2", "")


def answer(hello: Hello, *, run: int = 7, life: int = 0) -> str:
    run_state = RunState()
    run_state.members[PeerId("b.2")] = PeerInfo(PeerId("b.2"), "b", 2, "h:2", 1)
    return refusal(hello, me=ME, run=run, run_state=run_state, life=life)


@pytest.mark.parametrize(
    "hello",
    [HELLO, replace(HELLO, run=7), replace(HELLO, incarnation=3)],
    ids=["new", "run", "again"],
)
def test_a_joiner_and_a_member_are_let_in(hello: Hello) -> None:
    assert answer(hello) == ""


@pytest.mark.parametrize(
    ("hello", "says"),
    [
        (replace(HELLO, protocol=PROTOCOL_VERSION + 1), "install the same lowcomm version"),
        (replace(HELLO, run=8), "belongs to another run"),
        (replace(HELLO, peer=ME.peer), "runs already"),
        (replace(HELLO, incarnation=1), "its earlier incarnation"),
    ],
)
def test_a_refusal_says_why_and_what_to_do(hello: Hello, says: str) -> None:
    assert says in answer(hello)
    assert "\n" not in answer(hello)


def test_an_earlier_life_does_not_displace_the_one_that_is_connected() -> None:
    """Seed 7002154: the log knew neither life yet, and the connection that came last counted."""
    later = replace(HELLO, incarnation=4)
    assert "its earlier incarnation" in answer(replace(HELLO, incarnation=3), life=4)
    assert answer(later, life=4) == answer(later, life=3) == ""


def test_before_we_know_our_run_any_run_may_come() -> None:
    assert answer(replace(HELLO, run=8), run=0) == ""


def test_no_more_peers_are_let_in_than_a_message_can_name() -> None:
    run_state = RunState()
    for slot in range(PEERS_MAX):
        peer = PeerId(f"p{slot}.1")
        run_state.members[peer] = PeerInfo(peer, f"p{slot}", 1, "h:1", slot)
    assert "peers already" in refusal(HELLO, me=ME, run=7, run_state=run_state, life=0)
    known = replace(HELLO, peer=PeerId("p7.1"))
    assert refusal(known, me=ME, run=7, run_state=run_state, life=0) == ""


def test_we_are_in_the_log_as_we_say() -> None:
    assert ME.info(3) == PeerInfo(ME.peer, "a", 1, "h:1", 3)


def test_whose_certificate_was_revoked_is_not_let_in_again() -> None:
    run_state = RunState()
    run_state.spendings.apply(Revoked(HELLO.peer, ME.peer, "stolen"))
    said = refusal(HELLO, me=ME, run=7, run_state=run_state, life=0)
    assert said.startswith("this node's certificate was revoked by a.1 (stolen): ask for")
