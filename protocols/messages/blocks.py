"""Messages with which peers check the results of parts: blocks of contributions, and complaints.

Must NOT decide which blocks are compared, nor what follows from a difference.
"""

from protocols.types.frozen import record
from protocols.types.ids import PartBlocks, PeerId, Stamp


@record
class BlocksWanted:
    """Asks for the bytes of these blocks of one contribution, in the order of the sample: the
    contributor for its own ones, or the owner of the parts for those that it received."""

    stamp: Stamp
    contributor: PeerId
    sample: tuple[PartBlocks, ...]


@record
class Blocks:
    """A piece of the answer to BlocksWanted. If the run gathers, the answer is a digest of the
    blocks of each part."""

    stamp: Stamp
    contributor: PeerId
    offset_bytes: int
    """The piece's first byte in the whole answer."""
    total_bytes: int
    """Bytes of the whole answer."""
    piece: bytes


@record
class WrongResult:
    """To the leader: this part's result does not follow from the contributions, and one of these
    peers is the reason: the part's owner, or a contributor that sent other bytes to the owner than
    to me."""

    stamp: Stamp
    part: int
    peers: tuple[PeerId, ...]
