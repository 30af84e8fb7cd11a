"""The checkers of leaders: how they are elected, and what their entries rest on.

Must NOT check anything itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types import PeerId
from sims.checkers.agreement import Agreement
from sims.checkers.decisions import Decisions
from sims.checkers.elections import Elections, LeaderRecord
from sims.checkers.hold_down import HoldDown
from sims.checkers.rollback import RollbackChecks
from sims.checkers.transfer_checks import TransferChecks
from sims.node.node import Node

REPLICATED = (m.Append, m.Appended, m.HandOver)
TOLD = (m.Have, m.Hold, m.ReportsComplete)


class LeaderCheckers:
    """Reports each event, command and message to the checkers of leaders that need it."""

    def __init__(
        self, found: Callable[[str], None], agreement: Agreement, transfers: TransferChecks
    ) -> None:
        self.elections = Elections(found)
        self.decisions = Decisions(found)
        self.hold_down = HoldDown(found)
        self.rollback = RollbackChecks(found, agreement, transfers)

    def received(self, node: Node, event: v.MessageReceived, commands: Sequence[c.Command]) -> None:
        """A core handled a message; its commands are not carried out yet."""
        if isinstance(event.message, REPLICATED):
            self.elections.note_message(node, event)
        elif isinstance(event.message, m.Have):
            self.decisions.hears_state(node, event.peer, event.message)
        elif isinstance(event.message, m.Fetch):
            self.decisions.asked(node, event.peer, event.message, commands)

    def handled(
        self,
        node: Node,
        event: v.Event,
        commands: Sequence[c.Command],
        log: Mapping[int, e.Entry],
    ) -> LeaderRecord | None:
        """A core handled an event. `log`: the entries that any peer has applied. Returns the
        record of the peer's reign, if it leads."""
        self.hold_down.check_event(node, event)
        self.rollback.check_event(node, event)
        for command in commands:
            if isinstance(command, c.ReleaseRound):
                self.decisions.released(node, command)
            elif isinstance(command, c.SendResult):
                self.decisions.shared(node, command, commands)
            elif isinstance(command, c.Applied) and isinstance(command.entry, e.Member):
                self.decisions.let_in(node, command.entry, commands)
        if node.peer not in self.elections.reigns and not node.raft.leads:
            return None
        reign = self.elections.led(node, event, log)
        if reign is not None:
            self.decisions.made(node, reign)
        return reign

    def sent(self, node: Node, to: PeerId, message: m.Control) -> None:
        """A peer sends a message."""
        if isinstance(message, m.Vote | m.Voted):
            self.elections.asked_or_voted(node, to, message)
        elif isinstance(message, TOLD):
            self.decisions.heard(node, to, message)
        elif isinstance(message, m.ContributionOffered):
            self.decisions.offered(node, to, message.stamp)
