"""All checkers as one observer of a world: which report goes to which checker.

The checkers share one list of violations. Must NOT check anything itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types import PeerId, Stamp
from sims.checkers.containment import Containment
from sims.checkers.disks import Disks
from sims.checkers.durability import DurabilityChecks
from sims.checkers.fencing import Fencing
from sims.checkers.history import HistoryCheckers
from sims.checkers.leaders import LeaderCheckers
from sims.checkers.progress import ProgressChecks
from sims.checkers.transfer_checks import TransferChecks
from sims.checkers.waits import Waits
from sims.node.node import Node
from sims.node.world_view import WorldView

SUMMED = (v.SliceBegun, v.SliceReceived, v.ResultReceived)


class Checkers:
    """The checkers of the peers of a world and, as `history`, those of its log and its states."""

    def __init__(self, history: HistoryCheckers | None = None) -> None:
        """`history`: as HistoryCheckers by default."""
        self.history = history or HistoryCheckers()
        self.violations = self.history.violations
        found, agreement = self.violations.append, self.history.agreement
        self.containment = Containment(found, agreement)
        self.disks = Disks(found)
        self.durability = DurabilityChecks(found)
        self.fencing = Fencing(found)
        self.progress = ProgressChecks(found, agreement)
        self.transfers = TransferChecks(found)
        self.leaders = LeaderCheckers(found, agreement, self.transfers)
        self.waits = Waits(found)

    # Results --------------------------------------------------------------------------------

    @property
    def log(self) -> dict[int, e.Entry]:
        """The entries that any peer has applied, by log index."""
        return self.history.log

    @property
    def commits(self) -> dict[tuple[int, int, int], e.Commit]:
        """All commits, by (lineage, fragment, round)."""
        return self.history.commits

    # Called by the world --------------------------------------------------------------------

    def found(self, text: str) -> None:
        """The world itself has found a violation."""
        self.violations.append(text)

    def woke(self, node: Node) -> None:
        """An incarnation of a peer begins, with the content of its disk."""
        self.durability.woke(node)

    def sent(self, node: Node, to: PeerId, message: m.Control) -> None:
        """A peer sends a message."""
        history = self.history
        if isinstance(message, m.Appended):
            elections = self.leaders.elections
            self.durability.acknowledged(node, to, message, elections.leaders)
        elif isinstance(message, m.Vote | m.Voted):
            self.durability.voted(node, to, message)
        elif isinstance(message, m.CutRoots):
            self.transfers.rooted(node, to, message)
        elif isinstance(message, m.WrongResult):
            history.owners.complained(node, message)
        elif isinstance(message, m.ContributionOffered):
            history.accounting.offered(node, message.stamp)
        self.leaders.sent(node, to, message)

    def falsified(self, node: Node, stamp: Stamp | None) -> None:
        """A peer falsifies a whole result of this attempt, or (None) other bytes."""
        owners = self.history.owners
        owners.falsified(node, stamp)

    def true_state_lost(self) -> None:
        """A peer that held a state has gone while another state is corrupt."""
        self.history.agreement.tainted = True

    def healed(self, world: WorldView[Node]) -> None:
        """No fault happens from now on."""
        self.progress.healed(world)

    def run_ended(self, world: WorldView[Node]) -> None:
        """The run is over, finished or not."""
        self.progress.run_ended(world)
        history = self.history
        history.revocation.run_ended(world)
        history.samples.at_the_end(world.nodes.values())

    # Called by nodes ------------------------------------------------------------------------

    def handled(self, node: Node, event: v.Event, commands: Sequence[c.Command]) -> None:
        """A core handled an event; its commands are not carried out yet."""
        history, leaders = self.history, self.leaders
        if isinstance(event, SUMMED):
            self.fencing.check_payload(node, event, commands)
        elif isinstance(event, v.MessageReceived):
            leaders.received(node, event, commands)
        elif isinstance(event, v.Persisted):
            self.durability.claims(node)
        elif isinstance(event, v.PeerConnected):
            leaders.decisions.reconnected(node, event)
        elif isinstance(event, v.DeadlineReached):
            self.waits.looks(node)
        elif isinstance(event, v.Encoded):
            given = node.core.rounds[event.fragment].work.given
            # A contribution that was being encoded when a Restore came is dropped.
            if given is not None and given.manifest == event.manifest:
                history.accounting.contributed(node, event.fragment, event.round)
        if node.core.certificates.secure:
            history.admission.check_event(node, event, commands)
            history.revocation.check_event(node, event)
        self.transfers.check_event(node, event, commands)
        self.disks.check_event(node)
        reign = leaders.handled(node, event, commands, history.agreement.log)
        if reign is not None:
            self.transfers.made(node, reign)

    def survives(self, node: Node, index: int, entry: e.Entry) -> None:
        """A peer is about to apply an entry, which must survive any crash."""
        self.durability.check_entry(node, index, entry)
        if isinstance(entry, e.Commit) and index not in self.history.agreement.log:
            members = len(node.run_state.members)
            self.progress.named(node.world, entry, members=members)

    def memory(self, node: Node) -> None:
        """A peer applied a round: check the sizes of its collections."""
        self.containment.memory(node)

    def note(self, kind: str, text: str) -> None:
        """A core issued a note for the user."""
        self.containment.note(kind, text)

    def lies(self, joiner: PeerId, cell: v.CellReceived) -> None:
        """A donor is about to send a cell that differs from the cut."""
        self.transfers.lies(joiner, cell)
