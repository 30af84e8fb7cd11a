"""Divides a snapshot into pieces that fit into messages, and joins them again.

Must NOT look into its image, nor decide which peer needs one (replication.py).
"""

from dataclasses import dataclass, field

from protocols.messages.peer import Install
from protocols.messages.persisted import Snapshot
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import PeerId
from protocols.types.limits import PIECE_BYTES_MAX, SNAPSHOT_BYTES_MAX


def pieces(snapshot: Snapshot, run: int, term: int) -> list[Install]:
    """The pieces of a snapshot, in the order in which the receiver accepts them."""
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
class IncomingSnapshot:
    """The snapshot that this peer is receiving."""

    _of: tuple[PeerId, int, int] | None = None
    """(sender, term, index)."""
    _image: bytearray = field(default_factory=bytearray)

    def add_piece(self, peer: PeerId, piece: Install) -> Snapshot | None:
        """Add a piece; returns the snapshot with its last one. Raises RemoteProtocolError if it is
        too large."""
        if piece.total_bytes > SNAPSHOT_BYTES_MAX:
            raise RemoteProtocolError(peer, f"sends a snapshot of {piece.total_bytes} bytes")
        key = (peer, piece.term, piece.index)
        if piece.offset_bytes == 0:
            self._of, self._image = key, bytearray()
        if key != self._of or piece.offset_bytes != len(self._image):
            return None  # The first pieces were lost with a connection: the sender begins again.
        self._image += piece.piece
        if len(self._image) < piece.total_bytes:
            return None
        image, self._of, self._image = bytes(self._image), None, bytearray()
        return Snapshot(piece.index, piece.index_term, image)
