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
from protocols.messages.peer import (
    BlocksWanted,
    Fetch,
    FetchLeaves,
    FetchState,
    FetchSteps,
    Kept,
    Leaves,
    NoState,
)
from protocols.peer.member_status import MemberStatus
from protocols.rounds.fencing import Fence
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.rounds.retries import ResultRequest
from protocols.state.run_state import RunState
from protocols.steps.step_machine import StepMachine
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, Stamp, Version
from protocols.types.rules import ProtocolConfig
from protocols.wire.codec import one_line

Asked = Fetch | FetchSteps | FetchState | FetchLeaves | BlocksWanted
Given = NoState | Leaves


class Participant:
    """The part of one peer; its methods return commands. `rounds` has an element for each fragment
    once the run is known. A witness has neither rounds nor steps, only the log."""

    def __init__(
        self, me: Identity, run_state: RunState, *, founds: bool, kept: Kept | None
    ) -> None:
        self.me = me
        self.run_state = run_state
        self.rounds: list[FragmentRounds] = []
        self.asking: list[ResultRequest] = []
        """One for each element of `rounds`."""
        self.steps: StepMachine | None = None
        """In a stepwise run, in place of `rounds`."""
        self.woken: set[int] = set()
        """Fragments with rounds in which an action may have become possible."""
        self.member_status = MemberStatus(me, run_state, founds=founds, kept=kept)
        self.catchup = self.member_status.catchup
        self.state_donor = self.member_status.state_donor
        self.sample_requests = self.member_status.sample_requests
        self._began = False
        self.since = 0.0
        """When this peer read the Run entry; shown to people."""
        self._lacked = False
        """At the last pass the state was missing or wrong."""
        self._released: list[c.Command] = []
        """Commands that free copies which no receiver needs any more."""
        self.initial_digests: tuple[str, ...] = ()
        """Digests of the initial state, if this peer founded the run."""

    # Queries --------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Has this peer applied every fragment's last round? A witness only reads of it."""
        if self.me.witness:
            return self.run_state.is_over
        if self.steps is not None:
            return self.steps.finished
        return bool(self.rounds) and all(rounds.finished for rounds in self.rounds)

    @property
    def state_deadline(self) -> float:
        """The next time at which a state transfer needs a pass."""
        transfers = self.catchup.deadline, self.state_donor.deadline
        return min(*transfers, self.member_status.deadline)

    @property
    def rounds_deadline(self) -> float:
        deadline = NEVER
        for rounds, asking in zip(self.rounds, self.asking, strict=True):
            deadline = min(deadline, rounds.deadline, asking.at)
        return deadline

    def waits_for(self) -> set[PeerId]:
        """The peers that sum our contribution or give us a state; in a stepwise run the roster."""
        transfer = self.catchup.transfer
        needed = set(transfer.givers) if transfer is not None else set[PeerId]()
        for rounds in self.rounds:
            plan = (
                self.run_state.open_plan(rounds.fragment) if rounds.work.own is not None else None
            )
            if plan is not None:
                needed.update(plan.makers_for(self.me.peer))
                needed.update(rounds.exchange.checks.awaited(plan))
        if self.steps is not None and self.run_state.views:
            needed.update(self.run_state.views[-1].roster)
        return needed - {self.me.peer}

    # Events ---------------------------------------------------------------------------------

    def local(self, event: v.Event, now: float) -> list[c.Command]:
        """Handle reports of the own ranks and the own arithmetic."""
        member_status = self.member_status
        match event:
            case v.TrainersReady():
                member_status.joint_trainers.ready = True
            case v.TrainersAble():
                member_status.joint_trainers.trained = True
            case v.TrainersStalled(why=why):
                member_status.joint_trainers.stalled = one_line(why)
            case v.TrainersMoving():
                member_status.joint_trainers.stalled = ""
            case v.TrainersLost():
                member_status.joint_trainers.lost(one_line(event.why))
                for part in (*self.rounds, *self._steps):
                    part.trainers_lost()
            case v.ContributionReady():
                rounds = self.rounds[event.fragment]
                return rounds.work.contribute(event, rounds.version, now)
            case v.Encoded():
                self.rounds[event.fragment].work.encoded(event.round, event.manifest)
                self.woken.add(event.fragment)
            case v.PartReduced(stamp=stamp):
                self.rounds[stamp.fragment].exchange.part_reduced(event)
                self.woken.add(stamp.fragment)
            case v.BlocksReceived() | v.BlocksCompared() | v.CopiesCompared():
                if self.rounds[event.stamp.fragment].exchange.checked(event):
                    self.woken.add(event.stamp.fragment)
            case v.RoundApplied(stamp=stamp, state_digest=digest):
                rounds = self.rounds[stamp.fragment]
                if rounds.applying != stamp:
                    return []  # It is of a lineage that a Restore has ended.
                return [
                    *rounds.applied(stamp.round, digest),
                    *member_status.applied(rounds, now),
                    *member_status.check_digest(rounds, now),
                ]
            case v.Checkpointed(kept=kept):
                member_status.kept = kept
            case v.KeptAdopted():
                of = self.steps or self.rounds[event.fragment]
                return member_status.kept_adopted(event, of, now)
            case v.StateCopied():
                return member_status.state_donor.copied(event)
            case v.StateHashed():
                commands, damaged = member_status.hashed(event, now)
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
        self.sample_requests.ahead = event.samples_ahead

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
                    self.member_status.ask_cut("our copy of the state is damaged", now)

    def payload(self, event: v.SliceBegun | v.SliceReceived | v.ResultReceived) -> list[c.Command]:
        """A payload of another peer: keep it, or drop and count it (I3)."""
        known = event.sender in self.run_state.receivers
        all_rounds = self.rounds_of(event.stamp) if known else []
        if not any(rounds.exchange.received(event, rounds.version) for rounds in all_rounds):
            return [c.Discard(event)]
        fragment = event.stamp.fragment
        plan, held = self.run_state.open_plan(fragment), self.rounds[fragment].exchange.held
        if held.wakes(event, plan, self.me.peer):
            self.woken.add(fragment)
        return []

    def state(self, event: v.StateReceived, now: float) -> list[c.Command]:
        """All cells of a fragment's state have arrived."""
        if event.fragment >= self.run_state.fragments:
            return []
        return self.member_status.state_received(
            event, self.steps or self.rounds[event.fragment], now
        )

    def hurried(self, stamp: Stamp) -> None:
        """The leader asks for an early contribution."""
        for rounds in self.rounds_of(stamp):
            rounds.work.hurried = stamp

    def asked(self, peer: PeerId, message: Asked | Given, now: float) -> list[c.Command]:
        """A peer asks for state or payloads, or answers such a request."""
        transfer = self.catchup.transfer
        match message:
            case Fetch() | FetchSteps():
                return self.fetched(peer, message)
            case BlocksWanted(stamp=stamp):
                known = self.rounds_of(stamp) if peer in self.run_state.members else []
                return [x for rounds in known for x in rounds.exchange.blocks_wanted(peer, message)]
            case FetchState() | FetchLeaves():
                return self.state_donor.asked(peer, message, now)
            case NoState(index=index) if transfer is not None and transfer.index == index:
                transfer.no_state(peer)
            case Leaves() if transfer is not None:
                return transfer.leaves_received(peer, message, now)
            case NoState() | Leaves():
                pass  # It is of an earlier cut.
        return []

    def cell(self, event: v.CellReceived, now: float) -> list[c.Command]:
        """A cell of the awaited state has arrived."""
        transfer = self.catchup.transfer
        return transfer.cell_received(event, now) if transfer is not None else []

    def fetched(self, peer: PeerId, message: Fetch | FetchSteps) -> list[c.Command]:
        """A peer asks for a result, or for payloads of steps."""
        if peer not in self.run_state.receivers:
            return []
        if isinstance(message, FetchSteps):
            return [
                command
                for steps in self._steps
                for command in steps.payload_fetch.give(peer, message, steps.payloads)
            ]
        stamp, part = message.stamp, message.part
        return [x for r in self.rounds_of(stamp) for x in r.exchange.fetched(peer, stamp, part)]

    def reconnected(self, peer: PeerId) -> None:
        """A new connection: messages under way are lost in both directions."""
        for part in (*self.rounds, *self._steps):
            part.forget(peer)
        self.disconnected(peer)

    def disconnected(self, peer: PeerId) -> None:
        """The connection ended: answers under way are lost, and requests must be repeated."""
        self.state_donor.disconnected(peer)
        transfer = self.catchup.transfer
        if transfer is not None:
            transfer.disconnected(peer)

    def new_leader(self) -> None:
        """A new leader, or a new term: it has none of our reports."""
        self.member_status.leader_connected()
        for rounds in self.rounds:
            rounds.forget_reports()
        for steps in self._steps:
            steps.forget_reports()

    def rounds_of(self, stamp: Stamp) -> list[FragmentRounds]:
        return self.rounds[stamp.fragment : stamp.fragment + 1]

    def rules(self, rules: ProtocolConfig) -> None:
        for rounds in self.rounds:
            exchange = rounds.exchange
            exchange.follow(rules)
        for asking in self.asking:
            asking.after_s = rules.reduction_timeout_s / 2
        for steps in self._steps:  # The leader acts on them at once.
            steps.stall.after_s = rules.reduction_timeout_s

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
        self.rounds = [
            FragmentRounds(self.me.peer, Fence(self.run_state, f), run.outer_steps)
            for f in range(self.run_state.fragments)
        ]
        self.asking = [ResultRequest() for _ in self.rounds]
        self.sample_requests.anchor = self.rounds[0].work
        if not self.member_status.accepted:
            return [c.CheckRun(run)]
        for rounds, digest in zip(self.rounds, self.initial_digests, strict=True):
            rounds.version, rounds.state_digest = 0, digest  # This peer founded it.
        return []

    def restored(self, now: float) -> list[c.Command]:
        """The run went back to other versions. This peer keeps its state if it has them, or loads
        them from its checkpoint."""
        self._released += self.state_donor.drop_all()
        restore = self.run_state.restored
        held = tuple(Version(r.fragment, r.version, r.state_digest) for r in self.rounds)
        stays = not any(rounds.applying or rounds.damaged for rounds in self.rounds)
        # After the last round there is no work that a checkpoint would take back.
        stays = stays and restore is not None and (restore.live or self.finished)
        if restore is not None and stays and held == restore.versions:
            self.member_status.goes_on()
            return [command for rounds in self.rounds for command in rounds.voided()]
        for part in (*self.rounds, *self._steps):
            part.restored()
        return self.member_status.restored(now)

    def cut(self, index: int, cut: e.Cut, *, deadline: float, now: float) -> list[c.Command]:
        """A Cut: this peer is its receiver, or a donor, or neither."""
        if self.me.witness:
            return []  # It takes and gives no state: a false Join in its name led to the Cut.
        commands = self.member_status.cut(index, cut, deadline=deadline, now=now)
        transfer = self.catchup.transfer
        ours = transfer is not None and transfer.index == index
        for version in cut.versions if ours else ():
            of = self.steps or self.rounds[version.fragment]
            of.awaited = version.round
            # Reports from before this Cut did not count.
            of.forget_reports()
        return commands

    def lost(self, now: float) -> None:
        """The log removed this peer, which lives: ask for a cut. The ranks' work is rebased, not
        lost."""
        if not self.catchup.asking:
            self.member_status.ask_cut("declared lost", now)

    def came(self, peer: PeerId) -> None:
        """A peer is a member now: it has its state."""
        self._released += self.state_donor.drop(peer)
        for rounds in self.rounds if peer == self.me.peer else ():
            # Reports about one fragment while another was being adopted did not count.
            rounds.forget_reports()

    def gone(self, peer: PeerId, now: float) -> None:
        """A peer left the run."""
        self._released += self.state_donor.drop(peer)
        transfer = self.catchup.transfer
        if transfer is not None:
            transfer.gone(peer)

    def committed(self, commit: e.Commit, now: float) -> list[c.Command]:
        mine = self.rounds[commit.fragment : commit.fragment + 1]
        return [
            command for rounds in mine for command in self.member_status.check_digest(rounds, now)
        ]

    def jumped(self, *, deadline: float, lineage: int, now: float) -> list[c.Command]:
        """A snapshot replaced entries that this peer has not applied; `lineage`: ours before it."""
        run_state, us = self.run_state, self.me.peer
        assert run_state.run is not None
        commands = self.began(run_state.run, now)
        if lineage not in (0, run_state.lineage):
            commands += self.restored(now)
        is_member = self.member_status.is_member
        self._released += self.state_donor.jumped(is_member=is_member, now=now)
        index, cut = run_state.cuts.get(us, (0, None))
        if cut is not None and index > self.catchup.complete:
            commands += self.cut(index, cut, deadline=deadline, now=now)
        elif us not in run_state.receivers:
            self.lost(now)
        return commands

    # Reactions ------------------------------------------------------------------------------

    def tend(self, now: float, connected: Set[PeerId]) -> list[c.Command]:
        """State transfers to this peer and from it, and ranks that can begin."""
        commands, self._released = self._released + self.member_status.adopt_kept(), []
        commands += self.member_status.request(now, connected)
        self.member_status.watch_links(now, connected)
        steps = self.steps
        if steps is not None:
            return commands + self.state_donor.advance([steps.copy.step], now)
        lacked, self._lacked = self._lacked, self.catchup.needed
        if lacked and not self._lacked:
            # Reports about a state before all of it was here did not count.
            for rounds in self.rounds:
                rounds.damaged = False
                rounds.forget_reports()
        commands += self.member_status.start_training(self.rounds, now)
        versions = [None if rounds.applying else rounds.version for rounds in self.rounds]
        return commands + self.state_donor.advance(versions, now)

    def advance_rounds(
        self, now: float, connected: Set[PeerId], leader: PeerId | None
    ) -> tuple[list[c.Command], bool]:
        """Commands of the rounds of woken fragments, and whether any of them moved. `leader`:
        receiver of reports; None if there is none."""
        commands, moved, behind = list[c.Command](), False, False
        for fragment in sorted(self.woken):
            rounds = self.rounds[fragment]
            given, applying = rounds.work.given, rounds.applying
            commands += rounds.advance(now, connected, leader)
            moved = moved or rounds.work.given is not given or rounds.applying is not applying
            plan = rounds.plan_of_others if self.member_status.is_member else None
            ask = self.asking[fragment].ask
            commands += ask(now, plan, held=rounds.exchange.held, connected=connected)
            behind = behind or rounds.behind
        self.woken.clear()
        # If all others ask for a state as well, the run goes back to the versions that we have
        # reported: a step that is being made would be undone, with the ranks' work since.
        behind = behind and not self.catchup.needed
        if behind and not any(rounds.moves for rounds in self.rounds):
            self.member_status.ask_cut("results of missed rounds are gone", now)
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
            against = self.member_status.only_donor if steps.copy.strayed else ""
            self.member_status.ask_cut("payloads of missed steps are gone", now, against=against)
        return commands, (able, lacks) != (joint_trainers.able, catchup.needed)
