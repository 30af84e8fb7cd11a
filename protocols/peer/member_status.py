"""The status of this peer in the run: getting a state, able to contribute, leaving.

Each report to the leader is sent once, and again on every new connection, so that no decision waits
for a report that was lost. Must NOT decide which peers are members (leader/decisions.py) nor what
is committed.
"""

from collections.abc import Sequence, Set

from protocols.interface.commands import AdoptKept, AdoptState, Command, Note
from protocols.interface.events import KeptAdopted, StateHashed, StateReceived
from protocols.links.handshake import Identity
from protocols.messages.log_entries import Cut
from protocols.messages.peer import (
    CaughtUp,
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
from protocols.peer.joint_trainers import JointTrainers
from protocols.peer.sample_requests import SampleRequests
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.state.run_state import RunState
from protocols.steps.step_machine import StepMachine
from protocols.transfer.catch_up import CatchUp
from protocols.transfer.donor import StateDonor
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, Version

LINKS_S = 2.0
"""Seconds for which a peer that enters the roster waits for its links to the others. A link that is
not made by then may never be, and the leader chooses which peers to exclude."""
PACE_S = 5.0
"""Seconds for which a peer with work to contribute waits until its state is that of the last
commit. With a slow line it may never reach that while the others go on without it."""


class MemberStatus:
    """The status; `news` returns the reports that the leader has not got."""

    def __init__(
        self, me: Identity, run_state: RunState, *, founds: bool, kept: Kept | None
    ) -> None:
        self.me = me
        self.run_state = run_state
        self.joint_trainers = JointTrainers()
        self.sample_requests = SampleRequests(me, run_state)
        asks = not (founds or me.witness)
        self.catchup = CatchUp(("new" if me.incarnation == 1 else "restarted") if asks else "")
        self.state_donor = StateDonor(me.peer, run_state)
        self.accepted = False
        """The shell has checked the agreed run and takes part in it."""
        self.kept = kept
        """This peer's newest checkpoint."""
        self.leaving = ""
        """Why this peer leaves; "" while it does not."""
        self._early: dict[int, StateReceived] = {}
        """By fragment, a state that arrived while an outer step was being made."""
        self._told: dict[object, Control] = {}
        """By kind, the last report on the present connection."""
        self.disk_fails = ""
        """Why the disk fails; "" if it works. This peer gets few entries of the log meanwhile, and
        cannot read in it which rounds it has a part in."""
        self._broke = False
        """The disk has failed once. The leader may have got that report on an earlier connection,
        but not the one that the disk works again: from now on each new connection begins with a
        report about the disk."""
        self._asked = False
        """A leader knows that this peer asks for a state, and neither a Cut nor this peer has ended
        that."""
        self._listener: PeerId | None = None
        self._against = ""
        """The donor that sent a wrong state last."""
        self._adopting: set[int] = set()
        """Fragments that are being loaded from the checkpoint."""
        self._to_adopt: tuple[Version, ...] = ()
        """Versions that the shell has not been asked to load yet."""
        self._is_linked = True
        """The links to the peers of the roster are made, or have been waited for."""
        self._links_until = self._pace_until = NEVER
        """When these waits end; NEVER while there is none."""

    # Events ---------------------------------------------------------------------------------

    def leader_connected(self) -> None:
        """The leader has connected: earlier reports may be lost."""
        self._told = {}

    def ask_cut(self, why: str, now: float, *, against: str = "") -> None:
        """The state is missing or wrong: ask the leader for a cut."""
        if self.me.witness:
            return  # A witness has no state.
        self._against = against
        # Until the ranks' next contribution, since they may be far back.
        self.joint_trainers.unable()
        self._early.clear()
        self._told.pop(Join, None)
        self.catchup.ask(why, now)

    def cut(self, index: int, cut: Cut, *, deadline: float, now: float) -> list[Command]:
        """The log has a Cut: this peer is its receiver, or a donor, or neither."""
        owes = self.me.peer in cut.donors and self.is_member  # Not an earlier incarnation.
        commands = (
            self.state_donor.owe(index, cut, now) if owes else self.state_donor.drop(cut.info.peer)
        )
        if (cut.info.peer, cut.info.incarnation) != (self.me.peer, self.me.incarnation):
            # A cut for an earlier incarnation is over too. The checkpoint may hold the versions of
            # an earlier rollback, but a new incarnation does not begin with these.
            if cut.info.peer == self.me.peer and not self.catchup.needed:
                self._adopting.clear()
                self._to_adopt = ()
                self.ask_cut("restarted", now)
            return commands
        self._adopting.clear()  # The donors send what was to be loaded from the checkpoint.
        self._to_adopt = ()
        self._asked = False
        patience_s = deadline - now
        return commands + self.catchup.granted(index, cut, now=now, patience_s=patience_s)

    def request(self, now: float, connected: Set[PeerId]) -> list[Command]:
        """Ask donors for the rest of the cut, or the leader for another cut if this one has
        failed."""
        catchup = self.catchup
        if why := catchup.failed(now):
            assert catchup.transfer is not None
            self.ask_cut(why, now, against=catchup.transfer.liar)
        _, cut = self.run_state.cut_of(self.me.peer)
        return catchup.request(now, connected, cut.roots if cut is not None else ())

    def hashed(self, event: StateHashed, now: float) -> tuple[list[Command], bool]:
        """A copy for a receiver is hashed. Also returns whether the own state differs from its
        digest."""
        commands, damaged = self.state_donor.hashed(event)
        if damaged and not self.catchup.needed:
            self.ask_cut("our state is damaged", now, against=self.me.peer)
            commands.append(Note("diverged", "our state does not match its digest"))
        return commands, damaged

    def state_received(
        self, event: StateReceived, rounds: FragmentRounds | StepMachine, now: float
    ) -> list[Command]:
        """A fragment's state has arrived: adopt it if it is the cut's."""
        version = self.catchup.expected(event.cut_index, event.fragment)
        if version is None:
            return []  # Of an earlier cut.
        if (version.round, version.state_digest) != (event.round, event.state_digest):
            why = "the roots were not of the cut's state"
            self.ask_cut(why, now, against=self.only_donor)
            return [Note("transfer", "the state that the donors agreed on is not the cut's")]
        if isinstance(rounds, FragmentRounds) and rounds.applying:
            # The step goes first: a state has one writer at a time.
            self._early[event.fragment] = event
            return []
        self.catchup.arrived(event.fragment)
        return [
            AdoptState(event.cut_index, event.fragment, version.round),
            *rounds.state_received(version.round, version.state_digest),
        ]

    @property
    def only_donor(self) -> str:
        """The only donor of the cut's state; "" if there were several."""
        _, cut = self.run_state.cut_of(self.me.peer)
        return cut.donors[0] if cut is not None and len(cut.donors) == 1 else ""

    def applied(self, rounds: FragmentRounds, now: float) -> list[Command]:
        """An outer step is made: a state that arrived meanwhile can be adopted."""
        early = self._early.pop(rounds.fragment, None)
        return self.state_received(early, rounds, now) if early is not None else []

    def check_digest(self, rounds: FragmentRounds, now: float) -> list[Command]:
        """Check promise I1: the majority's state before the next committed round must equal
        ours."""
        commit = self.run_state.commit(rounds.fragment, rounds.version + 1)
        if commit is None or commit.previous_state_digest in ("", rounds.state_digest):
            return []
        if self.catchup.needed:
            return []  # Known already; asking again would restart the transfer.
        self.ask_cut("diverged", now)
        return [Note("diverged", f"our state at round {rounds.version} is not the majority's")]

    def watch_disk(self, why: str) -> None:
        """The log could be written, or not and `why`: until it works again, and the state is that
        of the last commit, the others need not wait for this peer."""
        if why and not self.disk_fails:
            self.joint_trainers.able = False
        self.disk_fails = why

    # Actions --------------------------------------------------------------------------------

    def watch_links(self, now: float, connected: Set[PeerId]) -> None:
        """Note whether this peer is connected with the peers of the roster. Until it is, it does
        not ask to be counted: the others would wait for slices that it cannot send."""
        views = self.run_state.views
        apart = bool(views) and not set(views[-1].roster) <= connected | {self.me.peer}
        if not apart:
            self._links_until = NEVER
        elif self._links_until == NEVER:
            self._links_until = now + LINKS_S
        self._is_linked = not apart or now >= self._links_until

    def start_training(self, rounds: Sequence[FragmentRounds], now: float) -> list[Command]:
        """Give ranks their first parameters once this peer is a member and rounds may begin."""
        joint_trainers, views = self.joint_trainers, self.run_state.views
        trained = joint_trainers.trained or any(r.work.own is not None for r in rounds)
        could = trained and not self.catchup.needed and not joint_trainers.able
        if could and self._is_linked and not self.disk_fails:
            joint_trainers.able = self._keeps_pace(rounds, now)
        else:
            self._pace_until = NEVER
        if not joint_trainers.ready or not self.is_member:
            return []
        if not views:
            joint_trainers.able = True
        elif not joint_trainers.started and all(r.version >= 0 for r in rounds):
            joint_trainers.started = True
            first = self.me.peer not in views[-1].roster
            return [
                command for r in rounds for command in r.work.start_ranks(r.version, first=first)
            ]
        return []

    def _keeps_pace(self, rounds: Sequence[FragmentRounds], now: float) -> bool:
        """Whether this peer lacks no result, or has waited for one for long: while it lacks one it
        cannot hold the next, and the others would wait for that."""
        lags = any(r.version < self.run_state.committed(r.fragment) for r in rounds)
        if lags and self._pace_until == NEVER:
            self._pace_until = now + PACE_S
        return not lags or now >= self._pace_until

    def restored(self, now: float) -> list[Command]:
        """The run went back to other versions: load them from the checkpoint if it has them."""
        restore, kept = self.run_state.restored, self.kept
        assert restore is not None
        self._early.clear()
        self._to_adopt = ()
        if kept is None or kept.versions != restore.versions:
            self.ask_cut("the run went back to a checkpoint", now)
            return []
        self.joint_trainers.unable()
        self.catchup.has_own(self.run_state.restored_index)
        self._adopting = {version.fragment for version in kept.versions}
        self._to_adopt = kept.versions
        return []

    def goes_on(self) -> None:
        """The run went back to versions that this peer has."""
        self._early.clear()
        self._adopting.clear()
        self._to_adopt = ()
        self.catchup.has_own(self.run_state.restored_index)
        self.joint_trainers.able = self.joint_trainers.started

    def adopt_kept(self) -> list[Command]:
        """Commands to load the checkpoint, once the shell knows the run."""
        if not self.accepted:
            return []
        versions, self._to_adopt = self._to_adopt, ()
        return [AdoptKept(version.fragment, version.round) for version in versions]

    def kept_adopted(
        self, event: KeptAdopted, rounds: FragmentRounds | StepMachine, now: float
    ) -> list[Command]:
        """A fragment was loaded from the checkpoint, or could not be."""
        restore = self.run_state.restored
        if restore is None or event.fragment not in self._adopting:
            return []
        version = restore.versions[event.fragment]
        self._adopting.discard(event.fragment)
        if (version.round, version.state_digest) != (event.round, event.state_digest):
            self._adopting.clear()
            # Report that there is none: else the leader would go back to it for ever.
            self.kept = Kept(self.run_state.lineage, (), 0, 0)
            self.ask_cut("our checkpoint is damaged", now)
            return []
        return rounds.state_received(version.round, version.state_digest)

    def news(self, listener: PeerId | None) -> list[Control]:
        """Reports that the leader has not got; the caller sends them. `listener`: receiver of
        reports about the checkpoint; a report to an earlier receiver may be lost."""
        if listener != self._listener:
            self._listener = listener
            self._told.pop(Kept, None)
        reports = self._reports()
        self._asked = Join in reports or (self._asked and CaughtUp not in reports)
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
        return self.run_state.is_member(self.me.peer, self.me.incarnation)

    @property
    def mark(self) -> tuple[object, ...]:
        """A value that changes with whether the state is missing and whether ranks can train."""
        joint_trainers, catchup = self.joint_trainers, self.catchup
        transfer = catchup.transfer.index if catchup.transfer is not None else 0
        could = (joint_trainers.able, joint_trainers.stalled, joint_trainers.started)
        status = catchup.asking, transfer, catchup.complete, self.leaving
        return (*could, *status, self._is_linked, self.disk_fails)

    @property
    def deadline(self) -> float:
        """The next time at which a wait for links or results ends."""
        return min(NEVER if self._is_linked else self._links_until, self._pace_until)

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
        if self.accepted and self.catchup.asking and not out:
            asking, against = self.catchup.asking, self._against
            reports[Join] = Join(me.name, me.incarnation, me.address, asking, against, lineage)
        if self.kept is not None and self.accepted:
            reports[Kept] = self.kept
        if (self._asked or not is_member) and not (needed or self._adopting):
            index, cut = self.run_state.cut_of(me.peer)
            if cut is None:
                index = self.run_state.restored_index
            if index and index == self.catchup.complete:
                reports[CaughtUp] = CaughtUp(index, me.name, me.incarnation, me.address, lineage)
        for roots in self.state_donor.reports():
            reports[roots.peer] = roots
        if self.leaving and me.peer in self.run_state.readers:
            reports[Leave] = Leave(self.leaving)
        return reports
