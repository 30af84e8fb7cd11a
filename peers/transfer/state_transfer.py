"""State transfers of one driver, to this peer and from it.

Must NOT decide which donor gives what, nor look into a state.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from peers.exchange.background_rate import BackgroundRate
from peers.exchange.data_plane import DataPlane
from peers.exchange.interfaces import Listener, StateStore, StateTaken
from peers.exchange.outbound import Stream
from peers.transfer.donor import StateLender
from peers.transfer.receiver import IncomingTransfer
from peers.transfer.tree_hashing import TreeHashing
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.peer import PeerCore
from protocols.types import PeerId

T = TypeVar("T")


class TransferHost(Protocol):
    """What StateTransfers needs from the driver. No method may raise or block."""

    @property
    def states(self) -> StateStore: ...

    def feed(self, event: v.Event, /) -> None: ...

    def compute(self, work: Callable[[], T], done: Callable[[T], None], /) -> None:
        """Run `work` in the worker thread, in order; then `done` in the event loop."""
        ...


class StateTransfers:
    """The transfers of one driver. Implements DonorHost."""

    def __init__(
        self, core: PeerCore, *, listener: Listener, shell: TransferHost, data_plane: DataPlane
    ) -> None:
        self.connected_at: float | None = None
        """When this peer was first connected with any other one."""
        self._core, self._run_state = core, core.run_state
        self._listener = listener
        self._shell = shell
        self._outbounds = data_plane.outbounds
        self._tree_hashing = TreeHashing()
        self.pace = BackgroundRate(self._outbounds.wake_all)
        self.state_lender = StateLender(self, self._tree_hashing, self.pace)
        self.transfer = IncomingTransfer(lambda: shell.states, shell.feed, self._tree_hashing)

    def peer_connected(self) -> None:
        """Another peer is connected."""
        if self.connected_at is None:
            self.connected_at = asyncio.get_running_loop().time()

    def decided(self, event: v.CellReceived, commands: Sequence[c.Command]) -> None:
        """The core has handled a cell: keep its bytes if they count, else drop them."""
        self.transfer.decided(event, commands)

    def do(self, command: c.TransferCommand) -> None:
        match command:
            case c.CopyState():
                raft, lineage = self._core.raft, self._run_state.lineage
                self.state_lender.copy_state(command, run=raft.run, lineage=lineage)
            case c.HashState():
                self.state_lender.hash(command)
            case c.ServeCells():
                self.state_lender.serve(command)
            case c.ReleaseCopy():
                self.state_lender.release(command)
            case c.ExpectState():
                self.transfer.expect(command, asyncio.get_running_loop().time())
            case c.ExpectCells():
                self.transfer.expect_cells(command)
            case c.KeepCell():
                pass  # `decided` has kept the cell.
            case c.CheckState():
                self._check(command)
            case c.AdoptState():
                self._adopt(command)

    def close(self) -> None:
        """End all transfers: the run is over."""
        self.pace.close()
        self._tree_hashing.close()

    # A thread may keep its last task for a while. `pop` leaves no state in it, so that the memory
    # is free before the ranks get theirs.

    def _check(self, command: c.CheckState) -> None:
        index, fragment = command.cut_index, command.fragment
        arrived, states = [self.transfer.state(fragment)], self._shell.states
        go_on = self._tree_hashing.go_on
        me = self._core.me
        _, cut = self._run_state.cut_of(me.peer)
        round_ = cut.versions[fragment].round if cut is not None else 0
        self._tree_hashing.submit(
            lambda: states.check_state(fragment, round_, [arrived.pop()], go_on),
            lambda digest: self.feed(v.StateReceived(index, fragment, round_, digest)),
        )

    def _adopt(self, command: c.AdoptState) -> None:
        fragment, round_ = command.fragment, command.round
        arrived, states = [self.transfer.state(fragment)], self._shell.states
        complete, cut = self.transfer.adopted(), self.transfer.cut
        lineage = self._run_state.lineage
        gave = {donor: count for donor, count in cut.by_donor.items() if count}

        def adopted(_: None) -> None:
            if complete:
                now = asyncio.get_running_loop().time()
                began = cut.since if self.connected_at is None else self.connected_at
                of = (tuple(gave), tuple(gave.values()))
                self._listener.received_state(StateTaken(*of, now - cut.since, now - began))

        def adopt() -> None:
            # Until the cut's last fragment is adopted, cells may belong to the next cut too.
            buffer = arrived.pop()
            states.adopt_state(fragment, round_, buffer, lineage=lineage, kept=not complete)

        self._shell.compute(adopt, adopted)

    # Implements DonorHost -----------------------------------------------------------------

    @property
    def states(self) -> StateStore:
        return self._shell.states

    def feed(self, event: v.Event) -> None:
        self._shell.feed(event)

    def compute(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        self._shell.compute(work, done)

    def replace_cells(self, peer: PeerId, stream: Stream | None) -> None:
        self._outbounds.replace_cells(peer, stream)

    def served(self, peer: PeerId, size_bytes: int) -> None:
        self._listener.served(peer, size_bytes)
