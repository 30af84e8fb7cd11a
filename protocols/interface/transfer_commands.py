"""What the shell has to do about the state of a cut: as a donor, and as who gets it."""

from protocols.messages.transfer import CellSpan
from protocols.types.frozen import record
from protocols.types.ids import PeerId, Version


@record
class CopyState:
    """Keep this version as it is now, for whoever the cut is for, whatever rounds do meanwhile;
    answer StateCopied."""

    cut_index: int
    fragment: int
    round: int


@record
class HashState:
    """Hash such a copy; answer StateHashed."""

    cut_index: int
    fragment: int


@record
class ServeCells:
    """Send the peer these cells of a copy, in this order, and none that it wanted before."""

    peer: PeerId
    cut_index: int
    cells: tuple[CellSpan, ...]


@record
class ReleaseCopy:
    """The peer needs the copy of this cut no more: drop it, and what waits to be sent of it."""

    peer: PeerId
    cut_index: int


@record
class ExpectState:
    """The states of this cut come from these donors. What cells an earlier cut brought stay."""

    cut_index: int
    donors: tuple[PeerId, ...]
    versions: tuple[Version, ...]


@record
class ExpectCells:
    """Take these cells from any donor, and no others; answer CellReceived for each."""

    cut_index: int
    fragment: int
    cells: tuple[CellSpan, ...]


@record
class KeepCell:
    """What CellReceived reported belongs to the cut: put it where it belongs."""

    sender: PeerId
    cut_index: int
    fragment: int
    cell: int


@record
class CheckState:
    """All cells of the fragment are here; answer StateReceived."""

    cut_index: int
    fragment: int


@record
class AdoptState:
    """What StateReceived reported is the cut's: it replaces our state of the fragment."""

    cut_index: int
    fragment: int
    round: int
