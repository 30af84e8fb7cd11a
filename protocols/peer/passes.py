"""What each part of a core does when it runs.

wakeups.py says which change wakes which part. Must NOT take events (core.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from protocols.interface import commands as c
from protocols.messages import peer as m
from protocols.peer import shutdown, wakeups
from protocols.peer.components import Components
from protocols.types.clock import NEVER


class Passes(Components, ABC):
    """The core's parts with a pass over each, in the order in which they run."""

    @abstractmethod
    def _apply_committed(self, now: float) -> None:
        """Apply the newly committed entries."""

    def look(self, now: float) -> None:
        """Run the marked parts, the first one first, until no mark is left."""
        if not self.raised:
            return
        while self.raised and not self.stopped:
            part = self.raised & -self.raised
            self.raised ^= part
            PASSES[part](self, now)
        self.deadline = min(self._due.values())

    def _watch(self, now: float) -> None:
        """Connections: losses, heartbeats, dialling, branches."""
        led_term, raft, state = self.leadership.led_term, self.raft, self.raft.term_state
        up, log = (len(self.links.up), len(raft.up)), (state.term, raft.log.last_index)
        frozen = led_term is not None and led_term.frozen
        for command in self.connectivity.watch(now):
            if isinstance(command, c.Stop):
                self._stop(command)
            else:
                self._out.append(command)
        self._due[wakeups.CONNECTIVITY] = self.connectivity.deadline
        if log != (state.term, raft.log.last_index):
            # This peer goes on alone, or another branch is given up.
            self.raised |= wakeups.APPENDED
        if up != (len(self.links.up), len(raft.up)):
            self.raised |= wakeups.ALL
        if led_term is not None and (self.connectivity.take_losses() or frozen != led_term.frozen):
            self.raised |= wakeups.LED_TERM

    def _elect(self, now: float) -> None:
        """Elections; and marks for everything that changed in the log or the leadership since the
        last pass."""
        raft, worked = self.raft, self.disk.works
        raft.advance(now)
        if worked and not self.disk.works:
            self._disk_fails()
        self._due[wakeups.RAFT] = raft.deadline
        self.raised |= wakeups.SAID
        self.raised |= self._changes.marks(raft)
        watch = self.leader_watch
        if watch.leaderless_since != NEVER and watch.hears(now):
            self.raised |= wakeups.CONNECTIVITY  # The leader is heard again.

    def _follow(self, now: float) -> None:
        """The leader that this peer follows, or its own term as leader."""
        if self.leadership.follow(now):
            self.part.new_leader()
            self.log_relay.new_leader()
            self.raised |= wakeups.ALL

    def _let_in(self, now: float) -> None:
        led_term = self.leadership.led_term
        self._out += self.certificates.advance(led_term, self.leader_id, now)
        self._due[wakeups.CERTIFICATES] = self.certificates.deadline
        if led_term is not None and led_term.leader.has_of_gate:
            self.raised |= wakeups.LED_TERM

    def _decide(self, now: float) -> None:
        """Decisions of a leader, and its messages to single peers."""
        led_term = self.leadership.led_term
        if led_term is None:
            self._due[wakeups.LED_TERM] = NEVER
            return
        if self._going(now):
            self.raised |= wakeups.APPENDED
        else:
            if led_term.decide(now, lacks_state=self.catchup.needed):
                self.raised |= wakeups.APPENDED
            for command in led_term.orders(now):
                self._emit(command, now)
        self._due[wakeups.LED_TERM] = led_term.deadline if self.raft.settled else NEVER
        self.raised |= wakeups.DECIDED

    def _write(self, now: float) -> None:
        """Send new entries of the log; then apply committed ones."""
        for command in self.raft.take_commands(now):
            self._emit(command, now)
        self._due[wakeups.RAFT] = self.raft.deadline  # Of a write that was handed over.
        before = self.run_state.index
        self._apply_committed(now)
        if before != self.run_state.index:
            self.raised |= wakeups.ALL

    def _report(self, now: float) -> None:
        """Report this peer's status to the leader."""
        leader = self._leader_here
        if leader is None:
            return
        hears = self._hears or leader
        for report in self.member_status.news(hears):
            self._emit(c.Send(hears if isinstance(report, m.Kept) else leader, report), now)

    def _stand(self, now: float) -> None:
        """State transfers, to this peer and from it."""
        before = self.member_status.mark
        commands = self.part.tend(now, self.links.up)
        self._ours(commands, before, now)
        self._due[wakeups.MEMBER_STATUS] = self.part.state_deadline
        self.raised |= wakeups.REPORTS
        if commands:
            self.raised |= wakeups.OUR_ROUND & ~wakeups.MEMBER_STATUS

    def _exchange(self, now: float) -> None:
        """The rounds of all fragments."""
        self.all_rounds.wake_all()
        self._exchange_some(now)

    def _exchange_some(self, now: float) -> None:
        """The rounds of the woken fragments."""
        before = self.member_status.mark
        commands, moved = self.part.advance_rounds(now, self.links.up, self._hears)
        self._ours(commands, before, now)
        self._due[wakeups.ROUNDS] = self.all_rounds.deadline
        if moved:
            self.raised |= wakeups.OUR_ROUND & ~wakeups.ROUNDS

    def _make_steps(self, now: float) -> None:
        steps = self.part.steps
        if steps is not None:
            steps.fast_path.woken = True
            self._make_next_step(now)

    def _make_next_step(self, now: float) -> None:
        steps = self.part.steps
        if steps is None:
            return
        if (following := steps.go_on(now)) is not None:
            self._out += following
            self._due[wakeups.STEPS] = steps.deadline
            return
        base = steps.copy.step
        commands, changed = self.part.make_steps(now, self.links.up, self._hears)
        for command in commands:
            self._emit(command, now)
        self._due[wakeups.STEPS] = steps.deadline
        if changed:
            self.raised |= wakeups.ALL
        if steps.copy.step != base:
            self.raised |= wakeups.OUR_STEP

    def _ours(self, commands: list[c.Command], before: object, now: float) -> None:
        """Take commands of this peer's own part in the run; `before`: its status before them."""
        for command in commands:
            self._emit(command, now)
        if before != self.member_status.mark:
            self.raised |= wakeups.ALL

    def _relay(self, now: float) -> None:
        for command in self.log_relay.relay_entries(now, self._leader_here):
            self._emit(command, now)
        self._due[wakeups.LOG_RELAY] = self.log_relay.deadline

    def _tell_all(self, now: float) -> None:
        """Send ReportsComplete once no other report is left: the leader may rely on that."""
        leader = self._leader_here
        if leader is not None and self.leadership.owes_word():
            self._emit(c.Send(leader, m.ReportsComplete(self.raft.term)), now)

    def _end(self, now: float) -> None:
        if self.leadership.is_hopeless(now):
            self._stop(shutdown.without_state())
        if self.finished:
            before = self.member_status.leaving
            self._stop(shutdown.when_finished(self.member_status, leads=self.leads))
            if before != self.member_status.leaving:
                self.raised |= wakeups.ALL

    def _draw(self, now: float) -> None:
        """Tell the ranks which samples they may draw, before any other command."""
        sample_requests = self.member_status.sample_requests
        self._out[:0] = sample_requests.news()

    # Helpers --------------------------------------------------------------------------------

    def _going(self, now: float) -> bool:
        """A leader that wants to leave hands over first, since another leader must append its
        Left."""
        if not self.member_status.leaving or self.finished:
            return self.connectivity.gives_way(now)
        led_term = self.led_term
        if led_term is not None and led_term.is_last:
            self._stop(shutdown.when_out(self.member_status, finished=False))
            return True
        going = led_term.leader.unfit if led_term is not None else ()
        return self.election.hand_over(but=going)

    def _disk_fails(self) -> None:
        """The disk has begun to fail: the others need not wait for this peer."""
        why = self.disk.why
        self._out.append(c.Observation("disk", f"the log cannot be written: {why}"))
        self.member_status.watch_disk(why)


PASSES: Mapping[int, Callable[[Passes, float], None]] = {
    wakeups.CONNECTIVITY: Passes._watch,
    wakeups.RAFT: Passes._elect,
    wakeups.LEADERSHIP: Passes._follow,
    wakeups.CERTIFICATES: Passes._let_in,
    wakeups.LED_TERM: Passes._decide,
    wakeups.LOG: Passes._write,
    wakeups.REPORTS: Passes._report,
    wakeups.MEMBER_STATUS: Passes._stand,
    wakeups.ROUNDS: Passes._exchange,
    wakeups.SOME_ROUNDS: Passes._exchange_some,
    wakeups.STEPS: Passes._make_steps,
    wakeups.NEXT_STEP: Passes._make_next_step,
    wakeups.LOG_RELAY: Passes._relay,
    wakeups.WORD: Passes._tell_all,
    wakeups.ENDING: Passes._end,
    wakeups.SAMPLES: Passes._draw,
}
"""By mark, the pass over that part."""
