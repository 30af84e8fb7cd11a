"""Commands about the state of a cut: for its donors, and for the peer that gets the state."""

from protocols.messages.transfer import CellSpan
from protocols.types.frozen import record
from protocols.types.ids import PeerId, Version


@record
class CopyState:
    """Keep this version for the cut's receiver while rounds go on; answer StateCopied."""

    cut_index: int
    fragment: int
    round: int


@record
class HashState:
    """Hash the copy that CopyState made; answer StateHashed."""

    cut_index: int
    fragment: int


@record
class ServeCells:
    """Send the peer these cells of a copy, in this order, and no cells of an earlier request."""

    peer: PeerId
    cut_index: int
    cells: tuple[CellSpan, ...]


@record
class ReleaseCopy:
    """The peer needs the copy of this cut no longer: free it, and drop its cells that wait to be
    sent."""

    peer: PeerId
    cut_index: int


@record
class ExpectState:
    """The states of this cut come from these donors. Cells that an earlier cut brought are kept."""

    cut_index: int
    donors: tuple[PeerId, ...]
    versions: tuple[Version, ...]


@record
class ExpectCells:
    """Accept these cells from any donor, and no others; answer CellReceived for each."""

    cut_index: int
    fragment: int
    cells: tuple[CellSpan, ...]


@record
class KeepCell:
    """The cell that CellReceived reported is right: put it into its place in the state."""

    sender: PeerId
    cut_index: int
    fragment: int
    cell: int


@record
class CheckState:
    """All cells of the fragment have arrived: digest the state; answer StateReceived."""

    cut_index: int
    fragment: int


@record
class AdoptState:
    """The state that StateReceived reported is the cut's: it replaces the fragment's present
    state."""

    cut_index: int
    fragment: int
    round: int
