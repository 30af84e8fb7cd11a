"""A snapshot of the log in pieces that fit into messages, and whole again.

Must NOT look into its image, nor decide who needs one (replication.py).
"""

from dataclasses import dataclass, field

from protocols.messages.peer import Install
from protocols.messages.persisted import Snapshot
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import PeerId
from protocols.types.limits import PIECE_BYTES_MAX, SNAPSHOT_BYTES_MAX


def pieces(snapshot: Snapshot, run: int, term: int) -> list[Install]:
    """In order; the receiver takes them in no other."""
    total = len(snapshot.image)
    return [
        Install(
            run=run,
            term=term,
            index=snapshot.index,
            index_term=snapshot.term,
            offset_bytes=offset,
            total_bytes=total,
            piece=snapshot.image[offset : offset + PIECE_BYTES_MAX],
        )
        for offset in range(0, total, PIECE_BYTES_MAX)
    ]


@dataclass(slots=True)
class Incoming:
    """The snapshot that is on its way to us."""

    _of: tuple[PeerId, int, int] | None = None
    """(sender, term, index)."""
    _image: bytearray = field(default_factory=bytearray)

    def take(self, peer: PeerId, piece: Install) -> Snapshot | None:
        """The whole snapshot with its last piece. Raises RemoteProtocolError for too much."""
        if piece.total_bytes > SNAPSHOT_BYTES_MAX:
            raise RemoteProtocolError(peer, f"sends a snapshot of {piece.total_bytes} bytes")
        key = (peer, piece.term, piece.index)
        if piece.offset_bytes == 0:
            self._of, self._image = key, bytearray()
        if key != self._of or piece.offset_bytes != len(self._image):
            return None  # Its beginning was lost with a connection: it comes again.
        self._image += piece.piece
        if len(self._image) < piece.total_bytes:
            return None
        image, self._of, self._image = bytes(self._image), None, bytearray()
        return Snapshot(piece.index, piece.index_term, image)
