"""The rounds of all fragments of one peer, and its requests for results that it lacks.

Must NOT know how a state is transferred (state_recovery.py), nor what a round does
(rounds/fragment_rounds.py).
"""

from collections.abc import Set

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages.log_entries import Run
from protocols.rounds.fencing import Fence
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.rounds.retries import ResultRequest
from protocols.state.run_state import RunState
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, Stamp
from protocols.types.rules import ProtocolConfig


class AllRounds:
    """The rounds by fragment. There are none until the run is known, in a stepwise run, and in a
    witness."""

    def __init__(self, me: PeerId, run_state: RunState) -> None:
        self._me = me
        self._run_state = run_state
        self.of_fragments: list[FragmentRounds] = []
        self._asking: list[ResultRequest] = []
        """One for each element of `of_fragments`."""
        self.woken: set[int] = set()
        """Fragments with rounds in which an action may have become possible."""
        self._lacked = False
        """At the last pass the state was missing or wrong."""

    def begin(self, run: Run) -> None:
        """The Run entry is known."""
        fences = (Fence(self._run_state, f) for f in range(self._run_state.fragments))
        self.of_fragments = [FragmentRounds(self._me, fence, run.outer_steps) for fence in fences]
        self._asking = [ResultRequest() for _ in self.of_fragments]

    # Queries --------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Has this peer applied every fragment's last round?"""
        return bool(self.of_fragments) and all(rounds.finished for rounds in self.of_fragments)

    @property
    def deadline(self) -> float:
        deadline = NEVER
        for rounds, asking in zip(self.of_fragments, self._asking, strict=True):
            deadline = min(deadline, rounds.deadline, asking.at)
        return deadline

    def waits_for(self) -> set[PeerId]:
        """The peers that sum our contribution."""
        needed = set[PeerId]()
        for rounds in self.of_fragments:
            plan = (
                self._run_state.open_plan(rounds.fragment) if rounds.work.own is not None else None
            )
            if plan is not None:
                needed.update(plan.makers_for(self._me))
                needed.update(rounds.exchange.checks.awaited(plan))
        return needed

    def rounds_of(self, stamp: Stamp) -> list[FragmentRounds]:
        """The rounds of the fragment of this stamp; empty if there is none."""
        return self.of_fragments[stamp.fragment : stamp.fragment + 1]

    # Events ---------------------------------------------------------------------------------

    def reported(
        self, event: v.ContributionReady | v.Encoded | v.PartReduced, now: float
    ) -> list[c.Command]:
        """Handle a report of the own ranks or of the own arithmetic."""
        match event:
            case v.ContributionReady():
                rounds = self.of_fragments[event.fragment]
                return rounds.work.contribute(event, rounds.version, now)
            case v.Encoded():
                self.of_fragments[event.fragment].work.encoded(event.round, event.manifest)
                self.woken.add(event.fragment)
            case v.PartReduced(stamp=stamp):
                self.of_fragments[stamp.fragment].exchange.part_reduced(event)
                self.woken.add(stamp.fragment)
        return []

    def checked(self, event: v.BlocksReceived | v.BlocksCompared | v.CopiesCompared) -> None:
        """Bytes of an owner check have arrived, or were compared."""
        if self.of_fragments[event.stamp.fragment].exchange.checked(event):
            self.woken.add(event.stamp.fragment)

    def payload(self, event: v.SliceBegun | v.SliceReceived | v.ResultReceived) -> list[c.Command]:
        """A payload of another peer: keep it, or drop and count it (I3)."""
        known = event.sender in self._run_state.receivers
        all_rounds = self.rounds_of(event.stamp) if known else []
        if not any(rounds.exchange.received(event, rounds.version) for rounds in all_rounds):
            return [c.Discard(event)]
        fragment = event.stamp.fragment
        plan, held = self._run_state.open_plan(fragment), self.of_fragments[fragment].exchange.held
        if held.wakes(event, plan, self._me):
            self.woken.add(fragment)
        return []

    def hurried(self, stamp: Stamp) -> None:
        """The leader asks for an early contribution."""
        for rounds in self.rounds_of(stamp):
            rounds.work.hurried = stamp

    def use_rules(self, rules: ProtocolConfig) -> None:
        for rounds in self.of_fragments:
            exchange = rounds.exchange
            exchange.use_rules(rules)
        for asking in self._asking:
            asking.after_s = rules.reduction_timeout_s / 2

    def forget_reports(self) -> None:
        """The leader lacks the reports of all rounds, or they did not count."""
        for rounds in self.of_fragments:
            rounds.forget_reports()

    # Actions --------------------------------------------------------------------------------

    def wake_all(self) -> None:
        self.woken.update(range(len(self.of_fragments)))

    def watch_state(self, *, lacks: bool) -> None:
        """Note whether this peer lacks a state, and react if it no longer does."""
        lacked, self._lacked = self._lacked, lacks
        if lacked and not lacks:
            # Reports about a state before all of it was here did not count.
            for rounds in self.of_fragments:
                rounds.damaged = False
                rounds.forget_reports()

    def advance_rounds(
        self, now: float, connected: Set[PeerId], leader: PeerId | None, *, is_member: bool
    ) -> tuple[list[c.Command], bool, bool]:
        """Commands of the rounds of woken fragments; whether any of them moved; and whether a state
        is needed, since results are gone. `leader`: receiver of reports; None if there is none."""
        commands, moved, behind = list[c.Command](), False, False
        for fragment in sorted(self.woken):
            rounds = self.of_fragments[fragment]
            given, applying = rounds.work.given, rounds.applying
            commands += rounds.advance(now, connected, leader)
            moved = moved or rounds.work.given is not given or rounds.applying is not applying
            plan = rounds.plan_of_others if is_member else None
            ask = self._asking[fragment].ask
            commands += ask(now, plan, held=rounds.exchange.held, connected=connected)
            behind = behind or rounds.behind
        self.woken.clear()
        # If all others ask for a state as well, the run goes back to the versions that we have
        # reported: a step that is being made would be undone, with the ranks' work since.
        behind = behind and not any(rounds.moves for rounds in self.of_fragments)
        return commands, moved, behind
