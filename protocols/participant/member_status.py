"""The status of this peer in the run, as it reports it to the leader: a state, able, leaving.

Each report to the leader is sent once, and again on every new connection, so that no decision waits
for a report that was lost. Must NOT decide which peers are members (leader/decisions.py) nor what
is committed.
"""

from protocols.links.handshake import Identity
from protocols.messages.peer import (
    Control,
    Durable,
    Join,
    Kept,
    Leave,
    NotReadyToTrain,
    ReadyToTrain,
    WantSamples,
    Witnessing,
)
from protocols.participant.joint_trainers import JointTrainers
from protocols.participant.sample_requests import SampleRequests
from protocols.participant.state_recovery import StateRecovery
from protocols.participant.training_start import TrainingStart
from protocols.state.run_state import RunState
from protocols.transfer.catch_up import CatchUp
from protocols.types.ids import PeerId


class MemberStatus:
    """The status; `news` returns the reports that the leader has not got."""

    def __init__(
        self, me: Identity, run_state: RunState, *, founds: bool, kept: Kept | None
    ) -> None:
        self.me = me
        self.run_state = run_state
        self.joint_trainers = JointTrainers()
        self.sample_requests = SampleRequests(me, run_state)
        self.recovery = StateRecovery(me, run_state, self.joint_trainers, founds=founds, kept=kept)
        self.training_start = TrainingStart(me.peer, run_state, self.joint_trainers)
        self.accepted = False
        """The shell has checked the agreed run and takes part in it."""
        self.leaving = ""
        """Why this peer leaves; "" while it does not."""
        self.disk_fails = ""
        """Why the disk fails; "" if it works. This peer gets few entries of the log meanwhile, and
        cannot read in it which rounds it has a part in."""
        self._broke = False
        """The disk has failed once. The leader may have got that report on an earlier connection,
        but not the one that the disk works again: from now on each new connection begins with a
        report about the disk."""
        self._told: dict[object, Control] = {}
        """By kind, the last report on the present connection."""
        self._listener: PeerId | None = None

    # Events ---------------------------------------------------------------------------------

    def leader_connected(self) -> None:
        """The leader has connected: earlier reports may be lost."""
        self._told = {}

    def watch_disk(self, why: str) -> None:
        """The log could be written, or not and `why`: until it works again, and the state is that
        of the last commit, the others need not wait for this peer."""
        if why and not self.disk_fails:
            self.joint_trainers.able = False
        self.disk_fails = why

    def news(self, listener: PeerId | None) -> list[Control]:
        """Reports that the leader has not got; the caller sends them. `listener`: receiver of
        reports about the checkpoint; a report to an earlier receiver may be lost."""
        if listener != self._listener:
            self._listener = listener
            self._told.pop(Kept, None)
        if self.recovery.asks_anew:
            self.recovery.asks_anew = False
            self._told.pop(Join, None)
        reports = self._reports()
        why = self.disk_fails
        self._broke = self._broke or bool(why)
        if self._broke:
            reports[Durable] = Durable(not why, why)
        if reports == self._told:
            return []
        new = [report for kind, report in reports.items() if self._told.get(kind) != report]
        # Forget reports that are no longer true: if they are true again, they are sent again.
        self._told = reports
        return new

    @property
    def is_member(self) -> bool:
        return self.recovery.is_member

    @property
    def catchup(self) -> CatchUp:
        """The state that this peer needs."""
        return self.recovery.catchup

    @property
    def kept(self) -> Kept | None:
        """This peer's newest checkpoint."""
        return self.recovery.kept

    @property
    def mark(self) -> tuple[object, ...]:
        """A value that changes with whether the state is missing and whether ranks can train."""
        joint_trainers, catchup = self.joint_trainers, self.catchup
        transfer = catchup.transfer.index if catchup.transfer is not None else 0
        could = (joint_trainers.able, joint_trainers.stalled, joint_trainers.started)
        status = catchup.asking, transfer, catchup.complete, self.leaving
        return (*could, *status, self.training_start.is_linked, self.disk_fails)

    def _reports(self) -> dict[object, Control]:
        """All reports that are true at this moment, by kind."""
        me, reports, needed = self.me, dict[object, Control](), self.catchup.needed
        lineage = self.run_state.lineage
        is_member = self.is_member
        if me.witness and not self.leaving:
            witnesses = self.run_state.witnesses
            known = witnesses.get(me.peer)
            if known is None or known.incarnation < me.incarnation:
                reports[Witnessing] = Witnessing(me.name, me.incarnation, me.address)
        if is_member:
            able = self.joint_trainers.can_contribute and not needed and not self.disk_fails
            why = self.disk_fails or self.joint_trainers.why_not
            reports[ReadyToTrain] = ReadyToTrain(lineage) if able else NotReadyToTrain(why, lineage)
            wants = self.sample_requests.wants()
            if wants is not None:
                reports[WantSamples] = wants
        out = self.leaving and me.peer not in self.run_state.readers
        reports |= self.recovery.reports(joins=self.accepted and not out, accepted=self.accepted)
        if self.leaving and me.peer in self.run_state.readers:
            reports[Leave] = Leave(self.leaving)
        return reports
