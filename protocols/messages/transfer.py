"""What travels about the state of a cut: its tree, and who wants which cells of whom.

A state is cut into cells of 1 MiB, the SHA-256 of each is a leaf, and the root is the SHA-256 of
all leaves side by side. The cells themselves are chunks (peer.py).
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
    """To a donor of my cut: send me these cells, in this order, and none that I asked for before.
    None: I have the whole state."""

    index: int
    """Log index of the Cut."""
    cells: tuple[CellSpan, ...]


@record
class NoState:
    """From a donor: I went on meanwhile, or never held it; others must give it."""

    index: int


@record
class FetchLeaves:
    """To a donor of my cut: send me the leaves of a fragment's tree, from this one on."""

    index: int
    fragment: int
    first: int


@record
class Leaves:
    """Answer to FetchLeaves: as many as one message holds."""

    index: int
    fragment: int
    first: int
    total: int
    """Leaves of the whole tree."""
    digests: bytes
    """32 bytes each."""


@record
class CutRoots:
    """To the leader, from a donor: the state of this cut has these trees."""

    peer: PeerId
    """Whose cut it is."""
    index: int
    """Its place in the log."""
    roots: tuple[str, ...]
    """One per fragment; none of a state that I cannot give: nobody need wait for me."""
