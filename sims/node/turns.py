"""The order of events, commands, jobs and pauses in a simulated shell.

It is the order of peers/driver: an event waits in an inbox until all commands of the previous
event are done and the callback that queued it has ended. Jobs run one at a time, in the order of
the commands. Must NOT know the content of an event or a job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from peers.driver import AT_ONCE
from protocols.interface import events as v
from sims.node.node_view import NodeView
from sims.node.toy_model import Value


class Turns:
    """The event loop of one incarnation of one peer."""

    def __init__(self, node: NodeView) -> None:
        self._node, self._clock = node, node.world.clock
        self._inbox: deque[tuple[v.Event, Value]] = deque()
        self._waiting = True
        """True while the commands of the last event are done, so that the next event may be
        taken."""
        self._in_callback = False
        """A callback of the loop runs; the inbox is processed when it has ended."""
        self.wakes_at = float("inf")
        """The core's deadline when the loop began to wait."""
        self.due = float("inf")
        """Virtual time in seconds at which the core is woken if nothing else happens: its deadline,
        or the end of a pause."""
        self.paused_until = 0.0
        self._jobs = deque[Callable[[], None]]()
        self._busy_until = 0.0
        self._held = deque[Callable[[], None]]()
        """Callbacks delayed by a pause, in order."""

    # Events ---------------------------------------------------------------------------------

    def feed(self, event: v.Event, value: Value = 0) -> None:
        """Queue an event for the core. An event of a step is handled at once if no other event
        waits and all commands are done."""
        if self._waiting and isinstance(event, AT_ONCE) and not self._inbox:
            self._take(event, value)
            core = self._node.core
            if core.deadline < self.wakes_at:
                self._inbox.append((v.DeadlineReached(), 0))
        else:
            self._inbox.append((event, value))
        if not self._in_callback:
            self._decide()

    def _decide(self) -> None:
        node = self._node
        while self._inbox and self._waiting and node.running:
            if node.now < self.paused_until:
                node.after(0.0, _nothing)  # The callback after the pause goes on here.
                return
            self._take(*self._inbox.popleft())
            deadline = node.core.deadline
            if deadline != self.wakes_at:
                self.wakes_at = deadline
                self._wake_at(max(deadline, self.paused_until))

    def _take(self, event: v.Event, value: Value) -> None:
        self._waiting = False
        self._node.handle_event(event, value)
        self._waiting = True

    def _wake_at(self, due: float) -> None:
        """Set the time at which the core is woken; it replaces the earlier one."""
        self.due = due
        self._clock.wake(due, self._node.peer)

    def pause(self, until_s: float) -> None:
        """Do nothing until this time (virtual seconds). A pause is never shortened: actions that
        wait for its end would run too late."""
        self.paused_until = max(self.paused_until, until_s)
        self._wake_at(max(self.wakes_at, self.paused_until))

    # Callbacks ------------------------------------------------------------------------------

    def at_time(self, due: float, action: Callable[[], None]) -> None:
        """Run a callback of the loop at this time, unless this incarnation has ended by then. While
        the node is paused, the callback waits."""
        self._clock.at_time(due, lambda: self._act(action))

    def _act(self, action: Callable[[], None]) -> None:
        """Run the callback now, or after those that a pause delays already: a longer pause must not
        change the order."""
        node = self._node
        if self._held or node.now < self.paused_until:
            if not self._held:
                self._clock.at_time(self.paused_until, self._go_on)
            self._held.append(action)
        elif node.running:
            self._call(action)

    def _go_on(self) -> None:
        node = self._node
        while self._held and node.now >= self.paused_until:
            action = self._held.popleft()
            if node.running:
                self._call(action)
        if self._held:
            self._clock.at_time(self.paused_until, self._go_on)

    def _call(self, action: Callable[[], None]) -> None:
        self._in_callback = True
        action()
        self._in_callback = False
        self._decide()

    # Jobs -----------------------------------------------------------------------------------

    def job(self, work: Callable[[], None]) -> None:
        """Run jobs one at a time, in the order of the commands. `work` delivers the result when the
        time of the job is over."""
        self._busy_until = max(self._clock.now, self._busy_until) + self._node.settings.compute_s
        self._put(work)

    def in_turn(self, action: Callable[[], None]) -> None:
        """Run an action in the order of the jobs, after those begun before; it takes no time."""
        self._busy_until = max(self._clock.now, self._busy_until)
        self._put(action)

    def _put(self, work: Callable[[], None]) -> None:
        self._jobs.append(work)
        self.at_time(self._busy_until, self._end_job)

    def _end_job(self) -> None:
        self._jobs.popleft()()

    def end_jobs(self) -> None:
        """End all jobs that were begun, as the real shell does when it stops."""
        while self._jobs:
            self._end_job()


def _nothing() -> None:
    """A callback that does nothing but have the inbox processed."""
