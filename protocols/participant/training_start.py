"""When the ranks of this peer begin to train, and from when on others wait for their work.

Must NOT know what the ranks do (the shell reports it), nor tell the leader (member_status.py).
"""

from collections.abc import Sequence, Set

from protocols.interface.commands import Command
from protocols.participant.joint_trainers import JointTrainers
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.state.run_state import RunState
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId

LINKS_S = 2.0
"""Seconds for which a peer that enters the roster waits for its links to the others. A link that is
not made by then may never be, and the leader chooses which peers to exclude."""
PACE_S = 5.0
"""Seconds for which a peer with work to contribute waits until its state is that of the last
commit. With a slow line it may never reach that while the others go on without it."""


class TrainingStart:
    """The waits of one peer, in a run of rounds, before its ranks count as able."""

    def __init__(self, me: PeerId, run_state: RunState, joint_trainers: JointTrainers) -> None:
        self._me = me
        self._run_state = run_state
        self._joint_trainers = joint_trainers
        self.is_linked = True
        """The links to the peers of the roster are made, or have been waited for."""
        self._links_until = self._pace_until = NEVER
        """When these waits end; NEVER while there is none."""

    @property
    def deadline(self) -> float:
        """The next time at which a wait for links or results ends."""
        return min(NEVER if self.is_linked else self._links_until, self._pace_until)

    def watch_links(self, now: float, connected: Set[PeerId]) -> None:
        """Note whether this peer is connected with the peers of the roster. Until it is, it does
        not ask to be counted: the others would wait for slices that it cannot send."""
        views = self._run_state.views
        apart = bool(views) and not set(views[-1].roster) <= connected | {self._me}
        if not apart:
            self._links_until = NEVER
        elif self._links_until == NEVER:
            self._links_until = now + LINKS_S
        self.is_linked = not apart or now >= self._links_until

    def start_training(
        self, rounds: Sequence[FragmentRounds], now: float, *, is_member: bool, fit: bool
    ) -> list[Command]:
        """Give ranks their first parameters once this peer is a member and rounds may begin. `fit`:
        the peer has the state, and its disk works."""
        joint_trainers, views = self._joint_trainers, self._run_state.views
        trained = joint_trainers.trained or any(r.work.own is not None for r in rounds)
        if trained and fit and not joint_trainers.able and self.is_linked:
            joint_trainers.able = self._keeps_pace(rounds, now)
        else:
            self._pace_until = NEVER
        if not joint_trainers.ready or not is_member:
            return []
        if not views:
            joint_trainers.able = True
        elif not joint_trainers.started and all(r.version >= 0 for r in rounds):
            joint_trainers.started = True
            first = self._me not in views[-1].roster
            return [
                command for r in rounds for command in r.work.start_ranks(r.version, first=first)
            ]
        return []

    def _keeps_pace(self, rounds: Sequence[FragmentRounds], now: float) -> bool:
        """Whether this peer lacks no result, or has waited for one for long: while it lacks one it
        cannot hold the next, and the others would wait for that."""
        lags = any(r.version < self._run_state.committed(r.fragment) for r in rounds)
        if lags and self._pace_until == NEVER:
            self._pace_until = now + PACE_S
        return not lags or now >= self._pace_until
