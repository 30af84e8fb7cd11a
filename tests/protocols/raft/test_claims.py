"""How far a peer believes what it cannot check."""

import pytest

from protocols.raft.claims import DISTRUST_S, DOUBTS_MAX, PAUSE_MAX_S, PAUSE_MIN_S, Claims
from protocols.raft.mandate import NoProofs
from protocols.types.errors import RemoteProtocolError
from tests.protocols.scenes import A, B


def believed(claims: Claims, *, until_s: float, every_s: float = 0.5) -> list[float]:
    moments = [number * every_s for number in range(int(until_s / every_s))]
    return [now for now in moments if claims.believes(now)]


def test_claims_are_believed_more_and_more_rarely() -> None:
    assert believed(Claims(NoProofs()), until_s=40.0) == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0]


def test_after_a_quiet_time_the_next_claim_counts_at_once() -> None:
    claims = Claims(NoProofs())
    believed(claims, until_s=40.0)
    later = 40.0 + 2 * PAUSE_MAX_S
    assert claims.believes(later)
    assert not claims.believes(later + PAUSE_MIN_S / 2)
    assert claims.believes(later + PAUSE_MIN_S)


def test_of_a_peer_that_proves_nothing_only_some_messages_are_borne() -> None:
    claims = Claims(NoProofs())
    for _ in range(DOUBTS_MAX):
        claims.doubt(A, 7)
    with pytest.raises(RemoteProtocolError, match="claims to lead term 7 and shows no votes"):
        claims.doubt(A, 7)
    claims.doubt(B, 7)
    claims.proved(A)
    claims.doubt(A, 7)


def test_a_leader_that_lied_gets_no_vote_for_some_time() -> None:
    claims = Claims(NoProofs())
    claims.lied(A, 5.0)
    assert claims.distrusts(A, 5.0 + DISTRUST_S / 2)
    assert not claims.distrusts(A, 5.0 + DISTRUST_S)
    assert not claims.distrusts(B, 5.0)
