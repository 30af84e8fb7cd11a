"""State transfer between simulated peers, cell by cell, as the real shell does it.

A state is one number. Each of its cells carries that number, and the hash tree is made of the
cells' digests. Must NOT decide which peer is trusted: that is under test.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import Literal

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.types import PeerId
from sims.node.node_view import NodeView
from sims.node.toy_model import Value

Lie = Literal["", "cell", "tree"]
"""The error in the next state that a donor sends: in one cell, or in the whole state with its hash
tree."""
TRANSFER_S = (0.05, 0.5, 3.0)
"""Virtual seconds that the cells of a fragment take together."""
STATE_CELLS = (1, 5, 40)
"""Number of cells of a fragment's state: one, a few for each donor, or more than a peer is asked
for at a time."""
NOTHING = ""
"""Stands for a state's digest if the received cells are not all of one state."""


def leaf(value: Value, cell: int) -> bytes:
    """Digest of one cell of this state: a leaf of the hash tree."""
    return hashlib.sha256(f"{value} {cell}".encode()).digest()


class SimulatedTransfers:
    """Transfers of one incarnation of one peer, as donor and as joiner."""

    def __init__(self, node: NodeView) -> None:
        self._node = node
        self.lie: Lie = ""
        self.copies: dict[tuple[int, int], Value] = {}
        """As a donor: copied states by (cut, fragment)."""
        self._rounds: dict[tuple[int, int], int] = {}
        """Round of each copied state."""
        self.forged: set[int] = set()
        """Cuts for which this peer sent a false hash tree."""
        self._queues: dict[PeerId, deque[tuple[int, int, int]]] = {}
        """By joiner: cells still to be sent, as (cut, fragment, cell)."""
        self._sending: set[PeerId] = set()
        self._expected: set[tuple[int, int]] = set()
        """As a joiner: the cells that may arrive, as (fragment, cell)."""
        self._cut = 0
        self.cells: dict[tuple[int, int], Value] = {}

    def carry_out(self, command: c.TransferCommand) -> None:
        """Carry out a command of the core."""
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
                pass  # `decided` has kept it.
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
            v.StateCopied(index, fragment, node.settings.state_cells if value is not None else 0)
        )

    def _hash(self, command: c.HashState) -> None:
        node, index, fragment = self._node, command.cut_index, command.fragment
        value = self.copies.get((index, fragment))
        if value is None:
            return  # Released meanwhile.
        digest = node.settings.digest_of(self._rounds[index, fragment], value)
        if self.lie == "tree":
            node.world.happened["lie"] += 1
            self.forged.add(index)
            value, self.lie = value + 1, ""
            self.copies[index, fragment] = value
        cells = range(node.settings.state_cells)
        node.give(v.StateHashed(index, fragment, digest, b"".join(leaf(value, x) for x in cells)))

    def disconnected(self, peer: PeerId) -> None:
        self._queues.pop(peer, None)

    def _send_next(self, peer: PeerId) -> None:
        """Send one cell after the other: a cell that is not sent yet may be withdrawn."""
        node, queue = self._node, self._queues.get(peer)
        if not queue or peer in self._sending:
            return
        index, fragment, cell = queue.popleft()
        value = self.copies.get((index, fragment))
        if value is None:
            return
        false = self.lie != ""  # Too late for a false tree: the tree was sent.
        if false:
            node.world.happened["lie"] += 1
            # + 2, since another donor's false tree is of the state + 1: the cell must not match it.
            value, self.lie = value + 2, ""
        event = v.CellReceived(node.peer, index, fragment, cell, leaf(value, cell))
        if false:
            node.observer.lies(peer, event)
        self._sending.add(peer)

        def sent() -> None:
            node.send_bulk(peer, event, value)
            self._sending.discard(peer)
            self._send_next(peer)

        node.after(node.world.random.choice(TRANSFER_S) / node.settings.state_cells, sent)

    # As a joiner ----------------------------------------------------------------------------

    def arrived(self, event: v.CellReceived, value: Value) -> None:
        """Take a cell as the real shell does: only expected cells get memory and reach the core."""
        node = self._node
        if node.now < node.turns.paused_until:
            node.after(0.0, lambda: self.arrived(event, value))
            return
        if event.cut_index != self._cut or (event.fragment, event.cell) not in self._expected:
            node.world.happened["unexpected cell"] += 1
            return
        node.give(event, value)

    def decided(self, event: v.CellReceived, value: Value, commands: Sequence[c.Command]) -> None:
        """Keep a cell that the core has accepted, or drop it."""
        cell = (event.fragment, event.cell)
        if c.KeepCell(event.sender, event.cut_index, *cell) in commands:
            self.cells[cell] = value
            self._expected.discard(cell)

    def _check(self, command: c.CheckState) -> None:
        node, fragment = self._node, command.fragment
        if command.cut_index != self._cut:
            return
        values = {x for (of, _), x in self.cells.items() if of == fragment}
        whole = len(values) == 1 and (fragment, node.settings.state_cells - 1) in self.cells
        catchup = node.core.catchup
        transfer = catchup.transfer
        if transfer is not None and transfer.index == command.cut_index:
            round_ = transfer.cut.versions[fragment].round
            digest = node.settings.digest_of(round_, values.pop()) if whole else NOTHING
            node.give(v.StateReceived(command.cut_index, fragment, round_, digest))


def spring_a_trap(joiner: NodeView, donors: Sequence[PeerId]) -> None:
    """Trigger one fault that waits for a state transfer, during this one."""
    world = joiner.world
    world.happened["transfer"] += 1
    waiting = [kind for kind, count in sorted(world.faults.traps.items()) if count]
    if not waiting:
        return
    kind = world.random.choice(waiting)
    # A lie needs a donor that sends cells: if there are few cells, the first donor sends some.
    giver = world.nodes[donors[0] if kind == "lie" else world.random.choice(donors)]
    world.faults.traps[kind] -= 1

    def spring() -> None:
        if world.faults.spring is not None:
            world.faults.spring(kind, joiner, giver)

    if kind == "lie":
        spring()  # At once, perhaps before the donor has copied its state.
    else:
        joiner.after(world.random.uniform(0.0, 0.5), spring)
