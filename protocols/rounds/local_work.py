"""The ranks' work on one fragment: the state that it began from, and the contributions with it.

A contribution is counted by a commit, or its work is rebased to the new state and counted later, or
it is too old and given up. Must NOT decide what is committed (leader/decisions.py), nor when a
result is applied (fragment_rounds.py).
"""

from dataclasses import dataclass, field

from protocols.interface.commands import Command, Resume, Verdict
from protocols.interface.events import ContributionReady
from protocols.rounds.contributions import OwnContribution
from protocols.rounds.fencing import Fence
from protocols.state.round_plan import RoundPlan
from protocols.state.run_state import STALENESS_ROUNDS_MAX, RunState
from protocols.types.ids import PeerId, Stamp
from protocols.types.sample_ranges import RANGES_MAX, Samples, subtract, union

NO_RANKS = -1
VOID = -(1 << 40)
"""The base of ranks with work of a lineage that is over: older than any round."""


@dataclass(slots=True)
class LocalWork:
    """The work of this peer's ranks. `version`, in all methods: the last applied round."""

    me: PeerId
    fence: Fence
    run_state: RunState = field(init=False)
    outer_steps: int
    base: int = NO_RANKS
    """The version that the ranks' parameters started from; NO_RANKS or VOID if there is none."""
    own: OwnContribution | None = None
    """The contribution of which the ranks await the result."""
    given: OwnContribution | None = None
    """The newest encoded contribution; it outlives the ranks that made it."""
    carried: Samples = ()
    """Samples in the ranks' parameters that no round has counted; the next contribution has
    them."""
    hurried: Stamp | None = None
    """The round in which the leader asked us last to contribute early."""

    def __post_init__(self) -> None:
        self.run_state = self.fence.run_state

    # Inputs ---------------------------------------------------------------------------------

    def contribute(self, made: ContributionReady, version: int, now: float) -> list[Command]:
        """The ranks have contributed at a boundary and wait."""
        assert self.own is None, "the ranks contributed twice without a result"
        assert made.tokens > 0, "a contribution without tokens has no weight"
        if self.base == NO_RANKS:
            return []  # It is of ranks that are gone.
        seen, round_ = union(self.carried, made.samples), self.next_round
        self.own = OwnContribution.from_event(made, round_, seen, now)
        if version < 0:
            self.own.round = 0  # The ranks wait for the same state as this peer.
            return []
        # Other peers may hold some of these samples now; and a message holds only so many ranges.
        ledger = self.run_state.ledger
        ours = len(seen) <= RANGES_MAX and ledger.may_count(self.me, seen)
        if version >= self.outer_steps or not ours:
            return self.resume("anew", version)
        if round_ - 1 - self.base > STALENESS_ROUNDS_MAX:
            # Too old for that round: it is rebased to the present state, or to the next one.
            if version > self.base:
                return self.resume("rebase", version)
            self.own.round = 0
            return []
        if made.round is not None and made.round < round_:
            # The round is committed. With a contribution to the next one all others would wait
            # for our other fragments.
            self.own.round = made.round
            return self.resume("rebase", version) if version >= made.round else []
        return []

    def encoded(self, round_: int, manifest: str) -> None:
        """The contribution has a name; its bytes are the same for every attempt."""
        if self.given is not None and self.given.round == round_:
            self.given.manifest = manifest

    def start_ranks(self, version: int, *, first: bool) -> list[Command]:
        """Give newly attached ranks their first parameters."""
        self.own = None
        return self.resume("anew", version, first=first)

    def lost(self) -> None:
        """The ranks are lost, with the work that they had not contributed."""
        self.own, self.base, self.carried = None, NO_RANKS, ()

    def restored(self) -> None:
        """The run went back to another version: the ranks' work is void."""
        if self.base >= self.outer_steps and self.own is None:
            # The last round is ahead of the ranks again.
            self.own = OwnContribution(round=0, tokens=0, steps=0, since=0.0)
        self.base = NO_RANKS if self.base == NO_RANKS else VOID
        if self.own is not None:
            self.own.round = 0  # No round will count it.
        self.carried = ()

    def drop_rounds(self) -> None:
        """Drop everything about open rounds."""
        self.given = self.hurried = None

    # Queries --------------------------------------------------------------------------------

    @property
    def next_round(self) -> int:
        """The round to which the ranks may contribute next. Ranks that crashed may have contributed
        to the open round already; a peer never contributes twice to one round."""
        contributed = (known.round + 1 for known in (self.own, self.given) if known is not None)
        return max(self.fence.open_round, *contributed, 0)

    @property
    def others_wait(self) -> bool:
        """Has another peer contributed to the open round, and are we in its roster?"""
        plan, hurried = self.run_state.open_plan(self.fence.fragment), self.hurried
        if plan is None or hurried is None or self.me not in plan.counted:
            return False
        # A later view or attempt still waits for us; another lineage does not.
        here, there = plan.stamp, hurried
        return (here.lineage, here.round) == (there.lineage, there.round)

    def left(self, held: Samples) -> Samples:
        """Those of the held samples that the ranks may still draw."""
        held = subtract(held, self.own.samples if self.own is not None else self.carried)
        undecided = self.given is not None and self.given.round >= self.fence.open_round
        # A contribution of crashed ranks may still be counted.
        return subtract(held, self.given.samples) if self.given and undecided else held

    def offered(self, plan: RoundPlan) -> OwnContribution | None:
        """This peer's contribution to the round, once it has a name."""
        own = self.given
        return own if own and own.round == plan.stamp.round and own.manifest else None

    def counted(self, round_: int) -> bool:
        """Does the commit of the round count the contribution of which the ranks await the
        result?"""
        commit = self.run_state.commit(self.fence.fragment, round_)
        if commit is None or self.own is None or not self.own.manifest:
            return False
        return self.own.contributor(self.me) in commit.contributors

    # Actions --------------------------------------------------------------------------------

    def give(self, round_: int) -> bool:
        """True if the ranks' contribution to this round is to be encoded; it counts as given from
        now on."""
        if self.own is None or self.own.round != round_ or self.own is self.given:
            return False
        self.given = self.own
        return True

    def resume(self, kind: Verdict, version: int, *, first: bool = False) -> list[Command]:
        """Have the ranks go on from the present state."""
        # Work since `base` stays in the ranks' parameters unless it is too old, also the steps
        # after a counted contribution. Older commits need not be known.
        if version - self.base > STALENESS_ROUNDS_MAX:
            kind = "anew"
        # A rebase keeps the work in the parameters, and so its samples.
        self.carried = self.own.samples if self.own is not None and kind == "rebase" else ()
        self.own, self.base = None, version
        finished = version >= self.outer_steps
        return [Resume(self.fence.fragment, version, kind, first, finished)]
