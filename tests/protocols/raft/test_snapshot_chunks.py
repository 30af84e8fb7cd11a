"""A snapshot arrives whole, in order, from one sender, or not at all."""

import pytest

from protocols.messages.peer import Install
from protocols.messages.persisted import Snapshot
from protocols.raft.snapshot_chunks import IncomingSnapshot, pieces
from protocols.types.errors import RemoteProtocolError
from protocols.types.limits import PIECE_BYTES_MAX, SNAPSHOT_BYTES_MAX
from tests.protocols.scenes import A, B

IMAGE = bytes(range(256)) * (PIECE_BYTES_MAX // 100)
"""It takes three pieces."""
WHOLE = Snapshot(7, 2, IMAGE)


def cut(snapshot: Snapshot = WHOLE, *, term: int = 3) -> list[Install]:
    return pieces(snapshot, run=1, term=term)


def test_pieces_together_are_the_image_and_each_fits_into_a_message() -> None:
    parts = cut()
    assert len(parts) == 3
    assert b"".join(part.piece for part in parts) == IMAGE
    assert max(len(part.piece) for part in parts) <= PIECE_BYTES_MAX
    assert {(x.run, x.term, x.index, x.index_term, x.total_bytes) for x in parts} == {
        (1, 3, 7, 2, len(IMAGE))
    }


def test_it_is_whole_with_the_last_piece_and_not_before() -> None:
    incoming = IncomingSnapshot()
    assert [incoming.add_piece(A, part) for part in cut()] == [None, None, WHOLE]
    assert incoming.add_piece(A, cut()[2]) is None, "it is not kept"


def test_what_was_lost_with_a_connection_comes_again_from_the_beginning() -> None:
    incoming, parts = IncomingSnapshot(), cut()
    incoming.add_piece(A, parts[0])
    assert incoming.add_piece(A, parts[2]) is None
    assert [incoming.add_piece(A, part) for part in parts] == [None, None, WHOLE]


def test_a_piece_that_comes_twice_is_taken_once() -> None:
    incoming, parts = IncomingSnapshot(), cut()
    order = (parts[0], parts[1], parts[1], parts[2])
    assert [incoming.add_piece(A, part) for part in order] == [None, None, None, WHOLE]


def test_pieces_of_two_snapshots_are_not_mixed() -> None:
    """They may have the same length: another sender, term or index is another snapshot."""
    for peer, others in (
        (B, cut()),
        (A, cut(term=4)),
        (A, cut(Snapshot(8, 2, bytes(len(IMAGE))))),
    ):
        incoming = IncomingSnapshot()
        incoming.add_piece(A, cut()[0])
        assert incoming.add_piece(peer, others[1]) is None
        assert incoming.add_piece(peer, others[2]) is None
        assert [incoming.add_piece(A, part) for part in cut()[1:]] == [None, WHOLE]


def test_a_snapshot_without_end_is_not_begun() -> None:
    incoming = IncomingSnapshot()
    endless = Install(1, 3, 7, 2, 0, SNAPSHOT_BYTES_MAX + 1, b"x")
    with pytest.raises(RemoteProtocolError, match=f"snapshot of {SNAPSHOT_BYTES_MAX + 1} bytes"):
        incoming.add_piece(A, endless)
