"""Protocols that lowcomm implements for the shell: arithmetic, states, reactions. Must NOT know
arrays: peers/ sees bytes only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from protocols.interface import Applied, AtTheGate, Leased, Observation, Resume, Stop
from protocols.messages import Run
from protocols.types import Contributor, LowcommError, PeerId, Stamp

Told = Resume | Leased | Applied | Observation | Stop | AtTheGate
"""Commands of a core that do not move bytes."""
Bytes = bytes | bytearray | memoryview


def no_matter() -> None:
    """The default of `before_cell`: go on."""


class SlicesError(LowcommError):
    """Some of the slices cannot be averaged: no payloads of their codec, or not finite."""

    def __init__(self, numbers: tuple[int, ...], why: str) -> None:
        """`numbers`: indexes of the slices, from 0."""
        super().__init__(why)
        self.numbers = numbers


class StateMemory(Protocol):
    """Memory for what a node keeps for long."""

    def buffer(self, size: int) -> memoryview:
        """`size` zero bytes. May be called in any thread. Raises OSError."""
        ...


class StateStore(Protocol):
    """States of fragments as they go from one peer to another. Called in the worker thread."""

    @property
    def arrays(self) -> StateMemory:
        """The memory for states that arrive or are kept."""
        ...

    def lend_state(self, fragment: int, round_: int) -> tuple[Bytes, ...]:
        """The fragment's state after this round, as consecutive buffers; () if the state is of
        another round. The buffers do not change as long as they, or views of their memory, are
        held."""
        ...

    def check_state(
        self,
        fragment: int,
        round_: int,
        state: Sequence[Bytes],
        before_cell: Callable[[], None] = no_matter,
    ) -> str:
        """The digest of a state after this round, in such buffers or in one; "" if the size is
        wrong. May be called in any thread. `before_cell` may raise to end it."""
        ...

    def adopt_state(
        self,
        fragment: int,
        round_: int,
        buffer: bytearray | memoryview,
        *,
        lineage: int,
        kept: bool = False,
    ) -> None:
        """Replace the fragment's state by the one in this buffer, which the callee owns from now
        on. `lineage`: the one in which the log names this state. `kept`: the caller keeps the
        buffer, so copy it."""
        ...

    def adopt_kept(self, fragment: int, round_: int, *, lineage: int) -> str:
        """Load the fragment's state from this node's newest checkpoint, which must be of that
        round. Returns its digest; "" if it cannot be read. `lineage`: the one that the rollback
        opened."""
        ...

    def state_bytes(self, fragment: int) -> int:
        """Bytes of all buffers of `lend_state`."""
        ...


class RoundWork(StateStore, Protocol):
    """The arithmetic of a run.

    `begin_contribution`, `encode`, `reduce`, `check_result` and `ahead` are called in the event
    loop's thread, for a piece at a time, and take about a millisecond; all others run in one worker
    thread, in the order of calls. Returned buffers are never written to again. Sizes are in fp32
    elements.
    """

    def begin_contribution(self, fragment: int, manifest: str) -> memoryview | None:
        """From now on `encode` is about the ranks' last contribution. `manifest`: its name, as
        `apply` gets it if it counts. Returns the buffer to encode it into, each piece once: the
        ranks' own; None if the encoded size differs, so that another buffer is needed."""
        ...

    def encode(self, fragment: int, start: int, stop: int, out: memoryview) -> None:
        """Encode elements [start, stop) of our contribution; `start` is a multiple of the codec's
        grain.

        `out` has contribution_bytes(stop - start) bytes.
        """
        ...

    def reduce(
        self,
        fragment: int,
        elements: int,
        slices: Sequence[Bytes],
        contributors: Sequence[Contributor],
        out: memoryview,
    ) -> None:
        """Encode the weighted mean of these pieces, each of so many elements, in this order, into
        `out`; or copy the pieces side by side if the run gathers.

        Raises SlicesError for pieces that do not decode, or that are not finite while others are.
        """
        ...

    def check_result(
        self, fragment: int, piece: Bytes, elements: int, contributors: Sequence[Contributor]
    ) -> None:
        """Raises LowcommError for a piece of a result that does not decode."""
        ...

    def ahead(
        self,
        stamp: Stamp,
        start: int,
        piece: Bytes,
        part: Bytes,
        elements: int,
        contributors: Sequence[Contributor],
    ) -> None:
        """A piece of a result is here, from the fragment's element `start` on: make its part of the
        outer step before the round is committed. `part`: the result that contains the piece, as
        `apply` gets it.

        Raises LowcommError for a piece that does not decode.
        """
        ...

    def apply(
        self,
        stamp: Stamp,
        borders: Sequence[int],
        parts: Sequence[Bytes],
        contributors: Sequence[Contributor],
    ) -> str:
        """Make the outer step with a committed result, divided at `borders`; returns the state
        digest. The buffers must not change until `settle`."""
        ...

    def skip(self, stamp: Stamp) -> str:
        """A committed round does not count this peer: the present state is the one after it.
        Returns its digest."""
        ...

    def settle(self, fragment: int) -> None:
        """The ranks have copied the result of `apply`: do the work that was delayed."""
        ...

    def contribution_bytes(self, fragment: int, elements: int) -> int:
        """Bytes of an encoded slice of so many elements; a sender can make us hold so many."""
        ...

    def result_bytes(self, fragment: int, elements: int) -> int:
        """Bytes of one layer of so many elements in a result."""
        ...

    def layers(self, fragment: int, contributors: int) -> int:
        """Layers of a result of so many contributions: 1 for a mean, one for each contribution in a
        gather."""
        ...


class StepWork(StateStore, Protocol):
    """The arithmetic of a stepwise run, and its copies of the state. Called in the worker thread
    for large payloads and states, in the event loop's thread for small ones; never in both at
    once."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of each payload."""
        ...

    def make_payload(self, written: Bytes) -> Bytes:
        """The payload of the ranks' written data, in a buffer of its own."""
        ...

    @property
    def mean_bytes(self) -> int:
        """Bytes of the result of `write_mean`."""
        ...

    def write_mean(self, step: int, payloads: Sequence[Bytes], out: memoryview) -> Sequence[int]:
        """Write the mean of these payloads of a step, in this order, as fp32 to the beginning of
        `out`.

        A payload that does not decode, or is not finite, does not count, on any peer. Returns the
        indexes of those that count, from 0.
        """
        ...

    def state_digest(self, state: Bytes) -> str: ...

    def keep_copy(self, step: int, state: Bytes, digest: str, *, lineage: int) -> None:
        """Keep a copy of the state after this step, which may become the base. `lineage`: the one
        of the step; 0 for the initial state."""
        ...

    def base(self, step: int) -> Bytes:
        """The copy of the state after this step."""
        ...

    def release(self, step: int) -> None:
        """The copy of the state after this step is the base now: free older ones."""
        ...


@dataclass(frozen=True, slots=True)
class StateTaken:
    """The cost of a state transfer to this peer."""

    donors: tuple[PeerId, ...]
    donor_bytes: tuple[int, ...]
    """Bytes from each donor."""
    seconds: float
    """Seconds since the Cut was read."""
    connected_s: float
    """Seconds since the first connection with any peer."""


class Listener(Protocol):
    """The receiver of commands that do not move bytes. Called in the event loop's thread."""

    def check_run(self, run: Run) -> None:
        """A joiner has read the agreed run: feed RunAccepted, or stop the driver."""
        ...

    def handle(self, command: Told) -> None:
        """Handle a command: Resume and Leased in the order of the worker's tasks, others at
        once."""
        ...

    def applied(self, stamp: Stamp, state_digest: str) -> None:
        """The outer step of a committed round is made; Work holds its state."""
        ...

    def reduced(self, stamp: Stamp, seconds: float) -> None:
        """A committed round's result is here, `seconds` after its contribution began to be
        encoded."""
        ...

    def served(self, peer: PeerId, size_bytes: int) -> None:
        """A joiner needs no more; `size_bytes` of a state were sent to it."""
        ...

    def received_state(self, state: StateTaken) -> None:
        """All fragments of a cut are adopted."""
        ...
