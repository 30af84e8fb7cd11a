"""Messages about the state of a cut: its hash tree, and requests for cells.

A state is divided into cells of 1 MiB. The digest of a cell is a leaf of the tree, and the root is
the digest of all leaves in order. The cells themselves are chunks (peer.py).
"""

from protocols.types.frozen import record
from protocols.types.ids import PeerId


@record
class CellSpan:
    """Cells [first, stop) of a fragment's state."""

    fragment: int
    first: int
    stop: int


@record
class FetchState:
    """To a donor of the sender's cut: send me these cells, in this order, and no cells of earlier
    requests. Without cells: I have the whole state."""

    index: int
    """Log index of the Cut."""
    cells: tuple[CellSpan, ...]


@record
class NoState:
    """From a donor: I do not hold this state any more, or never did; ask other donors."""

    index: int


@record
class FetchLeaves:
    """To a donor of the sender's cut: send me leaves of a fragment's tree, from this one on."""

    index: int
    fragment: int
    first: int


@record
class Leaves:
    """Answer to FetchLeaves: as many leaves as fit into one message."""

    index: int
    fragment: int
    first: int
    total: int
    """Number of leaves of the whole tree."""
    digests: bytes
    """32 bytes each."""


@record
class CutRoots:
    """To the leader, from a donor: the state of this cut has these roots."""

    peer: PeerId
    """The receiver of the cut."""
    index: int
    """Log index of the Cut."""
    roots: tuple[str, ...]
    """One root for each fragment; empty if the donor cannot give the state, so that no peer waits
    for it."""
