"""State transfers: a joiner keeps no cell that differs from the cut, and asks no liar again.

Must NOT judge the speed of a transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.transfer import REFILL_CELLS
from protocols.types import PeerId
from sims.checkers.elections import LeaderRecord
from sims.node.node import Node

Cells = set[tuple[int, int]]
"""Cells of a state: (fragment, cell)."""


@dataclass(slots=True)
class Joining:
    """The transfer of one cut to one incarnation of a joiner."""

    index: int
    lacking: Cells = field(default_factory=set[tuple[int, int]])
    asked: dict[PeerId, Cells] = field(default_factory=dict[PeerId, set[tuple[int, int]]])
    liars: set[PeerId] = field(default_factory=set[PeerId])
    over: bool = False
    """The joiner gave up this cut and asked for another one: cells that arrive now are dropped
    unread."""


class TransferChecks:
    """Checks all joiners and donors."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._joining: dict[tuple[PeerId, int], Joining] = {}
        """By incarnation of a joiner: its latest transfer."""
        self.liars: set[PeerId] = set()
        """Donors that sent a wrong cell or reported wrong roots, of any cut."""
        self._lies: set[tuple[PeerId, v.CellReceived]] = set()
        """(joiner, event) of each wrong cell."""
        self._said: dict[tuple[PeerId, int, PeerId], dict[PeerId, tuple[str, ...]]] = {}
        """The roots that donors reported, by (leader, cut, joiner) and donor."""
        self._seen: dict[tuple[PeerId, int], int] = {}

    def lies(self, joiner: PeerId, cell: v.CellReceived) -> None:
        """A donor is about to send a cell that differs from the cut."""
        self._lies.add((joiner, cell))
        self.liars.add(cell.sender)

    def check_event(self, node: Node, event: v.Event, commands: Sequence[c.Command]) -> None:
        """A core handled an event."""
        life = (node.peer, node.me.incarnation)
        for command in commands:
            if isinstance(command, c.ExpectState):
                self._joining[life] = Joining(command.cut_index)
        joining = self._joining.get(life)
        if joining is None:
            return
        if isinstance(event, v.PeerDisconnected):
            joining.asked.pop(event.peer, None)
        if isinstance(event, v.MessageReceived):
            self._tree(joining, event, commands)
        if isinstance(event, v.CellReceived) and event.cut_index == joining.index:
            self._cell(node, joining, event, commands)
        for command in commands:
            self._follow(node, joining, command)
        catchup = node.member_status.catchup
        transfer = catchup.transfer
        joining.over = transfer is None or transfer.index != joining.index
        if not joining.over and not node.core.stopped:
            self._asks_for_all(node, joining)

    def _tree(
        self, joining: Joining, event: v.MessageReceived, commands: Sequence[c.Command]
    ) -> None:
        """Record a donor that is refused for its leaves as a liar, before its wrong cells come."""
        if isinstance(event.message, m.Leaves) and _named(event.peer, commands):
            joining.liars.add(event.peer)
            joining.asked.pop(event.peer, None)

    def _cell(
        self, node: Node, joining: Joining, event: v.CellReceived, commands: Sequence[c.Command]
    ) -> None:
        kept = any(isinstance(command, c.KeepCell) for command in commands)
        joining.asked.get(event.sender, set()).discard((event.fragment, event.cell))
        if (node.peer, event) in self._lies:
            named = _named(event.sender, commands) or event.sender in joining.liars
            transfer = node.member_status.catchup.transfer
            gone = transfer is None or event.sender not in transfer.givers  # It has left the run.
            if kept or not (named or joining.over or gone):
                self._found(f"{node.peer} takes a wrong cell of {event.sender}")
            joining.liars.add(event.sender)
            joining.asked.pop(event.sender, None)

    def _follow(self, node: Node, joining: Joining, command: c.Command) -> None:
        match command:
            case c.ExpectCells(fragment=fragment, cells=spans):
                joining.lacking |= {(fragment, x) for s in spans for x in range(s.first, s.stop)}
            case c.KeepCell(fragment=fragment, cell=cell):
                joining.lacking.discard((fragment, cell))
                for asked in joining.asked.values():
                    asked.discard((fragment, cell))
            case c.Send(peer=to, message=m.FetchState(index=index, cells=spans)):
                if index != joining.index or not spans:
                    return
                if to in joining.liars:
                    self._found(f"{node.peer} asks {to} again, which lied about the same cut")
                cells = {(s.fragment, x) for s in spans for x in range(s.first, s.stop)}
                for asked in joining.asked.values():
                    asked.difference_update(cells)
                joining.asked[to] = cells
            case _:
                pass

    def _asks_for_all(self, node: Node, joining: Joining) -> None:
        """Check that all missing cells are requested, or that each donor has enough requests."""
        catchup, up = node.member_status.catchup, node.core.linked_peers
        transfer = catchup.transfer
        assert transfer is not None
        under_way = {x for asked in joining.asked.values() for x in asked}
        if joining.lacking <= under_way or not transfer.roots:
            return
        for peer, giver in transfer.givers.items():
            idle = len(joining.asked.get(peer, ())) <= REFILL_CELLS
            willing = peer in up and not (giver.why_not or giver.slow)
            if willing and idle and peer not in joining.liars:
                self._found(f"{node.peer} lacks cells, and does not ask {peer} for any")
                return

    # Trees ----------------------------------------------------------------------------------

    def rooted(self, node: Node, to: PeerId, report: m.CutRoots) -> None:
        """A donor reports the roots of its hash trees of a cut."""
        key = (to, report.index, report.peer)
        self._said.setdefault(key, {})[node.peer] = report.roots
        if report.index in node.transfers.forged:
            self.liars.add(node.peer)
            return
        if not report.roots:
            return
        index, cut = node.run_state.cut_of(report.peer)
        if cut is None or index != report.index:
            self._found(f"{node.peer} reports the roots of a cut that is over")
            return
        for version in cut.versions:
            copies = node.transfers.copies
            value = copies.get((report.index, version.fragment))
            digest = node.settings.digest_of(version.round, value or 0)
            if value is None or digest != version.state_digest:
                self._found(f"{node.peer} reports the roots of another state than the cut's")

    def made(self, node: Node, reign: LeaderRecord) -> None:
        """Check that two donors reported the roots that a leader appends, or that the leader did,
        and all other donors have reported."""
        core, key = node.core, (node.peer, reign.term)
        log, led_term = core.raft.log, core.led_term
        state_donor = core.part.state_donor
        for ours in state_donor.reports():  # A report to itself is not sent.
            heard = self._said.setdefault((node.peer, ours.index, ours.peer), {})
            heard[node.peer] = ours.roots
        seen = max(self._seen.get(key, log.base), log.base)
        if led_term is None or log.last_index <= seen:
            return
        self._seen[key] = log.last_index
        for entry in log.since(seen + 1):
            body = entry.body
            if not isinstance(body, e.Roots) or entry.term != reign.term:
                continue
            said = self._said.get((node.peer, body.index, body.peer), {})
            votes = sum(roots == body.roots for roots in said.values())
            cuts = [
                x.body for x in log.since(max(body.index, log.base + 1)) if x.index == body.index
            ]
            if votes >= 2 or not cuts or not isinstance(cuts[0], e.Cut):
                continue
            members, asking = led_term.head.members, led_term.joins.joins
            here = set(cuts[0].donors) & members.keys()
            granted = [x.body for x in log.since(entry.index + 1) if isinstance(x.body, e.Cut)]
            asked = asking.keys() | {x.info.peer for x in granted}
            here -= asked - said.keys()
            here -= {donor for donor, roots in said.items() if not roots}
            own = said.get(node.peer) == body.roots and here <= said.keys()
            if len(here) > 1 and not own:
                self._found(f"{node.peer} appends roots that only one donor reported")


def _named(peer: PeerId, commands: Sequence[c.Command]) -> bool:
    """True if a note to the user names the peer."""
    return any(isinstance(command, c.Observation) and peer in command.text for command in commands)
