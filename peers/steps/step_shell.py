"""The shell of a stepwise run: payloads to and from other peers, orders to the node's ranks.

The ranks own the state and obey one order at a time (ipc/step_orders.py); this shell has the
payloads, and the copies of the state to which the run may go back. Small data is handled in the
event loop's thread at once, large data in the worker thread. Must NOT decide what is sent or
applied, nor look into bytes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import xxhash

from peers.exchange.interfaces import Bytes, StepWork
from peers.exchange.outbound import Stream
from peers.ipc.step_orders import Order, StepSlots
from peers.steps.order_data import OrderData, Task
from peers.steps.payload_store import PayloadStore, StepStream
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import StepChunk, step_progress
from protocols.peer import PeerCore
from protocols.types import PeerId

INLINE_BYTES = 256 << 10
"""More bytes are read or written in the worker thread: the event loop must not stop for more than
about 0.1 ms, which is also the cost of a hop to the other thread."""
StepCommand = c.MakeStep | c.SendStep | c.ApplyStep | c.LoadBase | c.ReleaseSteps

T = TypeVar("T")


class StepRanks(Protocol):
    """The node's ranks, as this shell needs them."""

    @property
    def memory(self) -> StepSlots:
        """The shared memory, once the ranks may attach."""
        ...

    def order(self, order: Order) -> bool:
        """Give all ranks an order. False if there are no ranks, so no answer follows."""
        ...


class StepHost(Protocol):
    """What StepShell needs from the driver. No method may raise or block."""

    def feed(self, event: v.Event) -> None: ...

    def send(self, peer: PeerId, stream: Stream) -> None: ...

    def compute(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run `work` in the worker thread, in order; then `done` in the event loop."""
        ...

    def in_turn(self, action: Callable[[], None]) -> None:
        """Run `action` in the event loop, after the worker's earlier tasks."""
        ...


@dataclass(slots=True)
class _Ranks:
    """The position of the ranks."""

    task: Task | None = None
    waiting: deque[Task] = field(default_factory=deque[Task])
    made: v.StepMade | None = None
    """A payload that they made of their present state, which the core may ask for."""
    have_state: bool = False
    digest: str = ""
    """Names their state: at a commit its digest, else a digest of the steps since."""


class StepShell:
    """The shell of one run, for the lifetime of its daemon."""

    def __init__(
        self,
        core: PeerCore,
        *,
        work: StepWork,
        ranks: StepRanks,
        shell: StepHost,
        based: Callable[[int], None],
    ) -> None:
        """`based(step)`: called when the base is the committed state after this step."""
        self.payloads = PayloadStore(self._may_come, shell.feed)
        self._core = core
        self._work = work
        self._ranks = ranks
        self._data = OrderData(work, ranks)
        self._shell = shell
        self._based = based
        self._at = _Ranks()
        self._orders = 0
        """Number of orders given so far."""
        self._num_loads = 0
        """Number of loads commanded so far."""
        self._newest = ""
        """Digest of the ranks' last payload."""
        self._held_max = 0
        """With more held payloads, unused ones are dropped."""

    # The node's side ------------------------------------------------------------------------

    def found(self, done: Callable[[str], None]) -> None:
        """The ranks' state is the initial state of the run; `done` gets its digest."""
        self._begin(Task("show", 0, shown=done))

    def finish(self, *, evaluate: bool) -> None:
        """The run is over: end the ranks."""
        self._begin(Task("finish", 0, evaluate=evaluate))

    def obeyed(self, number: int) -> None:
        """All ranks have obeyed the order."""
        task = self._at.task
        if task is None or task.number != number:
            return  # It is of ranks that are gone.
        if task.apply is not None and task.apply.following is not None:
            self._go_on(task, task.apply.following)
        if task.void:
            self._over(task)
        elif task.kind == "make":
            self._large(self._work.payload_bytes, self._data.take_payload, task, self._made)
        elif task.kind == "load":
            self._at.have_state = True
            self._over(task)
            self._shell.feed(v.BaseLoaded(task.step, self._at.digest))
        elif task.kind == "show" or self._is_shown(task):
            self._large(self._work.state_bytes(0), self._data.take_state, task, self._seen)
        else:
            terms = task.apply.terms if task.apply is not None else ()
            led = "".join((self._at.digest, *(digest for _, digest in terms)))
            self._applied(task, xxhash.xxh3_128_hexdigest(led.encode()))

    def ranks_lost(self) -> None:
        """The ranks are lost, with their state."""
        self._at = _Ranks()

    # The core's side ------------------------------------------------------------------------

    def do(self, command: StepCommand) -> None:
        match command:
            case c.MakeStep():
                self._make(command)
            case c.ApplyStep():
                held = self.payloads.held
                payloads = [held[digest] for _, digest in command.terms]
                batch = command.following.batch if command.following is not None else 0
                self._begin(Task("apply", command.stamp.round, batch, command, payloads))
            case c.SendStep(stamp=stamp, whose=whose, digest=digest):
                held = self.payloads.held
                payload = held.get(digest)
                if payload is not None:
                    header = StepChunk(stamp, whose, digest, 0, len(payload))
                    for peer in command.peers:
                        self._shell.send(peer, StepStream(header, payload))
            case c.LoadBase(step=step):
                self._void()
                self._num_loads += 1
                number = self._num_loads
                # After the transfer that brought it, before it may be freed.
                self._shell.in_turn(lambda: self._load(step, number))
            case c.ReleaseSteps(step=step):
                self._prune()
                self._shell.in_turn(lambda: self._release(step))

    def _release(self, step: int) -> None:
        self._work.release(step)
        self._based(step)

    def decided(self, event: v.StepReceived, commands: Sequence[c.Command]) -> None:
        """The core has handled a payload."""
        self.payloads.decided(event, wanted=not commands or c.Discard(event) not in commands)
        if len(self.payloads.held) > self._held_max:
            self._prune()

    def _may_come(self, peer: PeerId, chunk: StepChunk) -> bool:
        core = self._core
        steps, known = core.part.steps, peer in core.run_state.receivers
        if steps is None or not known or chunk.size_bytes != self._work.payload_bytes:
            return False
        return steps.expects(chunk.stamp, peer, chunk.whose)

    def _prune(self) -> None:
        """Keep the payloads that the core names; it drops those that no peer can request."""
        part = self._core.part
        steps = part.steps
        if steps is None:
            return
        wanted = steps.payloads.held
        named = {digest for held in wanted.values() for digest in held.values()}
        # The core does not name our newest one before it has taken StepMade.
        self.payloads.prune(named | {self._newest})
        self._held_max = 2 * len(self.payloads.held) + 16

    # Orders ---------------------------------------------------------------------------------

    def _void(self) -> None:
        """The ranks' state will be replaced: running orders are void."""
        at = self._at
        at.waiting.clear()
        at.have_state, at.made = False, None
        if at.task is not None:
            at.task.void = True

    def _load(self, step: int, number: int) -> None:
        if number == self._num_loads:
            self._begin(Task("load", step, payloads=(self._work.base(step),)))

    def _begin(self, task: Task) -> None:
        at = self._at
        at.waiting.append(task)
        if at.task is None:
            self._next()

    def _make(self, make: c.MakeStep) -> None:
        """Order a payload, unless the ranks are making it or have made it."""
        task, made = self._at.task, self._at.made
        same = task is not None and (task.step, task.batch) == (make.step, make.batch)
        if task is not None and same and task.ahead and not task.void:
            task.ahead = False
        elif made is not None and (made.step, made.batch) == (make.step, make.batch):
            self._shell.feed(made)
        else:
            self._begin(Task("make", make.step, make.batch))

    def _go_on(self, task: Task, make: c.MakeStep) -> None:
        """The ranks go on by themselves to the payload of the next step."""
        self._orders += 1
        ahead = Task("make", make.step, make.batch, number=self._orders, ahead=True)
        ahead.void = task.void
        self._at.task = ahead

    def _over(self, task: Task) -> None:
        """A task is done, even if its ranks have been replaced meanwhile."""
        if self._at.task is task:
            self._at.task = None
            self._next()

    def _next(self) -> None:
        at = self._at
        while at.waiting and at.task is None:
            task = at.waiting.popleft()
            if task.kind in ("make", "apply") and not at.have_state:
                continue  # For ranks that are gone: the core learns of it.
            at.task, at.made = task, None
            if task.kind == "apply":
                self._large(self._work.mean_bytes, self._data.write_mean, task, self._counts)
            elif task.kind == "load":
                self._large(self._work.state_bytes(0), self._data.write_base, task, self._loads)
            else:
                self._order(task)

    def _large(
        self, size: int, work: Callable[[Task], T], task: Task, done: Callable[[Task, T], None]
    ) -> None:
        """Run `work` in this thread or in the worker, by size; then `done` unless the ranks are
        lost meanwhile."""

        def over(made: T) -> None:
            if self._at.task is not task:
                return
            if task.void:
                self._over(task)
            else:
                done(task, made)

        if size <= INLINE_BYTES:
            over(work(task))
        else:
            self._shell.compute(lambda: work(task), over)

    def _order(self, task: Task) -> None:
        self._orders += 1
        task.number = self._orders
        order = Order(
            number=task.number,
            kind=task.kind,
            step=task.step,
            batch=task.batch,
            show=self._is_shown(task),
            counted=task.counted,
            evaluate=task.evaluate,
            go_on=task.apply is not None and task.apply.following is not None,
        )
        if not self._ranks.order(order):
            self._at = _Ranks()

    def _is_shown(self, task: Task) -> bool:
        """Is the state after this step reported, or kept?"""
        run_state = self._core.run_state
        run = run_state.run
        if task.apply is None or run is None:
            return False
        return task.apply.keep or step_progress.commits(run, task.step)

    # Orders with data -------------------------------------------------------------------------

    def _counts(self, task: Task, numbers: Sequence[int]) -> None:
        """A payload of the roster may not count, even our own: the ranks must then not treat it as
        sent."""
        assert task.apply is not None, "only a step has a mean"
        me = self._core.me
        ours = (me.peer, self._newest)
        task.counted = any(task.apply.terms[number] == ours for number in numbers)
        self._order(task)

    def _loads(self, task: Task, digest: str) -> None:
        self._at.digest = digest
        self._order(task)

    def _made(self, task: Task, made: tuple[str, Bytes]) -> None:
        digest, payload = made
        self._newest = digest
        self.payloads.keep_own(digest, payload)
        event = v.StepMade(task.step, task.batch, digest)
        if task.ahead:
            self._at.made = event
        self._over(task)
        if not task.ahead:
            self._shell.feed(event)

    def _seen(self, task: Task, seen: tuple[str, Bytes | None]) -> None:
        digest, kept = seen
        if kept is not None:
            lineage = task.lineage
            self._work.keep_copy(task.step, kept, digest, lineage=lineage)
        if task.shown is not None:
            self._at.digest = digest
            self._over(task)
            task.shown(digest)
        else:
            self._applied(task, digest)

    def _applied(self, task: Task, digest: str) -> None:
        assert task.apply is not None, "only a step is applied"
        self._at.digest = digest
        self._over(task)
        self._shell.feed(v.StepApplied(task.apply.stamp, digest))
