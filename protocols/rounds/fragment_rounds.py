"""One peer's part in the rounds of one fragment.

The machine is level-triggered: an input only changes what is known, then `advance` does everything
that is possible and not done. So a message that comes early, twice or after a reconnect needs no
case of its own. Must NOT decide what is committed (leader/decisions.py) nor touch bytes.
"""

from collections.abc import Set
from dataclasses import dataclass, field

from protocols.interface.commands import (
    ApplyRound,
    Command,
    DropSlices,
    Encode,
    ReleaseRound,
    Resume,
    Send,
    SendResult,
    SendSlice,
    SkipRound,
    Verdict,
)
from protocols.interface.events import (
    ContributionReady,
    PartReduced,
    ResultReceived,
    SliceBegun,
    SliceReceived,
)
from protocols.messages.log_entries import Commit
from protocols.messages.peer import Have, Hold, Ready, Waiting
from protocols.rounds.contributions import Holdings, OwnContribution, PartResult, check_contributor
from protocols.rounds.done_once import DoneOnce
from protocols.rounds.fencing import Fence
from protocols.rounds.reductions import reduce, share
from protocols.rounds.retries import ResultFetch, StallReport, accuse, disown
from protocols.state.round_plan import RoundPlan
from protocols.state.run_state import KEEP_COMMITS, STALENESS_ROUNDS_MAX, RunState
from protocols.types.ids import PeerId, Stamp
from protocols.types.sample_ranges import RANGES_MAX, Samples, subtract, union

KEEP_ROUNDS = 1
"""Results are kept for so many rounds after their commit, for peers that lack them; they are freed
at once if the commit says that all hold them."""
NO_RANKS = -1
VOID = -(1 << 40)
"""The base of ranks with work of a lineage that is over: older than any round."""


@dataclass(slots=True)
class FragmentRounds:
    """The rounds of one fragment on this peer."""

    me: PeerId
    fence: Fence
    outer_steps: int
    version: int = -1
    """The last applied round; -1: there is no state yet."""
    state_digest: str = ""
    damaged: bool = False
    """The state differs from its digest: it is not reported until it is replaced."""
    base: int = NO_RANKS
    """The version that the ranks' parameters started from; NO_RANKS or VOID if there is none."""
    own: OwnContribution | None = None
    """The contribution of which the ranks await the result."""
    given: OwnContribution | None = None
    """The newest encoded contribution; it outlives the ranks that made it."""
    carried: Samples = ()
    """Samples in the ranks' parameters that no round has counted; the next contribution has
    them."""
    applying: Stamp | None = None
    """The attempt of the outer step that is being made."""
    awaited: int | None = None
    """The round of the state that a transfer brings; it may be an earlier one."""
    done: DoneOnce = field(default_factory=DoneOnce)
    hurried: Stamp | None = None
    """The round in which the leader asked us last to contribute early."""
    moved: bool = False  # A contribution or an outer step was made since the last check.
    stall: StallReport = field(default_factory=StallReport)
    fetching: ResultFetch = field(default_factory=ResultFetch)
    fragment: int = field(init=False)
    run_state: RunState = field(init=False)
    held: Holdings = field(init=False)

    def __post_init__(self) -> None:
        self.fragment, self.run_state = self.fence.fragment, self.fence.run_state
        self.held = Holdings(self.run_state.gossip)

    # Inputs ---------------------------------------------------------------------------------

    def contribute(self, made: ContributionReady, now: float) -> list[Command]:
        """The ranks have contributed at a boundary and wait."""
        assert self.own is None, "the ranks contributed twice without a result"
        assert made.tokens > 0, "a contribution without tokens has no weight"
        if self.base == NO_RANKS:
            return []  # It is of ranks that are gone.
        seen, round_ = union(self.carried, made.samples), self.next_round
        self.own = OwnContribution.of(made, round_, seen, now)
        if self.version < 0:
            self.own.round = 0  # The ranks wait for the same state as this peer.
            return []
        # Other peers may hold some of these samples now; and a message holds only so many ranges.
        ours = len(seen) <= RANGES_MAX and self.run_state.ledger.may_count(self.me, seen)
        if self.finished or not ours:
            return self._resume("anew")
        if round_ - 1 - self.base > STALENESS_ROUNDS_MAX:
            # Too old for that round: it is rebased to the present state, or to the next one.
            if self.version > self.base:
                return self._resume("rebase")
            self.own.round = 0
            return []
        if made.round is not None and made.round < round_:
            # The round is committed. With a contribution to the next one all others would wait
            # for our other fragments.
            self.own.round = made.round
            return self._resume("rebase") if self.version >= made.round else []
        return []

    def encoded(self, round_: int, manifest: str) -> None:
        """The contribution has a name; its bytes are the same for every attempt."""
        if self.given is not None and self.given.round == round_:
            self.given.manifest = manifest

    def received(self, event: SliceBegun | SliceReceived | ResultReceived) -> bool:
        """True if the payload is to be kept. Raises RemoteProtocolError for a false contributor."""
        stamp, part, sender = event.stamp, event.part, event.sender
        if not isinstance(event, ResultReceived):
            check_contributor(event.contributor, sender)
            held, begun = self.held, isinstance(event, SliceBegun)
            add = held.add_begun if begun else held.add_slice
            may = self.fence.may_slice(stamp, part, sender, self.me)
            return may and add(stamp, part, event.contributor)
        if stamp.round <= self.version or not self.fence.may_result(stamp, part, sender):
            return False
        return self.held.add_result(stamp, part, PartResult.of(event))

    def part_reduced(self, event: PartReduced) -> None:
        """Our own sum is ready, or cannot be made; ignored if its plan is void."""
        plan = self.run_state.plan(self.fragment, event.stamp.round)
        if plan is not None and plan.stamp == event.stamp:
            self.held.reduced(event)

    def applied(self, round_: int, digest: str) -> list[Command]:
        """The outer step is made: the ranks go on if they wait for it."""
        assert self.applying, "a round was applied without a command"
        assert round_ == self.version + 1, "rounds are applied in order"
        self.applying = None
        released, resumed = self._moved(round_, digest), list[Command]()
        if self.own is not None and (self.own.round <= round_ or self.finished):
            resumed = self._resume("counted" if self._counted(round_) else "rebase")
        return resumed + released  # The result comes first, since the ranks wait for it.

    def state_received(self, round_: int, digest: str) -> list[Command]:
        """A transfer replaced the state; waiting ranks are rebased to it."""
        assert not self.applying, "a state is adopted between two rounds"
        skipped = range(self.version + 1, round_ + 1)
        self.awaited = None
        commands = self._moved(round_, digest)
        if self.own is None or (self.own.round > round_ and not self.finished):
            return commands  # Its round may still count it: only the commit can tell.
        # The new state contains work that a skipped round counted; other work stays local.
        return commands + self._resume("counted" if any(map(self._counted, skipped)) else "rebase")

    def start(self, *, first: bool) -> list[Command]:
        """Give newly attached ranks their first parameters."""
        self.own = None
        return self._resume("anew", first=first)

    def trainers_lost(self) -> None:
        """The ranks are lost, with the work that they had not contributed. The outer state is
        not."""
        self.own, self.base, self.carried = None, NO_RANKS, ()

    def forget(self, peer: PeerId) -> None:
        """The connection with this peer is new: its payloads and reports are sent again."""
        self.done.forget(peer)

    def forget_reports(self) -> None:
        """There is a new leader, or a new term: it gets all reports again."""
        self.done.forget_kinds("have", "ready", "hold", "void")

    def restored(self) -> None:
        """The run went back to other versions: state, payloads and the ranks' work are void.

        The ranks go on from the restored state when they wait for a result next.
        """
        self.version, self.state_digest, self.damaged = -1, "", False
        if (
            self.base >= self.outer_steps and self.own is None
        ):  # The last round is ahead of them again.
            self.own = OwnContribution(round=0, tokens=0, steps=0, since=0.0)
        self.base = NO_RANKS if self.base == NO_RANKS else VOID
        if self.own is not None:
            self.own.round = 0  # No round will count it.
        self.applying, self.carried = None, ()
        self._drop_rounds()

    def voided(self) -> list[Command]:
        """The run went back to the state that this peer has. No open round counts: the work stays
        in the ranks' parameters and goes into a later round."""
        self._drop_rounds()
        return self._resume("rebase") if self.own is not None else []

    def _drop_rounds(self) -> None:
        """Drop everything about open rounds."""
        self.given = self.awaited = self.hurried = None
        self.done, self.held = DoneOnce(), Holdings(self.run_state.gossip)
        self.fetching.start_anew()
        self.stall.over()

    def fetched(self, peer: PeerId, stamp: Stamp, part: int) -> list[Command]:
        """Send a result to a peer that lacks it, if it is still here."""
        result = self.held.result(stamp, part)
        if result is None or self.run_state.gossip:
            return []
        return [SendResult(peer, stamp, part, result.contributors)]

    # Queries --------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self.version >= self.outer_steps

    @property
    def needs_no_steps(self) -> bool:
        """No further inner step can count: the last result is here, or the contribution to the last
        round is on its way."""
        return self.finished or (self.own is not None and self.version + 1 >= self.outer_steps)

    @property
    def next_round(self) -> int:
        """The round to which the ranks may contribute next. Ranks that crashed may have contributed
        to the open round already; a peer never contributes twice to one round."""
        contributed = (known.round + 1 for known in (self.own, self.given) if known is not None)
        return max(self.fence.open_round, *contributed, 0)

    @property
    def others_wait(self) -> bool:
        """Has another peer contributed to the open round, and are we in its roster?"""
        plan, hurried = self.run_state.open_plan(self.fragment), self.hurried
        if plan is None or hurried is None or not self.takes_part(plan):
            return False
        # A later view or attempt still waits for us; another lineage does not.
        here, there = plan.stamp, hurried
        return (here.lineage, here.round) == (there.lineage, there.round)

    @property
    def behind(self) -> bool:
        """Missing results cannot be had any more: a transfer is needed."""
        if self.version < 0:
            return False
        committed = self.run_state.committed(self.fragment)
        gone = committed > self.version and not self.run_state.commit(
            self.fragment, self.version + 1
        )
        return gone or self.fetching.hopeless

    @property
    def moves(self) -> bool:
        """An outer step is being made, or will be once the result is here."""
        lacks = self.run_state.committed(self.fragment) > self.version
        return bool(self.applying) or (lacks and not self.behind)

    @property
    def deadline(self) -> float:
        """The next time at which `advance` has to run without an event."""
        return min(self.fetching.at, self.stall.at)

    def left(self, held: Samples) -> Samples:
        """Those of the held samples that the ranks may still draw."""
        held = subtract(held, self.own.samples if self.own is not None else self.carried)
        undecided = self.given is not None and self.given.round >= self.fence.open_round
        # A contribution of crashed ranks may still be counted.
        return subtract(held, self.given.samples) if self.given and undecided else held

    def missing(self) -> tuple[PeerId, ...]:
        """The peers that the open round waits for, as this peer sees it."""
        plan = self.run_state.open_plan(self.fragment)
        return self.held.awaited(plan, self.me) if plan is not None else ()

    # Next actions ---------------------------------------------------------------------------

    def advance(self, now: float, connected: Set[PeerId], leader: PeerId | None) -> list[Command]:
        """Do everything that is possible and not done yet."""
        commands = self._forget_unusable()
        if self.version < 0:
            return commands
        commands += self._apply(now, connected)
        # Before Hold: at a commit every peer that holds the result has reported its state.
        hears = leader if not self.damaged else None
        if hears is not None and self.done.once(hears, self.version, "have"):
            have = Have(self.run_state.lineage, self.fragment, self.version, self.state_digest)
            commands.append(Send(hears, have))
        plan = self.run_state.open_plan(self.fragment)
        if plan is not None and not self.finished:
            commands += disown(plan, connected, held=self.held)
            commands += self._offer(plan, connected, leader)
            commands += reduce(plan, self.me, held=self.held, done=self.done)
            commands += accuse(plan, leader, held=self.held, done=self.done)
            receivers = connected & self.run_state.receivers.keys()
            commands += share(plan, self.me, receivers, held=self.held, done=self.done)
            if plan.stamp in self.held.results:
                commands += self._hold(plan, leader)
        return commands + self._complain(plan, now, leader)

    def _offer(
        self, plan: RoundPlan, connected: Set[PeerId], leader: PeerId | None
    ) -> list[Command]:
        """Encode the contribution once, and send each slice to its owner."""
        round_ = plan.stamp.round
        if not self.takes_part(plan):
            return []
        if self.own is not None and self.own.round == round_ and self.own is not self.given:
            self.given, self.moved = self.own, True
            return [Encode(self.fragment, round_)]
        if (given := self._offered(plan)) is None:
            return []
        me = given.contributor(self.me)
        commands: list[Command] = []
        if leader is not None and self.done.once(leader, round_, "ready", plan.stamp):
            commands.append(Send(leader, Ready(plan.stamp, me, given.samples, given.line)))
        view, borders = plan.stamp.view, plan.parts.borders
        for part, owner in plan.slices_of(self.me):
            if owner == self.me:
                self.held.add_slice(plan.stamp, part, me)
            elif owner in connected and self.done.once(owner, round_, "slice", view, part):
                start, stop = borders[part : part + 2]
                commands.append(SendSlice(owner, plan.stamp, part, start, stop, me))
        return commands

    def _hold(self, plan: RoundPlan, leader: PeerId | None) -> list[Command]:
        if leader is None or self.version != plan.stamp.round - 1:
            # A peer holds a result only if it could apply it, so no earlier round is missing.
            return []
        deed = (leader, plan.stamp.round, "hold", plan.stamp)
        if self.done.is_done(*deed):
            return []
        digest = self.held.digest(plan.stamp, plan.num_parts)
        if digest and self.done.once(*deed):
            return [Send(leader, Hold(plan.stamp, digest))]
        return []

    def _complain(self, plan: RoundPlan | None, now: float, leader: PeerId | None) -> list[Command]:
        """Report the awaited peers, so that the leader excludes the right one."""
        takes_part = leader is not None and plan is not None and self._offered(plan) is not None
        attempt = plan.stamp if plan is not None and takes_part and not self.finished else None
        if not self.stall.is_slow(attempt, now) or attempt is None or leader is None:
            return []
        return [Send(leader, Waiting(attempt, self.missing()))]

    def takes_part(self, plan: RoundPlan) -> bool:
        """Is this peer in the roster, in this incarnation?"""
        return self.me in plan.counted

    def _offered(self, plan: RoundPlan) -> OwnContribution | None:
        """This peer's contribution to the round, once it has a name."""
        own = self.given
        return own if own and own.round == plan.stamp.round and own.manifest else None

    def _apply(self, now: float, connected: Set[PeerId]) -> list[Command]:
        commit = self.run_state.commit(self.fragment, self.version + 1)
        if commit is None or self.applying:
            self.fetching.over()
            return []
        stamp = self.fence.stamp_of(commit)
        if self.held.digest(stamp, len(commit.borders) - 1) != commit.result_digest:
            if self.run_state.gossip:
                return self._pass_by(commit, stamp)
            holders = sorted(connected & self.run_state.members.keys())
            return self.fetching.fetch(now, commit, stamp, held=self.held, holders=holders)
        self.applying, self.moved = stamp, True
        self.fetching.over()
        self.held.drop_slices(commit.round)
        return [
            DropSlices(self.fragment, commit.round),
            ApplyRound(stamp, commit.borders, self._counted(commit.round)),
        ]

    def _pass_by(self, commit: Commit, stamp: Stamp) -> list[Command]:
        """In a gossip run, no other peer has our result of this round."""
        if any(term.peer == self.me for term in commit.contributors):
            # An earlier incarnation contributed, or the log had removed us.
            self.fetching.nobody_has_it()
            return []
        self.applying, self.moved = stamp, True
        return [SkipRound(stamp)]

    def _moved(self, round_: int, digest: str) -> list[Command]:
        """The state has changed."""
        self.version, self.state_digest = round_, digest
        self.fetching.start_anew()
        self.held.drop_slices(round_)
        self.done.drop_before(round_)
        needed = round_ if self.awaited is None else min(round_, self.awaited)
        commit = self.run_state.commit(self.fragment, needed)
        over = needed if commit is not None and commit.held_by_all else needed - KEEP_ROUNDS
        self.held.drop_results(over)
        return [ReleaseRound(self.fragment, over)]

    def _forget_unusable(self) -> list[Command]:
        """Drop results that the awaited state will contain."""
        oldest = self.run_state.committed(self.fragment) - KEEP_COMMITS
        if not self.held.drop_results(oldest):
            return []
        return [ReleaseRound(self.fragment, oldest)]

    def _resume(self, kind: Verdict, *, first: bool = False) -> list[Command]:
        # Work since `base` stays in the ranks' parameters unless it is too old, also the steps
        # after a counted contribution. Older commits need not be known.
        if self.version - self.base > STALENESS_ROUNDS_MAX:
            kind = "anew"
        # A rebase keeps the work in the parameters, and so its samples.
        self.carried = self.own.samples if self.own is not None and kind == "rebase" else ()
        self.own, self.base = None, self.version
        return [Resume(self.fragment, self.version, kind, first, self.finished)]

    def _counted(self, round_: int) -> bool:
        commit = self.run_state.commit(self.fragment, round_)
        if commit is None or self.own is None or not self.own.manifest:
            return False
        return self.own.contributor(self.me) in commit.contributors
