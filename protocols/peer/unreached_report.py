"""The report of members that this peer cannot reach: to the leader, or as leader to people.

Must NOT decide which peer is excluded for it (leader/decisions.py).
"""

from protocols.interface.commands import Command, Observation, Send
from protocols.leader.leadership import Leadership
from protocols.links.connections import Connections
from protocols.messages.peer import UnreachedMembers
from protocols.participant.member_status import MemberStatus
from protocols.raft.node import Raft
from protocols.state.run_state import RunState

UNSAID = (0, False, None)
"""The leader has no report of this peer."""


class UnreachedReport:
    """Remembers the last report, so that each change is reported once."""

    def __init__(
        self,
        run_state: RunState,
        links: Connections,
        leadership: Leadership,
        member_status: MemberStatus,
    ) -> None:
        self._run_state = run_state
        self._links = links
        self._leadership = leadership
        self._member_status = member_status
        self._said: tuple[int, bool, object] = UNSAID
        """(term, whether this peer led, the last report of missing peers)."""

    def forget(self) -> None:
        """The leader may have missed the last report."""
        self._said = UNSAID

    def news(self, now: float, raft: Raft) -> list[Command]:
        """Report missing peers to the leader when they change; as leader, note the missing
        links."""
        state, led_term = raft.term_state, self._leadership.led_term
        members, status = self._run_state.members, self._member_status
        leader = state.leader if status.is_member else None
        if led_term is not None:
            what: object = led_term.reports.cut_off()
            command: Command = Observation("links", str(what or "all members are connected again"))
        elif leader is not None and leader in self._links.up:
            what = tuple(sorted(self._links.missed(now) & members.keys()))
            command = Send(leader, UnreachedMembers(what))
        else:
            return []
        term, led, before = self._said
        self._said = (state.term, state.leads, what)
        before = before if led == state.leads else None
        # Repeated in each term, also if no peer is missing: a late report of an earlier term may
        # have reached the new leader.
        return [command] if (what != before or term != state.term) and (what or before) else []
