"""How a peer finds its leader."""

from protocols.commands import Connect, Disconnect
from protocols.ids import PeerId
from protocols.seeking import RETRY_S, Seeking
from tests.protocols.scenes import A, B, C, identity


def test_who_leads_seeks_nobody() -> None:
    seeking = Seeking(identity(A))
    assert (seeking.leader, seeking.address) == (A, "a:1")
    assert seeking.connected(B, "b:1", "b:1", 0.0) == []
    assert seeking.leader == A


def test_a_peer_says_of_itself_that_it_leads() -> None:
    seeking = Seeking(None)
    assert seeking.connected(A, "a:1", "a:1", 0.0) == []
    assert (seeking.leader, seeking.address) == (A, "a:1")
    assert seeking.connected(B, "b:1", "b:1", 0.0) == [], "the first one counts"
    assert seeking.leader == A


def test_a_member_says_where_the_leader_is() -> None:
    seeking = Seeking(None)
    assert seeking.connected(B, "b:1", "a:1", 0.0) == [Connect(PeerId(""), "a:1")]
    assert seeking.leader is None


def test_who_does_not_know_either_is_asked_again_on_a_new_connection() -> None:
    """Else a peer that joins at one which has just started would wait for ever."""
    seeking = Seeking(None)
    assert seeking.connected(B, "b:1", "", 5.0) == []
    assert seeking.deadline == 5.0 + RETRY_S
    assert seeking.ask_again(5.0) == []
    assert seeking.ask_again(5.0 + RETRY_S) == [
        Disconnect(B, "it did not know the leader"),
        Connect(PeerId(""), "b:1"),
    ]
    assert seeking.deadline == float("inf")
    assert seeking.ask_again(99.0) == []


def test_nobody_is_asked_again_once_the_leader_is_known() -> None:
    seeking = Seeking(None)
    seeking.connected(B, "b:1", "", 0.0)
    seeking.connected(C, "c:1", "", 0.0)
    seeking.connected(A, "a:1", "a:1", 0.5)
    assert seeking.deadline == float("inf")
    assert seeking.ask_again(99.0) == []
