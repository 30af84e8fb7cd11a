"""The receiver's side of a transfer: which cells are here, and which donor is asked for the others.

Several donors give at once. Each is asked for the next few cells, and for more when most of them
are here, so a fast donor gives more than a slow one. Each cell is compared with a tree, and the
tree with a root in the log: a donor that sends a wrong cell is not asked again, and other donors
give its cells. Must NOT touch the bytes (the shell hashes them), nor decide which peer may join
(leader/joins.py).
"""

import hashlib
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from protocols.interface.commands import Command, Observation, Send
from protocols.interface.events import CellReceived
from protocols.interface.transfer_commands import CheckState, ExpectCells, KeepCell
from protocols.messages.log_entries import Cut
from protocols.messages.transfer import CellSpan, FetchLeaves, FetchState, Leaves
from protocols.transfer.state_roots import first_to_hash
from protocols.types.ids import PeerId
from protocols.types.limits import LEAF_BYTES, LEAVES_MAX, SPANS_MAX

WINDOW_CELLS = 16
"""Cells under way from one donor: 16 MiB fill a line of 1 Gbit/s and 100 ms."""
REFILL_CELLS = 8
"""More cells are asked for when so few are left; half a window arrives in less than a second."""
STALL_S = 5.0
"""Seconds. A donor that owes cells and sends nothing for so long is slow: others are preferred. The
time doubles with each time, since a line may be just that slow."""
CELLS_MAX = 1 << 20
"""Cells of one fragment's state: 1 TiB."""
LIES = "a donor sent a state that is not the cut's"
assert WINDOW_CELLS <= SPANS_MAX

Cell = tuple[int, int]
"""(fragment, index of the cell in the fragment's state)."""


@dataclass(slots=True)
class DonorRequests:
    """The requests to one donor."""

    asked: list[Cell] = field(default_factory=list[Cell])
    """Cells that it owes, in the order in which it sends them."""
    since: float = 0.0
    """When it sent a cell last, or began to owe cells."""
    patience_s: float = STALL_S
    slow: bool = False
    """It was silent for too long, and has sent nothing since."""
    why_not: str = ""
    """Why it is not asked any more; "" if it is."""


@dataclass(slots=True)
class Tree:
    """The leaves of a fragment's tree as they arrive, page by page."""

    donor: PeerId
    due: float
    """When another donor is asked."""
    digests: bytearray = field(default_factory=bytearray)


class StateReceiver:
    """The transfer of one cut's state to this peer."""

    def __init__(
        self,
        index: int,
        cut: Cut,
        held: dict[int, dict[int, bytes]],
        *,
        now: float,
        patience_s: float,
    ) -> None:
        """`held`: by fragment, digests of the cells that the shell has from an earlier cut; this
        object keeps it. `patience_s`: seconds without any cell until another cut is needed."""
        self.index = index
        self.cut = cut
        self.missing = {version.fragment for version in cut.versions}
        """Fragments that are not adopted yet."""
        self.late_at = now + patience_s
        self.givers = {donor: DonorRequests() for donor in cut.donors}
        self.roots: tuple[str, ...] = ()
        """Roots of the trees, once the log has them."""
        self._patience_s = patience_s
        self._held = held
        self._trees: dict[int, Tree] = {}
        self._leaves: dict[int, bytes] = {}
        """By fragment, the leaves that belong to its root."""
        self._wanted: deque[Cell] = deque()
        """Cells of which no donor has been asked."""
        self._lacking: dict[int, int] = {}
        """By fragment, the number of missing cells, once its tree is known."""

    @property
    def deadline(self) -> float:
        """The next time at which `advance` has to run without an event."""
        due = [tree.due for fragment, tree in self._trees.items() if fragment not in self._leaves]
        due += [x.since + x.patience_s for x in self.givers.values() if x.asked]
        return min([self.late_at, *due])

    @property
    def hopeless(self) -> str:
        """Why no donor gives anything more; "" while one may."""
        reasons = [giver.why_not for giver in self.givers.values()]
        if not reasons:
            return "the donors are gone"
        return "" if not all(reasons) else reasons[-1]

    @property
    def liar(self) -> str:
        """The donor that sent a wrong cell or leaf; "" if none did."""
        found = (p for p, x in self.givers.items() if x.why_not == LIES)
        return next(found, "")

    # Inputs ---------------------------------------------------------------------------------

    def leaves_received(self, donor: PeerId, page: Leaves, now: float) -> list[Command]:
        """A page of a tree arrived: once the tree is whole and has the root, the missing cells are
        known."""
        tree = self._trees.get(page.fragment)
        if page.index != self.index or tree is None or tree.donor != donor:
            return []
        if page.fragment in self._leaves or page.first * LEAF_BYTES != len(tree.digests):
            return []
        size = LEAF_BYTES * min(LEAVES_MAX, page.total - page.first)
        if not 0 < page.total <= CELLS_MAX or len(page.digests) != size:
            return self._refuse(donor, f"an impossible tree of fragment {page.fragment}")
        tree.digests += page.digests
        self._moved(now)
        if len(tree.digests) < LEAF_BYTES * page.total:
            tree.due = now + STALL_S
            return [self._ask_leaves(page.fragment, tree)]
        leaves = bytes(tree.digests)
        if hashlib.sha256(leaves).hexdigest() != self.roots[page.fragment]:
            return self._refuse(
                donor, f"leaves that have another root, of fragment {page.fragment}"
            )
        self._leaves[page.fragment] = leaves
        return self._lacks(page.fragment, page.total)

    def _lacks(self, fragment: int, total: int) -> list[Command]:
        """The commands for cells of an earlier cut that belong to this one too, and need not be
        sent again."""
        held = self._held.setdefault(fragment, {})
        for cell in [cell for cell in held if held[cell] != self._leaf(fragment, cell)]:
            del held[cell]
        lacking = [(fragment, cell) for cell in range(total) if cell not in held]
        self._lacking[fragment] = len(lacking)
        self._wanted.extend(lacking)
        commands: list[Command] = [ExpectCells(self.index, fragment, spans_of(lacking))]
        return commands if lacking else [*commands, CheckState(self.index, fragment)]

    def cell_received(self, event: CellReceived, now: float) -> list[Command]:
        """A cell arrived from any donor: either it belongs to the tree, or its sender is
        refused."""
        fragment, cell, donor = event.fragment, event.cell, event.sender
        giver = self.givers.get(donor)
        if event.cut_index != self.index or giver is None or fragment not in self._leaves:
            return []
        if event.digest != self._leaf(fragment, cell):
            return self._refuse(donor, f"a wrong cell {cell} of fragment {fragment}")
        wait_s = now - giver.since
        giver.since, giver.slow = now, False
        giver.patience_s = max(STALL_S, 4 * wait_s)
        if cell in self._held[fragment]:
            return []  # Another donor was quicker.
        self._held[fragment][cell] = event.digest
        self._moved(now)
        for other in self.givers.values():
            if (fragment, cell) in other.asked:
                other.asked.remove((fragment, cell))
        if (fragment, cell) in self._wanted:
            self._wanted.remove((fragment, cell))  # It was late: no donor is asked for it.
        commands: list[Command] = [KeepCell(donor, self.index, fragment, cell)]
        self._lacking[fragment] -= 1
        if not self._lacking[fragment]:
            commands.append(CheckState(self.index, fragment))
        return commands

    def no_state(self, donor: PeerId) -> None:
        """The donor cannot give the cut's state any more."""
        if donor in self.givers and not self.givers[donor].why_not:
            self._give_up(donor, "the donors have moved on to a later state")

    def disconnected(self, donor: PeerId) -> None:
        """Cells under way from this donor are lost: others are asked for them."""
        giver = self.givers.get(donor)
        if giver is not None:
            self._take_back(giver)
        for fragment in [f for f, tree in self._trees.items() if tree.donor == donor]:
            if fragment not in self._leaves:
                del self._trees[fragment]

    def gone(self, donor: PeerId) -> None:
        """The donor left the run."""
        self.disconnected(donor)
        self.givers.pop(donor, None)

    # Reactions ------------------------------------------------------------------------------

    def advance(self, now: float, connected: Set[PeerId]) -> list[Command]:
        """Ask connected donors for cells that no donor owes, or that a slow donor owes."""
        if not self.roots:
            return []
        ready = [p for p, x in self.givers.items() if p in connected and not x.why_not]
        for peer in ready:
            giver = self.givers[peer]
            if giver.asked and now >= giver.since + giver.patience_s:
                giver.slow, giver.patience_s = True, 2 * giver.patience_s
                self._take_back(giver)
        quick = [peer for peer in ready if not self.givers[peer].slow] or ready
        return self._ask_trees(quick, now) + self._ask_cells(quick, now)

    def _ask_trees(self, donors: Sequence[PeerId], now: float) -> list[Command]:
        commands: list[Command] = []
        hashed = len(set(donors) & set(first_to_hash(self.cut))) or 1
        for fragment in sorted(self.missing - self._leaves.keys()) if donors else ():
            tree = self._trees.get(fragment)
            if tree is not None and tree.donor in donors and now < tree.due:
                continue
            # Each donor in turn, in the cut's order: donors with trees first, and each with other
            # fragments.
            last = fragment % hashed
            if tree is not None and tree.donor in donors:
                last = donors.index(tree.donor) + 1
            tree = Tree(donors[last % len(donors)], now + STALL_S)
            self._trees[fragment] = tree
            commands.append(self._ask_leaves(fragment, tree))
        return commands

    def _ask_leaves(self, fragment: int, tree: Tree) -> Command:
        first = len(tree.digests) // LEAF_BYTES
        return Send(tree.donor, FetchLeaves(self.index, fragment, first))

    def _ask_cells(self, donors: Sequence[PeerId], now: float) -> list[Command]:
        changed: list[PeerId] = []
        for peer in donors:
            asked = self.givers[peer].asked
            if self._wanted and len(asked) <= REFILL_CELLS:
                fresh = min(WINDOW_CELLS - len(asked), len(self._wanted))
                self._add(peer, [self._wanted.popleft() for _ in range(fresh)], now)
                changed.append(peer)
        idle = [peer for peer in donors if not self.givers[peer].asked]
        for peer in idle if not self._wanted else ():
            # At the end an idle donor takes half of the cells that the busiest one owes.
            busiest = max(donors, key=lambda other: len(self.givers[other].asked))
            owes = self.givers[busiest].asked
            if len(owes) < 2:
                break
            half = len(owes) // 2
            taken, owes[-half:] = owes[-half:], []
            self._add(peer, taken, now)
            changed += [busiest, peer]
        return [
            Send(peer, FetchState(self.index, spans_of(self.givers[peer].asked)))
            for peer in dict.fromkeys(changed)
        ]

    def _add(self, peer: PeerId, cells: Sequence[Cell], now: float) -> None:
        giver = self.givers[peer]
        if not giver.asked:
            giver.since = now
        giver.asked += cells

    # Helpers --------------------------------------------------------------------------------

    def _leaf(self, fragment: int, cell: int) -> bytes:
        """The leaf of this cell; b"" beyond the last one."""
        return self._leaves[fragment][LEAF_BYTES * cell : LEAF_BYTES * (cell + 1)]

    def _moved(self, now: float) -> None:
        """A cell or page arrived: the transfer goes on."""
        self.late_at = now + self._patience_s

    def _refuse(self, donor: PeerId, what: str) -> list[Command]:
        """Ask this donor for nothing more, and note why."""
        if self.givers[donor].why_not == LIES:
            return []
        self._give_up(donor, LIES)
        return [Observation("transfer", f"{donor} sent {what}: other donors send the state")]

    def _give_up(self, donor: PeerId, why: str) -> None:
        self.givers[donor].why_not = why
        self.disconnected(donor)

    def _take_back(self, giver: DonorRequests) -> None:
        self._wanted.extendleft(reversed(giver.asked))
        giver.asked = []


def spans_of(cells: Sequence[Cell]) -> tuple[CellSpan, ...]:
    """The same cells, in the same order, as ranges."""
    spans: list[CellSpan] = []
    for fragment, cell in cells:
        last = spans[-1] if spans else None
        if last is not None and (last.fragment, last.stop) == (fragment, cell):
            spans[-1] = CellSpan(fragment, last.first, cell + 1)
        else:
            spans.append(CellSpan(fragment, cell, cell + 1))
    return tuple(spans)
