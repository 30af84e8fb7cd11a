"""This peer's own part in the run: its ranks, its state, its rounds.

It turns committed entries, payloads and results of the own arithmetic into commands, whichever peer
leads. Must NOT decide for others (leader/decisions.py), nor know how the log is replicated
(raft/node.py).
"""

from collections.abc import Set

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links.handshake import Identity
from protocols.messages import log_entries as e
from protocols.messages.peer import BlocksWanted, Fetch, FetchSteps, Kept
from protocols.participant.all_rounds import AllRounds
from protocols.participant.member_status import MemberStatus
from protocols.participant.state_recovery import OfTransfer
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.state.run_state import RunState
from protocols.steps.step_machine import StepMachine
from protocols.types.ids import PeerId, Version
from protocols.types.rules import ProtocolConfig

Asked = Fetch | FetchSteps | BlocksWanted


class Participant:
    """The part of one peer; its methods return commands. A witness has neither rounds nor steps,
    only the log."""

    def __init__(
        self, me: Identity, run_state: RunState, *, founds: bool, kept: Kept | None
    ) -> None:
        self.me = me
        self.run_state = run_state
        self.all_rounds = AllRounds(me.peer, run_state)
        self.steps: StepMachine | None = None
        """In a stepwise run, in place of the rounds."""
        self.member_status = MemberStatus(me, run_state, founds=founds, kept=kept)
        self.recovery = self.member_status.recovery
        self.catchup, self.state_donor = self.recovery.catchup, self.recovery.state_donor
        self._began = False
        self.since = 0.0
        """When this peer read the Run entry; shown to people."""
        self.initial_digests: tuple[str, ...] = ()
        """Digests of the initial state, if this peer founded the run."""

    # Queries --------------------------------------------------------------------------------

    @property
    def rounds(self) -> list[FragmentRounds]:
        """The rounds of each fragment; empty until the run is known, and in a stepwise run."""
        return self.all_rounds.of_fragments

    @property
    def finished(self) -> bool:
        """Has this peer applied every fragment's last round? A witness only reads of it."""
        if self.me.witness:
            return self.run_state.is_over
        if self.steps is not None:
            return self.steps.finished
        return self.all_rounds.finished

    @property
    def state_deadline(self) -> float:
        """The next time at which a state transfer needs a pass."""
        transfers = self.catchup.deadline, self.state_donor.deadline
        return min(*transfers, self.member_status.training_start.deadline)

    def waits_for(self) -> set[PeerId]:
        """The peers that sum our contribution or give us a state; in a stepwise run the roster."""
        transfer = self.catchup.transfer
        needed = set(transfer.givers) if transfer is not None else set[PeerId]()
        needed |= self.all_rounds.waits_for()
        if self.steps is not None and self.run_state.views:
            needed.update(self.run_state.views[-1].roster)
        return needed - {self.me.peer}

    # Events ---------------------------------------------------------------------------------

    def local(self, event: v.Event, now: float) -> list[c.Command]:
        """Handle reports of the own ranks and the own arithmetic."""
        joint_trainers = self.member_status.joint_trainers
        match event:
            case v.TrainersReady() | v.TrainersAble() | v.TrainersStalled() | v.TrainersMoving():
                joint_trainers.reported(event)
            case v.TrainersLost():
                joint_trainers.reported(event)
                for part in (*self.rounds, *self._steps):
                    part.trainers_lost()
            case v.ContributionReady() | v.Encoded() | v.PartReduced():
                return self.all_rounds.reported(event, now)
            case v.BlocksReceived() | v.BlocksCompared() | v.CopiesCompared():
                self.all_rounds.checked(event)
            case v.RoundApplied(stamp=stamp, state_digest=digest):
                rounds = self.rounds[stamp.fragment]
                if rounds.applying != stamp:
                    return []  # It is of a lineage that a Restore has ended.
                return [
                    *rounds.applied(stamp.round, digest),
                    *self.recovery.applied(rounds, now),
                    *self.recovery.check_digest(rounds, now),
                ]
            case v.Checkpointed(kept=kept):
                self.recovery.kept = kept
            case v.KeptAdopted():
                of = self.steps or self.rounds[event.fragment]
                return self.recovery.kept_adopted(event, of, now)
            case v.StateCopied():
                return self.state_donor.copied(event)
            case v.StateHashed():
                commands, damaged = self.recovery.hashed(event, now)
                if damaged:
                    of = self.steps.copy if self.steps else self.rounds[event.fragment]
                    of.damaged = True
                return commands
            case v.StateReceived():
                return self.state(event, now)
            case _:
                raise AssertionError(f"unknown event {event!r}")
        return []

    def accepted(self, event: v.RunAccepted) -> None:
        """The shell takes part in the run."""
        self.member_status.accepted = True
        sample_requests = self.member_status.sample_requests
        sample_requests.ahead = event.samples_ahead

    def stepped(self, event: v.StepMade | v.StepApplied | v.BaseLoaded, now: float) -> None:
        """Handle reports of the own ranks in a stepwise run."""
        steps = self.steps
        assert steps is not None, "a step was made in a run of rounds"
        match event:
            case v.StepMade():
                steps.own.made(event)
            case v.StepApplied():
                steps.applied(event)
            case v.BaseLoaded():
                if not steps.loaded(event):
                    self.recovery.ask_cut("our copy of the state is damaged", now)

    def state(self, event: v.StateReceived, now: float) -> list[c.Command]:
        """All cells of a fragment's state have arrived."""
        if event.fragment >= self.run_state.fragments:
            return []
        of = self.steps or self.rounds[event.fragment]
        return self.recovery.state_received(event, of, now)

    def asked(self, peer: PeerId, message: Asked | OfTransfer, now: float) -> list[c.Command]:
        """A peer asks for state or payloads, or answers such a request."""
        match message:
            case Fetch() | FetchSteps():
                return self.fetched(peer, message)
            case BlocksWanted(stamp=stamp):
                known = self.all_rounds.rounds_of(stamp) if peer in self.run_state.members else []
                return [x for rounds in known for x in rounds.exchange.blocks_wanted(peer, message)]
            case _:
                return self.recovery.asked(peer, message, now)

    def fetched(self, peer: PeerId, message: Fetch | FetchSteps) -> list[c.Command]:
        """A peer asks for a result, or for payloads of steps."""
        if peer not in self.run_state.receivers:
            return []
        if isinstance(message, FetchSteps):
            return [x for s in self._steps for x in s.payload_fetch.give(peer, message, s.payloads)]
        stamp, part, known = message.stamp, message.part, self.all_rounds.rounds_of(message.stamp)
        return [x for rounds in known for x in rounds.exchange.fetched(peer, stamp, part)]

    def reconnected(self, peer: PeerId) -> None:
        """A new connection: messages under way are lost in both directions."""
        for part in (*self.rounds, *self._steps):
            part.forget(peer)
        self.recovery.disconnected(peer)

    def new_leader(self) -> None:
        """A new leader, or a new term: it has none of our reports."""
        self.member_status.leader_connected()
        self.all_rounds.forget_reports()
        for steps in self._steps:
            steps.forget_reports()

    def rules(self, rules: ProtocolConfig) -> None:
        self.all_rounds.use_rules(rules)
        for steps in self._steps:  # The leader acts on them at once.
            steps.reports.stall.after_s = rules.reduction_timeout_s

    @property
    def _steps(self) -> list[StepMachine]:
        """A list as `rounds`: with one element in a stepwise run, else empty."""
        return [] if self.steps is None else [self.steps]

    # Entries of the log ---------------------------------------------------------------------

    def began(self, run: e.Run, now: float) -> list[c.Command]:
        """The Run entry is known."""
        if self._began:
            return []
        self._began, self.since = True, now
        if self.me.witness:
            return [] if self.member_status.accepted else [c.CheckRun(run)]
        if self.run_state.stepwise:
            self.steps = StepMachine(self.me, self.run_state)
            if not self.member_status.accepted:
                return [c.CheckRun(run)]
            return self.steps.state_received(0, self.initial_digests[0])  # This peer founded it.
        self.all_rounds.begin()
        sample_requests = self.member_status.sample_requests
        sample_requests.anchor = self.rounds[0].work
        if not self.member_status.accepted:
            return [c.CheckRun(run)]
        for rounds, digest in zip(self.rounds, self.initial_digests, strict=True):
            rounds.version, rounds.state_digest = 0, digest  # This peer founded it.
        return []

    def restored(self, now: float) -> list[c.Command]:
        """The run went back to other versions. This peer keeps its state if it has them, or loads
        them from its checkpoint."""
        self.recovery.release_all()
        restore = self.run_state.restored
        held = tuple(Version(r.fragment, r.version, r.state_digest) for r in self.rounds)
        stays = not any(rounds.applying or rounds.damaged for rounds in self.rounds)
        # After the last round there is no work that a checkpoint would take back.
        stays = stays and restore is not None and (restore.live or self.finished)
        if restore is not None and stays and held == restore.versions:
            self.recovery.goes_on()
            return [command for rounds in self.rounds for command in rounds.voided()]
        for part in (*self.rounds, *self._steps):
            part.restored()
        return self.recovery.restored(now)

    def cut(self, index: int, cut: e.Cut, *, deadline: float, now: float) -> list[c.Command]:
        """A Cut: this peer is its receiver, or a donor, or neither."""
        if self.me.witness:
            return []  # It takes and gives no state: a false Join in its name led to the Cut.
        commands = self.recovery.cut(index, cut, deadline=deadline, now=now)
        transfer = self.catchup.transfer
        ours = transfer is not None and transfer.index == index
        for version in cut.versions if ours else ():
            of = self.steps.copy if self.steps else self.rounds[version.fragment]
            of.awaited = version.round
            # Reports from before this Cut did not count.
            (self.steps or self.rounds[version.fragment]).forget_reports()
        return commands

    def lost(self, now: float) -> None:
        """The log removed this peer, which lives: ask for a cut. The ranks' work is rebased, not
        lost."""
        if not self.catchup.asking:
            self.recovery.ask_cut("declared lost", now)

    def came(self, peer: PeerId) -> None:
        """A peer is a member now: it has its state."""
        self.recovery.release(peer)
        if peer == self.me.peer:
            # Reports about one fragment while another was being adopted did not count.
            self.all_rounds.forget_reports()

    def committed(self, commit: e.Commit, now: float) -> list[c.Command]:
        mine = self.rounds[commit.fragment : commit.fragment + 1]
        return [command for rounds in mine for command in self.recovery.check_digest(rounds, now)]

    def jumped(self, *, deadline: float, lineage: int, now: float) -> list[c.Command]:
        """A snapshot replaced entries that this peer has not applied; `lineage`: ours before it."""
        run_state, us = self.run_state, self.me.peer
        assert run_state.run is not None
        commands = self.began(run_state.run, now)
        if lineage not in (0, run_state.lineage):
            commands += self.restored(now)
        self.recovery.jumped(now)
        index, cut = run_state.cuts.get(us, (0, None))
        if cut is not None and index > self.catchup.complete:
            commands += self.cut(index, cut, deadline=deadline, now=now)
        elif us not in run_state.receivers:
            self.lost(now)
        return commands

    # Reactions ------------------------------------------------------------------------------

    def tend(self, now: float, connected: Set[PeerId]) -> list[c.Command]:
        """State transfers to this peer and from it, and ranks that can begin."""
        commands = self.recovery.advance(now, connected, accepted=self.member_status.accepted)
        training_start = self.member_status.training_start
        training_start.watch_links(now, connected)
        steps = self.steps
        if steps is not None:
            return commands + self.state_donor.advance([steps.copy.step], now)
        rounds_of_all, lacks_state = self.all_rounds.of_fragments, self.catchup.needed
        self.all_rounds.watch_state(lacks=lacks_state)
        fit = not lacks_state and not self.member_status.disk_fails
        is_member = self.member_status.is_member
        commands += training_start.start_training(rounds_of_all, now, is_member=is_member, fit=fit)
        versions = [None if rounds.applying else rounds.version for rounds in rounds_of_all]
        return commands + self.state_donor.advance(versions, now)

    def advance_rounds(
        self, now: float, connected: Set[PeerId], leader: PeerId | None
    ) -> tuple[list[c.Command], bool]:
        """Commands of the rounds of woken fragments, and whether any of them moved. `leader`:
        receiver of reports; None if there is none."""
        is_member = self.member_status.is_member
        commands, moved, behind = self.all_rounds.advance_rounds(
            now, connected, leader, is_member=is_member
        )
        if behind and not self.catchup.needed:
            self.recovery.ask_cut("results of missed rounds are gone", now)
        return commands, moved

    def make_steps(
        self, now: float, connected: Set[PeerId], leader: PeerId | None
    ) -> tuple[list[c.Command], bool]:
        """Commands of a stepwise run, and whether our status has changed. `leader` as in
        `advance_rounds`."""
        steps, catchup = self.steps, self.catchup
        joint_trainers = self.member_status.joint_trainers
        assert steps is not None, "no steps are made in a run of rounds"
        ready = joint_trainers.ready and self.member_status.accepted
        commands = steps.advance(now, connected, leader, ready=ready)
        able, lacks = joint_trainers.able, catchup.needed
        joint_trainers.able = ready and steps.able and not lacks
        if steps.behind and not lacks:
            # The steps since the state led two peers elsewhere: the state itself is wrong.
            against = self.recovery.only_donor if steps.copy.strayed else ""
            self.recovery.ask_cut("payloads of missed steps are gone", now, against=against)
        return commands, (able, lacks) != (joint_trainers.able, catchup.needed)
