"""The exchange of a fragment's open round: slices to their owners, sums, results, reports of them.

It remembers the payloads that are here and the messages that are sent. Must NOT apply a result
(fragment_rounds.py), nor decide whether the ranks' work is counted (local_work.py).
"""

from collections.abc import Set
from dataclasses import dataclass, field

from protocols.interface.commands import Command, Encode, Send, SendResult, SendSlice
from protocols.interface.events import (
    BlocksCompared,
    BlocksReceived,
    CopiesCompared,
    PartReduced,
    ResultReceived,
    SliceBegun,
    SliceReceived,
)
from protocols.messages.peer import BlocksWanted, ContributionOffered, Hold, WaitsForPeers
from protocols.rounds.contributions import Holdings, PartResult, check_contributor
from protocols.rounds.done_once import DoneOnce
from protocols.rounds.fencing import Fence
from protocols.rounds.local_work import LocalWork
from protocols.rounds.owner_checks import OwnerChecks, block_elements
from protocols.rounds.reductions import reduce, share
from protocols.rounds.retries import StallReport, accuse, disown
from protocols.state.round_plan import RoundPlan
from protocols.state.run_state import RunState
from protocols.types.ids import PeerId, Stamp
from protocols.types.rules import ProtocolConfig


@dataclass(slots=True)
class RoundExchange:
    """The exchange of one fragment, which goes on with each round."""

    me: PeerId
    fence: Fence
    run_state: RunState = field(init=False)
    work: LocalWork
    """It has this peer's contribution."""
    done: DoneOnce = field(default_factory=DoneOnce)
    stall: StallReport = field(default_factory=StallReport)
    held: Holdings = field(init=False)
    checks: OwnerChecks = field(init=False)

    def __post_init__(self) -> None:
        self.run_state = self.fence.run_state
        self.held = Holdings(self.run_state.gossip)
        self.checks = OwnerChecks(self.me)

    # Inputs ---------------------------------------------------------------------------------

    def received(self, event: SliceBegun | SliceReceived | ResultReceived, version: int) -> bool:
        """True if the payload is to be kept; `version`: the last applied round. Raises
        RemoteProtocolError for a false contributor."""
        stamp, part, sender = event.stamp, event.part, event.sender
        if not isinstance(event, ResultReceived):
            check_contributor(event.contributor, sender)
            held, begun = self.held, isinstance(event, SliceBegun)
            add = held.add_begun if begun else held.add_slice
            may = self.fence.may_slice(stamp, part, sender, self.me)
            return may and add(stamp, part, event.contributor)
        if stamp.round <= version or not self.fence.may_result(stamp, part, sender):
            return False
        return self.held.add_result(stamp, part, PartResult.from_event(event))

    def part_reduced(self, event: PartReduced) -> None:
        """Our own sum is ready, or cannot be made; ignored if its plan is void."""
        plan = self.run_state.plan(self.fence.fragment, event.stamp.round)
        if plan is not None and plan.stamp == event.stamp:
            self.held.reduced(event)

    def checked(self, event: BlocksReceived | BlocksCompared | CopiesCompared) -> bool:
        """A step of the check of the results is done. True if a next one may be possible."""
        plan = self.fence.run_state.open_plan(self.fence.fragment)
        match event:
            case BlocksReceived():
                return self.checks.blocks_received(event, plan)
            case BlocksCompared():
                self.checks.compared(event)
            case CopiesCompared():
                self.checks.copies_compared(event, plan)
        return True

    def blocks_wanted(self, peer: PeerId, asked: BlocksWanted) -> list[Command]:
        """A peer checks results with blocks that this one has."""
        run_state, fragment = self.fence.run_state, self.fence.fragment
        run, plan = run_state.run, run_state.plan(fragment, asked.stamp.round)
        if run is None or plan is None or asked.stamp.lineage != run_state.lineage:
            return []
        return self.checks.wanted(
            peer,
            asked,
            plan,
            self.work.offered(plan),
            held=self.held,
            done=self.done,
            block=block_elements(run.grain),
        )

    def fetched(self, peer: PeerId, stamp: Stamp, part: int) -> list[Command]:
        """Send a result to a peer that lacks it, if it is still here."""
        result = self.held.result(stamp, part)
        if result is None or self.run_state.gossip:
            return []
        return [SendResult(peer, stamp, part, result.contributors)]

    def forget(self, peer: PeerId) -> None:
        """The connection with this peer is new: its payloads and reports are sent again."""
        self.done.forget(peer)

    def forget_reports(self) -> None:
        """There is a new leader, or a new term: it gets all reports again."""
        self.done.forget_kinds("have", "ready", "hold", "void", "wrong")

    def use_rules(self, rules: ProtocolConfig) -> None:
        """The rules of the run."""
        self.stall.after_s = rules.reduction_timeout_s / 2
        self.checks.on = rules.check_owners

    def drop_rounds(self) -> None:
        """Drop everything about open rounds."""
        self.done, self.held = DoneOnce(), Holdings(self.run_state.gossip)
        self.stall.over()
        self.checks = OwnerChecks(self.me, on=self.checks.on)

    # Queries --------------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """The next time at which `complain` may report awaited peers."""
        return self.stall.at

    def missing(self) -> tuple[PeerId, ...]:
        """The peers that the open round waits for, as this peer sees it."""
        plan = self.run_state.open_plan(self.fence.fragment)
        if plan is None:
            return ()
        return self.held.awaited(plan, self.me) or tuple(sorted(self.checks.awaited(plan)))

    # Next actions ---------------------------------------------------------------------------

    def advance_round(
        self, plan: RoundPlan, version: int, connected: Set[PeerId], leader: PeerId | None
    ) -> list[Command]:
        """Do everything that is possible in the open round and not done yet."""
        commands = disown(plan, connected, held=self.held)
        commands += self._offer(plan, connected, leader)
        commands += reduce(plan, self.me, held=self.held, done=self.done)
        commands += accuse(plan, leader, held=self.held, done=self.done)
        receivers = self.run_state.receivers
        hear = connected & receivers.keys()
        commands += share(plan, self.me, hear, held=self.held, done=self.done)
        if plan.stamp in self.held.results:
            commands += self._hold(plan, version, connected, leader)
        return commands

    def complain(self, plan: RoundPlan | None, now: float, leader: PeerId | None) -> list[Command]:
        """Report the awaited peers, so that the leader excludes the right one. `plan`: None if no
        round is open."""
        takes_part = leader is not None and plan is not None and self.work.offered(plan) is not None
        attempt = plan.stamp if plan is not None and takes_part else None
        if not self.stall.is_slow(attempt, now) or attempt is None or leader is None:
            return []
        return [Send(leader, WaitsForPeers(attempt, self.missing()))]

    def _offer(
        self, plan: RoundPlan, connected: Set[PeerId], leader: PeerId | None
    ) -> list[Command]:
        """Encode the contribution once, and send each slice to its owner."""
        round_ = plan.stamp.round
        if self.me not in plan.counted:
            return []  # This peer is not in the roster, or only its earlier incarnation is.
        if self.work.give(round_):
            return [Encode(self.fence.fragment, round_)]
        if (given := self.work.offered(plan)) is None:
            return []
        me = given.contributor(self.me)
        commands: list[Command] = []
        if leader is not None and self.done.once(leader, round_, "ready", plan.stamp):
            commands.append(
                Send(leader, ContributionOffered(plan.stamp, me, given.samples, given.line))
            )
        view, borders = plan.stamp.view, plan.parts.borders
        for part, owner in plan.slices_of(self.me):
            if owner == self.me:
                self.held.add_slice(plan.stamp, part, me)
            elif owner in connected and self.done.once(owner, round_, "slice", view, part):
                start, stop = borders[part : part + 2]
                commands.append(SendSlice(owner, plan.stamp, part, start, stop, me))
        return commands

    def _hold(
        self, plan: RoundPlan, version: int, connected: Set[PeerId], leader: PeerId | None
    ) -> list[Command]:
        """Check the result once all of its parts are here; then report it once."""
        if version != plan.stamp.round - 1:
            # A peer holds a result only if it could apply it, so no earlier round is missing.
            return []
        deed = (leader, plan.stamp.round, "hold", plan.stamp) if leader is not None else None
        if deed is not None and self.done.is_done(*deed):
            return []
        digest = self.held.digest(plan.stamp, plan.num_parts)
        if not digest:
            return []
        terms = self.held.results[plan.stamp][0].contributors
        commands = self.checks.advance_checks(plan, terms, connected, leader, self.done)
        passed = self.checks.passed(plan)
        if deed is not None and leader is not None and passed and self.done.once(*deed):
            commands.append(Send(leader, Hold(plan.stamp, digest)))
        return commands
