"""One peer's part in the rounds of one fragment.

The machine is level-triggered: an input only changes what is known, then `advance` does everything
that is possible and not done. So a message that comes early, twice or after a reconnect needs no
case of its own. Must NOT decide what is committed (leader/decisions.py) nor touch bytes.
"""

from collections.abc import Set

from protocols.interface.commands import (
    ApplyRound,
    Command,
    DropSlices,
    ReleaseRound,
    Send,
    SkipRound,
)
from protocols.messages.log_entries import Commit
from protocols.messages.peer import Have
from protocols.rounds.fencing import Fence
from protocols.rounds.local_work import LocalWork
from protocols.rounds.retries import ResultFetch
from protocols.rounds.round_exchange import RoundExchange
from protocols.state.round_plan import RoundPlan
from protocols.state.run_state import KEEP_COMMITS
from protocols.types.ids import PeerId, Stamp

KEEP_ROUNDS = 1
"""Results are kept for so many rounds after their commit, for peers that lack them; they are freed
at once if the commit says that all hold them."""


class FragmentRounds:
    """The rounds of one fragment on this peer: its version of the state, the ranks' work on it, and
    the exchange of the open round."""

    __slots__ = (
        *("me", "outer_steps", "fragment", "run_state", "work", "exchange", "fetching"),
        *("version", "state_digest", "damaged", "applying", "awaited"),
    )

    def __init__(self, me: PeerId, fence: Fence, outer_steps: int) -> None:
        self.me, self.outer_steps = me, outer_steps
        self.fragment, self.run_state = fence.fragment, fence.run_state
        self.work = LocalWork(me, fence, outer_steps)
        self.exchange = RoundExchange(me, fence, self.work)
        self.fetching = ResultFetch()
        self.version = -1
        """The last applied round; -1: there is no state yet."""
        self.state_digest = ""
        self.damaged = False
        """The state differs from its digest: it is not reported until it is replaced."""
        self.applying: Stamp | None = None
        """The attempt of the outer step that is being made."""
        self.awaited: int | None = None
        """The round of the state that a transfer brings; it may be an earlier one."""

    # Inputs ---------------------------------------------------------------------------------

    def applied(self, round_: int, digest: str) -> list[Command]:
        """The outer step is made: the ranks go on if they wait for it."""
        assert self.applying, "a round was applied without a command"
        assert round_ == self.version + 1, "rounds are applied in order"
        self.applying = None
        released, resumed, work = self._moved(round_, digest), list[Command](), self.work
        if work.own is not None and (work.own.round <= round_ or self.finished):
            resumed = work.resume("counted" if work.counted(round_) else "rebase", round_)
        return resumed + released  # The result comes first, since the ranks wait for it.

    def state_received(self, round_: int, digest: str) -> list[Command]:
        """A transfer replaced the state; waiting ranks are rebased to it."""
        assert not self.applying, "a state is adopted between two rounds"
        skipped, work = range(self.version + 1, round_ + 1), self.work
        self.awaited = None
        commands = self._moved(round_, digest)
        self.fetching.ask_now()
        if work.own is None or (work.own.round > round_ and not self.finished):
            return commands  # Its round may still count it: only the commit can tell.
        # The new state contains work that a skipped round counted; other work stays local.
        kind = "counted" if any(map(work.counted, skipped)) else "rebase"
        return commands + work.resume(kind, round_)

    def trainers_lost(self) -> None:
        """The ranks are lost, with the work that they had not contributed. The outer state is
        not."""
        self.work.lost()

    def forget(self, peer: PeerId) -> None:
        """The connection with this peer is new: its payloads and reports are sent again."""
        self.exchange.forget(peer)

    def forget_reports(self) -> None:
        """There is a new leader, or a new term: it gets all reports again."""
        self.exchange.forget_reports()

    def restored(self) -> None:
        """The run went back to other versions: state, payloads and the ranks' work are void.

        The ranks go on from the restored state when they wait for a result next.
        """
        self.version, self.state_digest, self.damaged = -1, "", False
        self.applying = None
        self.work.restored()
        self._drop_rounds()

    def voided(self) -> list[Command]:
        """The run went back to the state that this peer has. No open round counts: the work stays
        in the ranks' parameters and goes into a later round."""
        self._drop_rounds()
        return self.work.resume("rebase", self.version) if self.work.own is not None else []

    def _drop_rounds(self) -> None:
        """Drop everything about open rounds."""
        self.awaited = None
        self.work.drop_rounds()
        self.exchange.drop_rounds()
        self.fetching.start_anew()

    # Queries --------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self.version >= self.outer_steps

    @property
    def needs_no_steps(self) -> bool:
        """No further inner step of the ranks can count: they have the last result, or their
        contribution to the last round is on its way."""
        waits = self.work.own is not None and self.version + 1 >= self.outer_steps
        return waits or self.work.base >= self.outer_steps

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
        return min(self.fetching.at, self.exchange.deadline)

    @property
    def plan_of_others(self) -> RoundPlan | None:
        """The plan of the open round, if we could hold its result and it is not sent to us
        again."""
        plan, held = self.run_state.open_plan(self.fragment), self.exchange.held
        if plan is None or self.version != plan.stamp.round - 1 or plan.pairs:
            return None
        comes = self.me in plan.counted and held.usurped != plan.stamp
        return None if comes or self.finished else plan

    # Next actions ---------------------------------------------------------------------------

    def advance(self, now: float, connected: Set[PeerId], leader: PeerId | None) -> list[Command]:
        """Do everything that is possible and not done yet."""
        commands, exchange = self._forget_unusable(), self.exchange
        if self.version < 0:
            return commands
        commands += self._apply(now, connected)
        # Before Hold: at a commit every peer that holds the result has reported its state.
        hears = leader if not self.damaged else None
        if hears is not None and exchange.done.once(hears, self.version, "have"):
            have = Have(self.run_state.lineage, self.fragment, self.version, self.state_digest)
            commands.append(Send(hears, have))
        plan = self.run_state.open_plan(self.fragment) if not self.finished else None
        if plan is not None:
            commands += exchange.advance_round(plan, self.version, connected, leader)
        return commands + exchange.complain(plan, now, leader)

    def _apply(self, now: float, connected: Set[PeerId]) -> list[Command]:
        commit = self.run_state.commit(self.fragment, self.version + 1)
        if commit is None or self.applying:
            self.fetching.over()
            return []
        exchange, members = self.exchange, self.run_state.members
        stamp, held = exchange.fence.stamp_of(commit), exchange.held
        if held.digest(stamp, len(commit.borders) - 1) != commit.result_digest:
            if self.run_state.gossip:
                return self._pass_by(commit, stamp)
            holders = sorted(connected & members.keys())
            over = self.run_state.committed(self.fragment) > commit.round + KEEP_ROUNDS
            return self.fetching.fetch(now, commit, stamp, held=held, holders=holders, over=over)
        self.applying = stamp
        self.fetching.over()
        held.drop_slices(commit.round)
        return [
            DropSlices(self.fragment, commit.round),
            ApplyRound(stamp, commit.borders, self.work.counted(commit.round)),
        ]

    def _pass_by(self, commit: Commit, stamp: Stamp) -> list[Command]:
        """In a gossip run, no other peer has our result of this round."""
        if any(term.peer == self.me for term in commit.contributors):
            # An earlier incarnation contributed, or the log had removed us.
            self.fetching.nobody_has_it()
            return []
        self.applying = stamp
        return [SkipRound(stamp)]

    def _moved(self, round_: int, digest: str) -> list[Command]:
        """The state has changed."""
        self.version, self.state_digest = round_, digest
        self.fetching.start_anew()
        exchange = self.exchange
        exchange.held.drop_slices(round_)
        exchange.done.drop_before(round_)
        needed = round_ if self.awaited is None else min(round_, self.awaited)
        commit = self.run_state.commit(self.fragment, needed)
        over = needed if commit is not None and commit.held_by_all else needed - KEEP_ROUNDS
        exchange.held.drop_results(over)
        return [ReleaseRound(self.fragment, over)]

    def _forget_unusable(self) -> list[Command]:
        """Drop results that the awaited state will contain."""
        oldest = self.run_state.committed(self.fragment) - KEEP_COMMITS
        held = self.exchange.held
        if not held.drop_results(oldest):
            return []
        return [ReleaseRound(self.fragment, oldest)]
