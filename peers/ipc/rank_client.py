"""A rank's whole interface to its daemon, in one blocking object.

Must NOT import torch (the trainer copies tensors into the views that it gets here) and must NOT
outlive the daemon: a watcher thread ends the process when the lifeline's stream ends.
"""

import contextlib
import os
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from peers.ipc.messages import (
    EXIT_DAEMON_GONE,
    EXIT_REFUSED,
    NONE,
    Answer,
    Attached,
    Boundary,
    Configured,
    Contributed,
    GrantedLease,
    RankEvaluated,
    RankHello,
    RankLayout,
    RankReady,
    RankRefused,
    Result,
    SampleDemand,
    Snapshotted,
    StepMetrics,
    TensorPlace,
    TrainsNoMore,
    Unfit,
)
from peers.ipc.msgpack_records import LinkError, kinds_of
from peers.ipc.parts import Runs, pack_parts
from peers.ipc.rank_socket import RankSocket
from peers.ipc.shared_memory import Slots, SlotsError, is_memory
from peers.ipc.step_orders import Obeyed, Order, StepSlots
from protocols.types import FrozenTensor, Samples
from protocols.wire import pack_frozen, pack_layout

M = TypeVar("M")
_CONFIGURED = kinds_of(Configured, RankRefused)
_ATTACHED = kinds_of(Attached, RankRefused)
_ANSWER = kinds_of(Answer, Result, RankRefused)
_LEASE = kinds_of(GrantedLease, Result, RankRefused)
_RESULT = kinds_of(Result, RankRefused)
_ORDER = kinds_of(Order, RankRefused)
_ANY = kinds_of(Configured, Attached, Answer, GrantedLease, Result, Order, RankRefused)


class RankClient:
    """One rank of one attempt. For one thread; `contribute` and `snapshotted` are for others too.

    `timeout_s` bounds connecting. Waiting for the daemon is not bounded (it may be waiting for
    other peers), but ends with the daemon: then this process exits with EXIT_DAEMON_GONE at once.
    If the daemon refuses the rank, its reason is printed and SystemExit with EXIT_REFUSED is
    raised.
    """

    configured: Configured
    """What the daemon told us first: the agreed [run] and the node's [node], as JSON."""

    def __init__(
        self,
        socket_path: str,
        *,
        rank: int,
        world_size: int,
        attempt: int,
        timeout_s: float = 60.0,
        own_daemon: Callable[[], int] | None = None,
    ) -> None:
        """Connect, say hello, wait to be configured. `own_daemon`: this process has started its
        daemon; waits for the daemon's end, and returns its exit status. Raises OSError when there
        is no daemon."""
        self.rank = rank
        self.needs_daemon = True
        """This process ends with its daemon. Without effect unless the daemon is its own: another
        one ends its ranks itself."""
        self._own_daemon = own_daemon
        self._slots: Slots | None = None
        self._next: list[int] = []
        """Generation of the next contribution, for each fragment."""
        self._results: defaultdict[int, deque[Result]] = defaultdict(deque)
        """By fragment: those that came and were not waited for yet."""
        self._pid = os.getpid()
        self._closed = False
        self._link = RankSocket(socket_path, timeout_s=timeout_s)
        try:
            self._link.watch(self._exit_without_daemon)
            hello = RankHello(rank=rank, world_size=world_size, attempt=attempt, pid=self._pid)
            self._link.send(hello)
            self.configured = self._expect(_CONFIGURED)
        except BaseException:
            self._closed = True
            self._link.close()
            raise

    def attach(
        self,
        tensors: Sequence[TensorPlace],
        *,
        elements: int,
        frozen: Sequence[FrozenTensor] = (),
        write_frozen: Callable[[str], None] | None = None,
        parts: Sequence[Runs] = (),
    ) -> Attached:
        """Report the model's layout and map the shared memory.

        `tensors` are all exchanged parameters, equal on every rank; `elements` is how many of them
        this rank will write. `frozen` are all other tensors of the model; `write_frozen` writes
        this rank's parts of them to the file of this path, and is called if it is needed. `parts`,
        in a node on several hosts: what this rank reads and writes. Raises ConfigError for a layout
        beyond the limits of protocols/types/limits.py (nothing is sent then), LinkError or
        SlotsError.
        """
        packed, others = pack_layout(tensors), pack_frozen(frozen)
        own = pack_parts(parts) if parts else b""
        self._link.send(RankLayout(packed=packed, elements=elements, frozen=others, parts=own))
        attached: Attached = self._expect(_ATTACHED)
        self._slots = Slots.attach(self._link.take_fd(), attached.shape)
        self._slots.places = list(attached.contribution_places)
        self._next = list(attached.contribution_generations)
        if attached.frozen and write_frozen is not None:
            write_frozen(attached.frozen)
        self._link.send(RankReady())
        return attached

    def unfit(self, why: str) -> None:
        """What this node is told to run cannot work, in no attempt: the daemon ends, too, because
        of `why`, and knows when this returns."""
        self._link.send(Unfit(why=why))
        while not isinstance(self._link.receive(_ANY), RankRefused):
            pass  # An answer to what we asked before.

    @property
    def lasting_memory(self) -> list[memoryview]:
        """The contributions and results that keep their memory until the end, so that they may be
        pinned for a GPU: none if they are in a file. Each begins at a page; results are
        read-only."""
        slots = self._mapped
        lasts = slots.shape.is_lasting and is_memory(slots.fd)
        fragments = range(len(slots.shape.fragment_bytes) if lasts else 0)
        results = [slots.result(f, place) for f in fragments for place in range(slots.shape.copies)]
        return [*map(slots.contribution, fragments), *results]

    def contribution(self, fragment: int) -> memoryview:
        """Where to write the next contribution: uint8 [fragment_bytes], the whole fragment, of
        which this rank writes its own shard; then call `contribute`."""
        self._mapped.clear_done(fragment, self.rank)
        return self._mapped.contribution(fragment)

    def contribute(self, fragment: int, *, steps: int, tokens: int, samples: Samples = ()) -> None:
        """This rank's shard is written. `steps`, `tokens` and what the steps saw are the whole
        node's since its last contribution: every rank says the same."""
        generation = self._next[fragment]
        self._mapped.set_done(fragment, generation, self.rank)
        self._link.send(
            Contributed(
                fragment=fragment,
                generation=generation,
                steps=steps,
                tokens=tokens,
                samples=samples,
            )
        )
        self._next[fragment] += 1

    def wait_result(self, fragment: int) -> Result:
        """Block until the daemon has published a result of this fragment."""
        waiting = self._results[fragment]
        while not waiting:
            result: Result = self._accepted(self._link.receive(_RESULT))
            self._results[result.fragment].append(result)
        return waiting.popleft()

    def arrived_results(self) -> list[Result]:
        """Of each fragment the next result that `wait_result` returns, if it has come; never
        blocks."""
        while (result := self._hear_now(_RESULT)) is not None:
            self._results[result.fragment].append(result)
        return [waiting[0] for waiting in self._results.values() if waiting]

    def result(self, result: Result) -> memoryview:
        """The published bytes: uint8 [fragment_bytes], read-only. Copy, then call `check_untorn`.

        Raises SlotsError if a later result has taken its place.
        """
        self.check_untorn(result)
        return self._mapped.result(result.fragment, result.place)

    def check_untorn(self, result: Result) -> None:
        """Raises SlotsError if the daemon writes there, or wrote: what was read is torn."""
        seen = self._mapped.result_generation(result.fragment, result.place)
        if seen != result.generation:
            raise SlotsError(
                f"result {result.generation} of fragment {result.fragment} is torn: "
                f"its place holds generation {seen}"
            )

    def count_step(self, step: int) -> None:
        """After every inner step: the daemon takes a counter that stands still for a hang."""
        self._mapped.count_step(self.rank, step)

    def ask_boundary(self, steps: int, *, due: bool, left: Sequence[int]) -> int | None:
        """Which of these fragments to contribute now, after inner step `steps` of this process?
        `due`: one is, and else only if others wait for us. All ranks ask the same and get the same
        answer."""
        self._link.send(Boundary(steps=steps, due=due, left=tuple(left)))
        answer: Answer = self._expect(_ANSWER)
        return None if answer.fragment == NONE else answer.fragment

    def demand_samples(self, *, step_samples: int, ahead: int) -> Samples:
        """Say how many samples an inner step of the node uses, and how many its loader draws before
        their steps. Blocks until that many are leased for a round; returns the node's lease, which
        is the same for all ranks. Every rank says the same, at the same step."""
        self._link.send(SampleDemand(step_samples=step_samples, ahead=ahead))
        granted: GrantedLease = self._expect(_LEASE)
        return granted.samples

    @property
    def memory(self) -> StepSlots:
        """In a stepwise run: what orders are about."""
        return StepSlots(self._mapped)

    def next_order(self) -> Order:
        """In a stepwise run: block until there is one, then do it and say `obeyed`."""
        return self._expect(_ORDER)

    def obeyed(self, order: Order) -> None:
        """This rank's part of it is done."""
        self._link.send(Obeyed(number=order.number))

    def metrics(self, *, step: int, tokens: int, loss: float, tokens_per_s: float) -> None:
        """Figures for people. Never blocks: dropped when the daemon is slow."""
        self._link.offer(
            StepMetrics(step=step, tokens=tokens, loss=loss, tokens_per_s=tokens_per_s)
        )

    def evaluated(self, *, loss: float, windows: int, sample: str) -> None:
        """Answer a result with `evaluate`: the mean loss over the whole set of `windows`."""
        self._link.send(RankEvaluated(loss=loss, windows=windows, sample=sample))

    def snapshotted(self, directory: str) -> None:
        """Answer a result with `snapshot`: this rank's state is on the disk."""
        self._link.send(Snapshotted(directory=directory))

    def close(self, *, done: bool = False) -> None:
        """Close the socket; idempotent. The daemon gets all messages. `done`: this rank makes no
        further step, so its node leaves the run when the program has ended; else, before `finish`,
        it means that the rank is lost."""
        done = done or self._own_daemon is not None
        if done and not self._closed and os.getpid() == self._pid:  # Not in a forked process.
            with contextlib.suppress(LinkError):
                self._link.send(TrainsNoMore())
        self._closed = True
        if self._slots is not None:
            self._slots.close()
        self._link.close()

    @property
    def _mapped(self) -> Slots:
        assert self._slots is not None, "attach first"
        return self._slots

    def _expect(self, kinds: Mapping[str, type[M] | type[Result] | type[RankRefused]]) -> M:
        """The next message; results that come before it are kept until they are waited for."""
        while isinstance(message := self._accepted(self._link.receive(kinds)), Result):
            self._results[message.fragment].append(message)
        return message

    def _hear_now(self, kinds: Mapping[str, type[M] | type[RankRefused]]) -> M | None:
        """The next message; None if there is none yet."""
        message = self._link.receive_now(kinds)
        return None if message is None else self._accepted(message)

    def _accepted(self, message: M | RankRefused) -> M:
        if isinstance(message, RankRefused):
            sys.stderr.write(f"rank {self.rank}: refused by its daemon: {message.why}\n")
            raise SystemExit(EXIT_REFUSED)
        return message

    def _exit_without_daemon(self) -> None:
        """In the watcher's thread. No clean-up: nothing here outlives the process, and the main
        thread may be inside a collective that will never return."""
        if self._own_daemon is not None:
            if self.needs_daemon:
                os._exit(self._own_daemon() or EXIT_DAEMON_GONE)  # It has told why.
            return
        said = b"rank %d: the daemon is gone\n" % self.rank
        # Our stderr is mostly a pipe to the daemon, which may lose a last message.
        for stderr in (2, self._link.daemon_stderr):
            with contextlib.suppress(OSError):
                os.write(stderr, said)
        os._exit(EXIT_DAEMON_GONE)
