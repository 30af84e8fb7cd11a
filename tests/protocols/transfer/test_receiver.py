"""Whom a joiner asks for which cells; what it believes; and when it asks somebody else."""

from dataclasses import dataclass, field
from hashlib import sha256

from protocols.interface.commands import (
    CheckState,
    Command,
    ExpectCells,
    KeepCell,
    Observation,
    Send,
)
from protocols.interface.events import CellReceived
from protocols.messages import log_entries as e
from protocols.messages.peer import FetchLeaves, FetchState, Leaves
from protocols.messages.transfer import CellSpan
from protocols.transfer.receiver import (
    CELLS_MAX,
    LIES,
    STALL_S,
    WINDOW_CELLS,
    StateReceiver,
    spans_of,
)
from protocols.types.ids import PeerId, Version
from protocols.types.limits import LEAF_BYTES, LEAVES_MAX
from tests.protocols.scenes import A, B, C, D, info, state_digest

VERSIONS = (Version(0, 3, state_digest(3)),)
CUT = e.Cut(info(B, 1), (A, C, D), VERSIONS)
CELLS = 60
PATIENCE_S = 60.0


def leaf(cell: int, state: int = 3) -> bytes:
    return sha256(f"{state} {cell}".encode()).digest()


def tree(cells: int = CELLS, state: int = 3) -> bytes:
    return b"".join(leaf(cell, state) for cell in range(cells))


@dataclass
class Joiner:
    """Its intake, and what it is connected with."""

    state_receiver: StateReceiver
    up: frozenset[PeerId] = frozenset((A, C, D))
    now: float = 0.0
    said: list[Command] = field(default_factory=list[Command])

    def does(self) -> list[Command]:
        self.said = self.state_receiver.advance(self.now, self.up)
        return self.said

    def wants(self) -> dict[PeerId, list[int]]:
        """What it asks whom for, from now on."""
        found: dict[PeerId, list[int]] = {}
        for command in self.does():
            if isinstance(command, Send) and isinstance(command.message, FetchState):
                spans = command.message.cells
                found[command.peer] = [x for s in spans for x in range(s.first, s.stop)]
        return found

    def gets(self, donor: PeerId, *cells: int, false: bool = False) -> list[Command]:
        """These arrive."""
        said: list[Command] = []
        for cell in cells:
            event = CellReceived(donor, 7, 0, cell, leaf(cell, 4 if false else 3))
            said += self.state_receiver.cell_received(event, self.now)
        return said


def joining(
    cells: int = CELLS, *, held: dict[int, dict[int, bytes]] | None = None, cut: e.Cut = CUT
) -> Joiner:
    """It has the tree, and asked nobody for a cell yet."""
    leaves = tree(cells)
    state_receiver = StateReceiver(
        7, cut, held if held is not None else {}, now=0.0, patience_s=PATIENCE_S
    )
    joiner = Joiner(state_receiver)
    assert joiner.does() == [], "the log has not said the roots"
    state_receiver.roots = (sha256(leaves).hexdigest(),)
    assert joiner.does() == [Send(A, FetchLeaves(7, 0, 0))]
    joiner.said = state_receiver.leaves_received(A, Leaves(7, 0, 0, cells, leaves), 0.0)
    return joiner


# The tree -------------------------------------------------------------------------------------


def test_once_the_tree_is_here_its_cells_may_come() -> None:
    assert joining().said == [ExpectCells(7, 0, (CellSpan(0, 0, CELLS),))]


def test_a_tree_comes_in_pages_from_one_donor() -> None:
    cells = LEAVES_MAX + 3
    leaves, cut = tree(cells), CUT
    joiner = Joiner(StateReceiver(7, cut, {}, now=0.0, patience_s=PATIENCE_S))
    joiner.state_receiver.roots = (sha256(leaves).hexdigest(),)
    joiner.does()
    middle = LEAF_BYTES * LEAVES_MAX
    first, second = (Leaves(7, 0, 0, cells, leaves[:middle]), leaves[middle:])
    rest = Leaves(7, 0, LEAVES_MAX, cells, second)
    assert joiner.state_receiver.leaves_received(C, first, 0.0) == [], "C was not asked"
    assert joiner.state_receiver.leaves_received(A, rest, 0.0) == [], "nor was this page"
    said = joiner.state_receiver.leaves_received(A, first, 0.0)
    assert said == [Send(A, FetchLeaves(7, 0, LEAVES_MAX))]
    said = joiner.state_receiver.leaves_received(A, rest, 0.0)
    assert said == [ExpectCells(7, 0, (CellSpan(0, 0, cells),))]


def test_who_sends_another_tree_is_named_and_another_one_is_asked() -> None:
    joiner = Joiner(StateReceiver(7, CUT, {}, now=0.0, patience_s=PATIENCE_S))
    joiner.state_receiver.roots = (sha256(tree()).hexdigest(),)
    joiner.does()
    (note,) = joiner.state_receiver.leaves_received(A, Leaves(7, 0, 0, CELLS, tree(state=4)), 0.0)
    assert isinstance(note, Observation)
    assert A in note.text
    assert joiner.does() == [Send(C, FetchLeaves(7, 0, 0))]
    assert joiner.state_receiver.liar == A


def test_an_impossible_tree_costs_no_memory() -> None:
    for total, digests in ((CELLS_MAX + 1, tree()), (CELLS, tree(3)), (0, tree(1))):
        joiner = Joiner(StateReceiver(7, CUT, {}, now=0.0, patience_s=PATIENCE_S))
        joiner.state_receiver.roots = (sha256(tree()).hexdigest(),)
        joiner.does()
        (note,) = joiner.state_receiver.leaves_received(A, Leaves(7, 0, 0, total, digests), 0.0)
        assert isinstance(note, Observation)


def test_a_tree_that_does_not_come_is_asked_of_another() -> None:
    joiner = Joiner(StateReceiver(7, CUT, {}, now=0.0, patience_s=PATIENCE_S))
    joiner.state_receiver.roots = (sha256(tree()).hexdigest(),)
    joiner.does()
    assert joiner.state_receiver.deadline == STALL_S
    joiner.now = STALL_S
    assert joiner.does() == [Send(C, FetchLeaves(7, 0, 0))]
    joiner.state_receiver.disconnected(C)
    joiner.up = frozenset((A,))
    assert joiner.does() == [Send(A, FetchLeaves(7, 0, 0))]


def test_trees_are_asked_of_those_who_have_hashed_and_then_of_others() -> None:
    """Of three donors two hash at once: the third one would begin when it is asked."""
    versions = tuple(Version(fragment, 3, state_digest(3)) for fragment in range(4))
    cut = e.Cut(info(B, 1), (A, C, D), versions)
    joiner = Joiner(StateReceiver(7, cut, {}, now=0.0, patience_s=PATIENCE_S))
    joiner.state_receiver.roots = (sha256(tree()).hexdigest(),) * 4
    assert joiner.does() == [Send(to, FetchLeaves(7, f, 0)) for f, to in enumerate((A, C, A, C))]
    joiner.now = STALL_S
    assert joiner.does() == [Send(to, FetchLeaves(7, f, 0)) for f, to in enumerate((C, D, C, D))]
    joiner.state_receiver.no_state(A)
    joiner.state_receiver.no_state(C)
    assert joiner.does() == [Send(D, FetchLeaves(7, f, 0)) for f in (0, 2)]


# Who gives what -------------------------------------------------------------------------------


def test_each_donor_is_asked_for_other_cells() -> None:
    wants = joining().wants()
    assert {peer: len(cells) for peer, cells in wants.items()} == dict.fromkeys(
        (A, C, D), WINDOW_CELLS
    )
    assert sorted(x for cells in wants.values() for x in cells) == list(range(3 * WINDOW_CELLS))


def test_who_is_quick_is_asked_for_more() -> None:
    joiner = joining()
    wants = joiner.wants()
    joiner.gets(C, *wants[C][:7])
    assert joiner.wants() == {}, "half of a window is still on its way"
    joiner.gets(C, wants[C][7])
    assert joiner.wants() == {C: [*wants[C][8:], *range(48, 56)]}


def test_at_the_end_who_has_nothing_to_do_takes_half_of_what_another_owes() -> None:
    joiner = joining(20)
    wants = joiner.wants()
    assert sorted(x for cells in wants.values() for x in cells) == list(range(20))
    assert min(map(len, wants.values())) >= 4
    busiest = max(wants, key=lambda peer: len(wants[peer]))
    idle = next(peer for peer in wants if peer != busiest)
    joiner.gets(idle, *wants[idle])
    again = joiner.wants()
    assert again[busiest] + again[idle] == wants[busiest]


def test_a_state_is_checked_when_its_last_cell_is_here() -> None:
    joiner = joining(2)
    joiner.does()
    assert joiner.gets(A, 1) == [KeepCell(A, 7, 0, 1)]
    assert joiner.gets(C, 0) == [KeepCell(C, 7, 0, 0), CheckState(7, 0)]
    assert joiner.gets(D, 0) == [], "it came twice"


def test_what_was_not_asked_of_somebody_is_as_good_as_any() -> None:
    joiner = joining()
    joiner.does()
    assert joiner.gets(A, 59) == [KeepCell(A, 7, 0, 59)]
    wants = [x for cells in joiner.wants().values() for x in cells]
    assert 59 not in wants


def test_a_cell_of_another_cut_or_of_a_stranger_is_no_cell() -> None:
    joiner = joining()
    stranger = CellReceived(B, 7, 0, 1, leaf(1))
    earlier = CellReceived(A, 6, 0, 1, leaf(1))
    beyond = CellReceived(A, 7, 1, 1, leaf(1))
    for event in (stranger, earlier, beyond):
        assert joiner.state_receiver.cell_received(event, 0.0) == []


# Donors that fail -----------------------------------------------------------------------------


def test_a_liar_is_found_at_its_first_cell_and_others_give_what_it_owes() -> None:
    joiner = joining()
    wants = joiner.wants()
    joiner.gets(A, 0)
    (note,) = joiner.gets(A, 1, false=True)
    assert isinstance(note, Observation)
    assert A in note.text
    assert joiner.gets(A, 2, false=True) == [], "it is known"
    joiner.gets(C, *wants[C])
    joiner.gets(D, *wants[D])
    again = joiner.wants()
    assert A not in again
    assert sorted(x for cells in again.values() for x in cells)[:15] == list(range(1, 16))


def test_what_a_lost_donor_owed_is_asked_of_the_others() -> None:
    joiner = joining()
    wants = joiner.wants()
    joiner.gets(A, *wants[A][:4])
    joiner.state_receiver.disconnected(A)
    joiner.up = frozenset((C, D))
    joiner.gets(C, *wants[C])
    assert joiner.wants()[C][:12] == wants[A][4:], "first of all; and what came is not lost"
    joiner.up = frozenset((A, C, D))
    assert A in joiner.wants(), "it is back, and has its copy"


def test_to_a_donor_that_hangs_others_are_preferred() -> None:
    joiner = joining()
    wants = joiner.wants()
    joiner.now = 3.0
    for peer in (C, D):
        joiner.gets(peer, *wants[peer][:2])
    assert joiner.state_receiver.deadline == STALL_S
    joiner.now = STALL_S
    assert joiner.wants() == {}, "C and D have enough to do"
    joiner.gets(C, *wants[C][2:])
    assert joiner.wants() == {C: wants[A]}
    joiner.gets(A, wants[A][5])
    assert A in joiner.wants(), "it goes on"


def test_an_only_donor_is_asked_again_later_each_time() -> None:
    """A line may be just as slow as that."""
    joiner = joining(4)
    joiner.up = frozenset((A,))
    assert joiner.wants() == {A: [0, 1, 2, 3]}
    asked: list[float] = []
    while len(asked) < 3:
        joiner.now = joiner.state_receiver.deadline
        if joiner.wants():
            asked.append(joiner.now)
    assert asked == [STALL_S, 3 * STALL_S, 7 * STALL_S]


def test_a_transfer_is_late_when_nothing_came_for_long() -> None:
    joiner = joining()
    joiner.now = 50.0
    joiner.does()
    joiner.gets(A, 0)
    assert joiner.state_receiver.late_at == 50.0 + PATIENCE_S


def test_it_is_hopeless_when_no_donor_will_give_anything() -> None:
    joiner = joining()
    joiner.does()
    joiner.gets(A, 0, false=True)
    joiner.state_receiver.no_state(C)
    joiner.state_receiver.no_state(A)
    assert joiner.state_receiver.hopeless == ""
    joiner.state_receiver.gone(D)
    assert joiner.state_receiver.hopeless != ""
    assert joiner.state_receiver.liar == A
    assert joiner.state_receiver.givers[A].why_not == LIES
    joiner.state_receiver.gone(A)
    joiner.state_receiver.gone(C)
    assert joiner.state_receiver.hopeless == "the donors are gone"


# Another cut ----------------------------------------------------------------------------------


def test_cells_of_an_earlier_cut_that_are_the_same_are_kept() -> None:
    held = {0: {0: leaf(0), 1: leaf(1), 2: leaf(2, state=2), 9: leaf(9)}}
    joiner = joining(5, held=held)
    lacking = (CellSpan(0, 2, 5),)
    assert joiner.said == [ExpectCells(7, 0, lacking)]
    assert sorted(x for cells in joiner.wants().values() for x in cells) == [2, 3, 4]
    assert joining(2, held={0: {0: leaf(0), 1: leaf(1)}}).said == [
        ExpectCells(7, 0, ()),
        CheckState(7, 0),
    ]


def test_cells_in_stretches() -> None:
    assert spans_of([]) == ()
    assert spans_of([(0, 1), (0, 2), (0, 5), (1, 6)]) == (
        CellSpan(0, 1, 3),
        CellSpan(0, 5, 6),
        CellSpan(1, 6, 7),
    )
