"""What the shell needs from whoever knows arrays. peers/ sees bytes only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from protocols.interface.commands import Applied, AtTheGate, Leased, Note, Resume, Stop
from protocols.messages.log_entries import Run
from protocols.types.errors import LowcommError
from protocols.types.ids import Contributor, PeerId, Stamp

Told = Resume | Leased | Applied | Note | Stop | AtTheGate
"""What a core decides beyond moving bytes."""
Bytes = bytes | bytearray | memoryview


def no_matter() -> None:
    """Nobody minds how long it takes."""


class SlicesError(LowcommError):
    """Some of the slices cannot be averaged: no payloads of their codec, or not finite."""

    def __init__(self, numbers: tuple[int, ...], why: str) -> None:
        """`numbers`: which ones, counted from 0."""
        super().__init__(why)
        self.numbers = numbers


class States(Protocol):
    """The state of a run, as it goes from one peer to another. In the worker thread."""

    def lend_state(self, fragment: int, round_: int) -> tuple[Bytes, ...]:
        """The fragment's state after this round, as buffers side by side; () if it is another one.
        Nobody writes to them for as long as anybody has them, or memory of them."""
        ...

    def check_state(
        self,
        fragment: int,
        round_: int,
        state: Sequence[Bytes],
        before_cell: Callable[[], None] = no_matter,
    ) -> str:
        """The digest of such buffers as the state after this round, or of one that holds them all;
        "" if they have the wrong size. In any thread. `before_cell` may end it: it raises then."""
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
        """Replace the fragment's state by one that lies in one buffer, which is the replica's from
        now on: nobody else writes or reads there. `lineage`: in which the log names this state.
        `kept`: the buffer stays the caller's, and is copied."""
        ...

    def adopt_kept(self, fragment: int, round_: int, *, lineage: int) -> str:
        """Take the fragment's state from our newest checkpoint, which must be of that round;
        its digest, or "" if it cannot be read. `lineage`: that which went back to this state."""
        ...

    def state_bytes(self, fragment: int) -> int:
        """Of all that `lend_state` returns."""
        ...


class Work(States, Protocol):
    """The arithmetic of a run.

    `begin`, `encode`, `reduce`, `check_result` and `ahead` are called in the loop's thread, for a
    piece at a time, and take a millisecond or so; everything else runs in one worker thread, in the
    order of calls.
    Buffers that are returned are never written to again. Sizes are in fp32 elements.
    """

    def begin(self, fragment: int, manifest: str) -> memoryview | None:
        """The ranks' last contribution is the one that `encode` is about from now on. `manifest`:
        its name, as `apply` will get it if it counts. Returns where to encode it, each piece once:
        in place of what the ranks wrote; None: anywhere else, as it has another size."""
        ...

    def encode(self, fragment: int, start: int, stop: int, out: memoryview) -> None:
        """Our contribution to elements [start, stop) as bytes; `start` is on the codec's grain.

        `out` has contribution_bytes(stop - start).
        """
        ...

    def reduce(
        self,
        elements: int,
        slices: Sequence[Bytes],
        contributors: Sequence[Contributor],
        out: memoryview,
    ) -> None:
        """The weighted mean of these pieces, each of so many elements, in this order, encoded into
        all of `out`; or the pieces themselves, side by side, if the run gathers.

        Raises SlicesError for those that are not what their codec says, or, as long as others are,
        not finite.
        """
        ...

    def check_result(
        self, piece: Bytes, elements: int, contributors: Sequence[Contributor]
    ) -> None:
        """Raises lowcomm errors for a piece of a result that is not what its codec says."""
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
        """A piece of a result is here, from the fragment's element `start` on: do what can be done
        of its outer step before the round is known to be committed. `part`: what it is a piece of,
        as `apply` gets it.

        Raises lowcomm errors for a piece that is not what its codec says.
        """
        ...

    def apply(
        self,
        stamp: Stamp,
        borders: Sequence[int],
        parts: Sequence[Bytes],
        contributors: Sequence[Contributor],
    ) -> str:
        """The outer step with a committed result, cut at `borders`; returns the state digest. The
        buffers stay as they are until `settle`."""
        ...

    def skip(self, stamp: Stamp) -> str:
        """A committed round that had nothing for us: the state stays, and is from now on the one
        after it; returns its digest."""
        ...

    def settle(self, fragment: int) -> None:
        """The ranks have what `apply` made for them: do what it left for later."""
        ...

    def contribution_bytes(self, fragment: int, elements: int) -> int:
        """Size of an encoded slice of so many elements: what a sender may make us hold."""
        ...

    def result_bytes(self, fragment: int, elements: int) -> int:
        """Size of one layer of so many elements in a result."""
        ...

    def layers(self, contributors: int) -> int:
        """Of a result of so many contributions: 1 for their mean, or one for each (a gather)."""
        ...


class StepWork(States, Protocol):
    """The arithmetic of a stepwise run, and its copies of the state. Of large payloads and states
    in the worker thread, of small ones in the loop's; never in both at once."""

    @property
    def payload_bytes(self) -> int:
        """Of each payload."""
        ...

    def payload(self, written: Bytes) -> Bytes:
        """Of what the ranks wrote: bytes of its own."""
        ...

    @property
    def mean_bytes(self) -> int:
        """Of what `mean` makes."""
        ...

    def mean(self, step: int, payloads: Sequence[Bytes], out: memoryview) -> Sequence[int]:
        """The mean of these payloads of a step, in this order: fp32, at the beginning of `out`.

        One that is no payload, or not finite, counts for nothing, here as everywhere. Returns the
        numbers of those that count, the first one being 0.
        """
        ...

    def state_digest(self, state: Bytes) -> str: ...

    def keep(self, step: int, state: Bytes, digest: str, *, lineage: int) -> None:
        """A copy of the state after this step: it may become the base. `lineage`: that in which
        the step was made; 0: none, it is the initial state."""
        ...

    def base(self, step: int) -> Bytes:
        """The copy of the state after this step."""
        ...

    def release(self, step: int) -> None:
        """The copy of the state after this step is the base now: older ones are of no use."""
        ...


@dataclass(frozen=True, slots=True)
class StateTaken:
    """What it took to get our state."""

    donors: tuple[PeerId, ...]
    donor_bytes: tuple[int, ...]
    """What each gave."""
    seconds: float
    """Since we read the cut."""
    connected_s: float
    """Since we were first connected with anybody."""


class Listener(Protocol):
    """Who learns of what the core decides, beyond moving bytes. Called in the loop's thread."""

    def check_run(self, run: Run) -> None:
        """A joiner read the agreed run: answer by feeding RunAccepted, or stop the driver."""
        ...

    def handle(self, command: Told) -> None:
        """Resume and Leased, in the order of the work; the others at once."""
        ...

    def applied(self, stamp: Stamp, state_digest: str) -> None:
        """The outer step of a committed round is made; the work holds its state."""
        ...

    def reduced(self, stamp: Stamp, seconds: float) -> None:
        """A committed round's result is here; `seconds` since its contribution began to be
        encoded."""
        ...

    def served(self, peer: PeerId, size_bytes: int) -> None:
        """So much of its state was sent to a joiner, that needs no more."""
        ...

    def received_state(self, state: StateTaken) -> None:
        """All fragments of a cut are adopted."""
        ...
