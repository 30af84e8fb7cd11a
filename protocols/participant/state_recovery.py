"""The state of this peer when it must come from elsewhere: from donors, or from its checkpoint.

The leader is asked for a cut, and each state is checked before it is adopted. Must NOT decide
which peers give (leader/joins.py), nor move cells (transfer/receiver.py).
"""

from collections.abc import Set
from dataclasses import dataclass, field

from protocols.interface.commands import AdoptKept, AdoptState, Command, Observation
from protocols.interface.events import CellReceived, KeptAdopted, StateHashed, StateReceived
from protocols.links.handshake import Identity
from protocols.messages.log_entries import Cut
from protocols.messages.peer import (
    CaughtUp,
    Control,
    FetchLeaves,
    FetchState,
    Join,
    Kept,
    Leaves,
    NoState,
)
from protocols.participant.joint_trainers import JointTrainers
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.state.run_state import RunState
from protocols.steps.step_machine import StepMachine
from protocols.transfer.catch_up import CatchUp
from protocols.transfer.donor import StateDonor
from protocols.types.ids import PeerId, Version

OfTransfer = FetchState | FetchLeaves | NoState | Leaves


@dataclass(slots=True)
class CheckpointLoad:
    """The fragments that are being loaded from the own checkpoint."""

    awaited: set[int] = field(default_factory=set[int])
    """Fragments that are not loaded yet."""
    unordered: tuple[Version, ...] = ()
    """Versions that the shell has not been asked to load yet."""


class StateRecovery:
    """The missing, arriving and checked state of one peer, and the copies that it gives."""

    def __init__(
        self,
        me: Identity,
        run_state: RunState,
        joint_trainers: JointTrainers,
        *,
        founds: bool,
        kept: Kept | None,
    ) -> None:
        self._me = me
        self._run_state = run_state
        self._joint_trainers = joint_trainers
        asks = not (founds or me.witness)
        self.catchup = CatchUp(("new" if me.incarnation == 1 else "restarted") if asks else "")
        self.state_donor = StateDonor(me.peer, run_state)
        self.kept = kept
        """This peer's newest checkpoint."""
        self.asks_anew = False
        """A cut was asked for since the last report, perhaps for the same reason as before: the
        leader has to get this request too."""
        self._asked = False
        """A leader knows that this peer asks for a state, and neither a Cut nor this peer has ended
        that."""
        self._early: dict[int, StateReceived] = {}
        """By fragment, a state that arrived while an outer step was being made."""
        self._against = ""
        """The donor that sent a wrong state last."""
        self._load = CheckpointLoad()

        self._released: list[Command] = []
        """Commands that free copies which no receiver needs any more."""

    def advance(self, now: float, connected: Set[PeerId], *, accepted: bool) -> list[Command]:
        """Free copies, load the checkpoint, and ask for the rest of the cut. `accepted`: the shell
        takes part in the run."""
        commands, self._released = self._released, []
        if accepted:
            versions, self._load.unordered = self._load.unordered, ()
            commands += [AdoptKept(version.fragment, version.round) for version in versions]
        return commands + self._request(now, connected)

    # Other peers ----------------------------------------------------------------------------

    def asked(self, peer: PeerId, message: OfTransfer, now: float) -> list[Command]:
        """A receiver asks for the state, or a donor answers this peer."""
        transfer = self.catchup.transfer
        match message:
            case FetchState() | FetchLeaves():
                return self.state_donor.asked(peer, message, now)
            case NoState(index=index) if transfer is not None and transfer.index == index:
                transfer.no_state(peer)
            case Leaves() if transfer is not None:
                return transfer.leaves_received(peer, message, now)
            case NoState() | Leaves():
                pass  # It is of an earlier cut.
        return []

    def cell(self, event: CellReceived, now: float) -> list[Command]:
        """A cell of the awaited state has arrived."""
        transfer = self.catchup.transfer
        return transfer.cell_received(event, now) if transfer is not None else []

    def disconnected(self, peer: PeerId) -> None:
        """The connection ended: answers under way are lost, and requests must be repeated."""
        self.state_donor.disconnected(peer)
        transfer = self.catchup.transfer
        if transfer is not None:
            transfer.disconnected(peer)

    def gone(self, peer: PeerId) -> None:
        """A peer left the run."""
        self.release(peer)
        transfer = self.catchup.transfer
        if transfer is not None:
            transfer.gone(peer)

    def release(self, peer: PeerId) -> None:
        """The peer needs no state from this one any more."""
        self._released += self.state_donor.drop(peer)

    def release_all(self) -> None:
        """No receiver needs a copy of the state as it is."""
        self._released += self.state_donor.drop_all()

    def jumped(self, now: float) -> None:
        """A snapshot replaced entries that this peer has not applied."""
        self._released += self.state_donor.jumped(is_member=self.is_member, now=now)

    # Cuts -----------------------------------------------------------------------------------

    def ask_cut(self, why: str, now: float, *, against: str = "") -> None:
        """The state is missing or wrong: ask the leader for a cut."""
        if self._me.witness:
            return  # A witness has no state.
        self._against = against
        # Until the ranks' next contribution, since they may be far back.
        self._joint_trainers.unable()
        self._early.clear()
        self.asks_anew = True
        self.catchup.ask(why, now)

    def cut(self, index: int, cut: Cut, *, deadline: float, now: float) -> list[Command]:
        """The log has a Cut: this peer is its receiver, or a donor, or neither."""
        owes = self._me.peer in cut.donors and self.is_member  # Not an earlier incarnation.
        commands = (
            self.state_donor.owe(index, cut, now) if owes else self.state_donor.drop(cut.info.peer)
        )
        if (cut.info.peer, cut.info.incarnation) != (self._me.peer, self._me.incarnation):
            # A cut for an earlier incarnation is over too. The checkpoint may hold the versions of
            # an earlier rollback, but a new incarnation does not begin with these.
            if cut.info.peer == self._me.peer and not self.catchup.needed:
                self._load = CheckpointLoad()
                self.ask_cut("restarted", now)
            return commands
        self._load = CheckpointLoad()  # The donors send what was to be loaded from it.
        self._asked = False
        patience_s = deadline - now
        return commands + self.catchup.granted(index, cut, now=now, patience_s=patience_s)

    def _request(self, now: float, connected: Set[PeerId]) -> list[Command]:
        """Ask donors for the rest of the cut, or the leader for another cut if this one has
        failed."""
        catchup = self.catchup
        if why := catchup.failed(now):
            assert catchup.transfer is not None
            self.ask_cut(why, now, against=catchup.transfer.liar)
        _, cut = self._run_state.cut_of(self._me.peer)
        return catchup.request(now, connected, cut.roots if cut is not None else ())

    def hashed(self, event: StateHashed, now: float) -> tuple[list[Command], bool]:
        """A copy for a receiver is hashed. Also returns whether the own state differs from its
        digest."""
        commands, damaged = self.state_donor.hashed(event)
        if damaged and not self.catchup.needed:
            self.ask_cut("our state is damaged", now, against=self._me.peer)
            commands.append(Observation("diverged", "our state does not match its digest"))
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
            return [Observation("transfer", "the state that the donors agreed on is not the cut's")]
        if isinstance(rounds, FragmentRounds) and rounds.applying:
            # The step goes first: a state has one writer at a time.
            self._early[event.fragment] = event
            return []
        self.catchup.arrived(event.fragment)
        return [
            AdoptState(event.cut_index, event.fragment, version.round),
            *rounds.state_received(version.round, version.state_digest),
        ]

    def applied(self, rounds: FragmentRounds, now: float) -> list[Command]:
        """An outer step is made: a state that arrived meanwhile can be adopted."""
        early = self._early.pop(rounds.fragment, None)
        return self.state_received(early, rounds, now) if early is not None else []

    def check_digest(self, rounds: FragmentRounds, now: float) -> list[Command]:
        """Check promise I1: the majority's state before the next committed round must equal
        ours."""
        commit = self._run_state.commit(rounds.fragment, rounds.version + 1)
        if commit is None or commit.previous_state_digest in ("", rounds.state_digest):
            return []
        if self.catchup.needed:
            return []  # Known already; asking again would restart the transfer.
        self.ask_cut("diverged", now)
        return [
            Observation("diverged", f"our state at round {rounds.version} is not the majority's")
        ]

    # The checkpoint -------------------------------------------------------------------------

    def restored(self, now: float) -> list[Command]:
        """The run went back to other versions: load them from the checkpoint if it has them."""
        restore, kept = self._run_state.restored, self.kept
        assert restore is not None
        self._early.clear()
        self._load.unordered = ()
        if kept is None or kept.versions != restore.versions:
            self.ask_cut("the run went back to a checkpoint", now)
            return []
        self._joint_trainers.unable()
        self.catchup.has_own(self._run_state.restored_index, kept.versions)
        fragments = {version.fragment for version in kept.versions}
        self._load = CheckpointLoad(fragments, kept.versions)
        return []

    def goes_on(self) -> None:
        """The run went back to versions that this peer has."""
        self._early.clear()
        self._load = CheckpointLoad()
        restore = self._run_state.restored
        versions = restore.versions if restore is not None else ()
        self.catchup.has_own(self._run_state.restored_index, versions)
        self._joint_trainers.able = self._joint_trainers.started

    def kept_adopted(
        self, event: KeptAdopted, rounds: FragmentRounds | StepMachine, now: float
    ) -> list[Command]:
        """A fragment was loaded from the checkpoint, or could not be."""
        restore = self._run_state.restored
        if restore is None or event.fragment not in self._load.awaited:
            return []
        version = restore.versions[event.fragment]
        self._load.awaited.discard(event.fragment)
        if (version.round, version.state_digest) != (event.round, event.state_digest):
            self._load.awaited.clear()
            # Report that there is none: else the leader would go back to it for ever.
            self.kept = Kept(self._run_state.lineage, (), 0, 0)
            self.ask_cut("our checkpoint is damaged", now)
            return []
        return rounds.state_received(version.round, version.state_digest)

    # Reports --------------------------------------------------------------------------------

    def add_reports(
        self, reports: dict[object, Control], *, joins: bool, accepted: bool, is_member: bool
    ) -> None:
        """Add the reports about the state that are true at this moment, by kind; the caller sends
        those that the leader lacks. `joins`: this peer has a place in the run, or may ask for one;
        `accepted`: the shell takes part in the run."""
        me = self._me
        lineage, needed = self._run_state.lineage, self.catchup.needed
        if joins and accepted and self.catchup.asking:
            asking, against = self.catchup.asking, self._against
            reports[Join] = Join(me.name, me.incarnation, me.address, asking, against, lineage)
        if self.kept is not None and accepted:
            reports[Kept] = self.kept
        if (self._asked or not is_member) and not (needed or self._load.awaited):
            index, cut = self._run_state.cut_of(me.peer)
            if cut is None:
                index = self._run_state.restored_index
            if index and index == self.catchup.complete:
                about = (me.name, me.incarnation, me.address)
                reports[CaughtUp] = CaughtUp(index, *about, lineage, self.catchup.state)
        for roots in self.state_donor.reports():
            reports[roots.peer] = roots
        self._asked = Join in reports or (self._asked and CaughtUp not in reports)

    @property
    def is_member(self) -> bool:
        return self._run_state.is_member(self._me.peer, self._me.incarnation)

    @property
    def only_donor(self) -> str:
        """The only donor of the cut's state; "" if there were several."""
        _, cut = self._run_state.cut_of(self._me.peer)
        return cut.donors[0] if cut is not None and len(cut.donors) == 1 else ""
