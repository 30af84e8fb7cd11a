"""The states that simulated peers give and get, cell by cell.

A state is one number; each of its cells carries all of it, and the tree is made of its cells'
names. The shell's side of it, as the real one does it. Must NOT decide whom to believe: that is
what is simulated.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.types.ids import PeerId
from sims.node.toy_model import Value

if TYPE_CHECKING:
    from sims.node.node import Node

Lie = Literal["", "cell", "tree"]
"""What the next state that a donor gives has wrong: one cell, or all of it, its tree included."""
STATE_CELLS = (1, 5, 40)
"""Of a fragment's state: one, a few for each donor, more than any is asked for at a time."""
NOTHING = ""
"""In place of a state's digest: its cells are not of one state."""


def leaf(value: Value, cell: int) -> bytes:
    """The digest of a cell of this state."""
    return hashlib.sha256(f"{value} {cell}".encode()).digest()


class Transfers:
    """Of one life of one peer."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.lie: Lie = ""
        self.copies: dict[tuple[int, int], Value] = {}
        """As a donor: by (cut, fragment)."""
        self._rounds: dict[tuple[int, int], int] = {}
        """And of which round each is."""
        self.forged: set[int] = set()
        """Cuts of which we told a wrong tree."""
        self._queues: dict[PeerId, deque[tuple[int, int, int]]] = {}
        """What each joiner waits for: (cut, fragment, cell)."""
        self._sending: set[PeerId] = set()
        self._expected: set[tuple[int, int]] = set()
        """As a joiner: the cells, by (fragment, cell), that may come."""
        self._cut = 0
        self.cells: dict[tuple[int, int], Value] = {}

    def do(self, command: c.TransferCommand) -> None:
        """In answer to the core."""
        node = self._node
        match command:
            case c.CopyState():
                node.job(lambda: self._copy(command))
            case c.HashState():
                node.job(lambda: self._hash(command))
            case c.ServeCells(peer=peer, cut_index=index, cells=spans):
                self._queues[peer] = deque(
                    (index, span.fragment, cell)
                    for span in spans
                    for cell in range(span.first, span.stop)
                )
                self._send_next(peer)
            case c.ReleaseCopy(peer=peer, cut_index=index):
                self._queues.pop(peer, None)
                self.forged.discard(index)
                self.copies = {key: x for key, x in self.copies.items() if key[0] != index}
                self._rounds = {key: x for key, x in self._rounds.items() if key[0] != index}
            case c.ExpectState(cut_index=index, donors=donors):
                self._cut = index
                self._expected.clear()
                spring_a_trap(node, donors)
            case c.ExpectCells(fragment=fragment, cells=spans):
                fresh = {(fragment, x) for span in spans for x in range(span.first, span.stop)}
                self._expected = {key for key in self._expected if key[0] != fragment} | fresh
                self.cells = {key: x for key, x in self.cells.items() if key not in fresh}
            case c.KeepCell():
                pass  # `decided` has done it.
            case c.CheckState():
                node.job(lambda: self._check(command))
            case c.AdoptState(fragment=fragment, round=round_):
                value = self.cells[fragment, 0]
                node.job(lambda: node.adopt(fragment, round_, value))

    # As a donor -----------------------------------------------------------------------------

    def _copy(self, command: c.CopyState) -> None:
        node, index, fragment = self._node, command.cut_index, command.fragment
        value = node.state_at(fragment, command.round)
        if value is not None:
            self.copies[index, fragment] = value
            self._rounds[index, fragment] = command.round
        node.give(
            v.StateCopied(index, fragment, node.world.state_cells if value is not None else 0)
        )

    def _hash(self, command: c.HashState) -> None:
        node, index, fragment = self._node, command.cut_index, command.fragment
        value = self.copies.get((index, fragment))
        if value is None:
            return  # Released meanwhile.
        digest = node.world.digest_of(self._rounds[index, fragment], value)
        if self.lie == "tree":
            node.world.happened["lie"] += 1
            self.forged.add(index)
            value, self.lie = value + 1, ""
            self.copies[index, fragment] = value
        cells = range(node.world.state_cells)
        node.give(v.StateHashed(index, fragment, digest, b"".join(leaf(value, x) for x in cells)))

    def disconnected(self, peer: PeerId) -> None:
        self._queues.pop(peer, None)

    def _send_next(self, peer: PeerId) -> None:
        """One after the other: what is not on its way yet may be taken back."""
        node, queue = self._node, self._queues.get(peer)
        if not queue or peer in self._sending:
            return
        index, fragment, cell = queue.popleft()
        value = self.copies.get((index, fragment))
        if value is None:
            return
        false = self.lie != ""  # Too late for another tree.
        if false:
            node.world.happened["lie"] += 1
            # Nor is it of the state that another liar told the tree of: nobody could tell.
            value, self.lie = value + 2, ""
        event = v.CellReceived(node.peer, index, fragment, cell, leaf(value, cell))
        if false:
            node.world.checkers.transfers.lies(peer, event)
        self._sending.add(peer)

        def sent() -> None:
            node.send_bulk(peer, event, value)
            self._sending.discard(peer)
            self._send_next(peer)

        node.after(node.world.transfer_s() / node.world.state_cells, sent)

    # As a joiner ----------------------------------------------------------------------------

    def arrived(self, event: v.CellReceived, value: Value) -> None:
        """As the real shell: only what is expected gets memory, and the core looks at it."""
        node = self._node
        if node.world.now < node.paused_until:
            node.after(0.0, lambda: self.arrived(event, value))
            return
        if event.cut_index != self._cut or (event.fragment, event.cell) not in self._expected:
            node.world.happened["unexpected cell"] += 1
            return
        node.give(event, value)

    def decided(self, event: v.CellReceived, value: Value, commands: Sequence[c.Command]) -> None:
        """The core looked at a cell: put it where it belongs, or drop it."""
        cell = (event.fragment, event.cell)
        if c.KeepCell(event.sender, event.cut_index, *cell) in commands:
            self.cells[cell] = value
            self._expected.discard(cell)

    def _check(self, command: c.CheckState) -> None:
        node, fragment = self._node, command.fragment
        if command.cut_index != self._cut:
            return
        values = {x for (of, _), x in self.cells.items() if of == fragment}
        whole = len(values) == 1 and (fragment, node.world.state_cells - 1) in self.cells
        transfer = node.core.standing.catchup.transfer
        if transfer is not None and transfer.index == command.cut_index:
            round_ = transfer.cut.versions[fragment].round
            digest = node.world.digest_of(round_, values.pop()) if whole else NOTHING
            node.give(v.StateReceived(command.cut_index, fragment, round_, digest))


def spring_a_trap(joiner: Node, donors: Sequence[PeerId]) -> None:
    """Traps that wait for a transfer go off during it."""
    world = joiner.world
    world.happened["transfer"] += 1
    waiting = [kind for kind, count in sorted(world.traps.items()) if count]
    if not waiting:
        return
    kind = world.random.choice(waiting)
    # Who gives nothing can tell no lie: of a few cells the first one gives some.
    giver = world.nodes[donors[0] if kind == "lie" else world.random.choice(donors)]
    world.traps[kind] -= 1

    def spring() -> None:
        if world.spring is not None:
            world.spring(kind, joiner, giver)

    if kind == "lie":
        spring()  # Before the donor has copied its state, perhaps.
    else:
        joiner.after(world.random.uniform(0.0, 0.5), spring)
