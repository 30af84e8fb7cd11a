"""What the shell needs from whoever knows arrays. peers/ sees bytes only."""

from collections.abc import Sequence
from typing import Protocol

from protocols.commands import Applied, AtTheGate, Leased, Note, Resume, Stop
from protocols.entries import Run
from protocols.ids import Contributor, PeerId, Stamp

Told = Resume | Leased | Applied | Note | Stop | AtTheGate
"""What a core decides beyond moving bytes."""
Bytes = bytes | bytearray | memoryview


class Work(Protocol):
    """The arithmetic of a run. Every method runs in one worker thread, in the order of calls.

    Buffers that are returned are never written to again.
    """

    def encode(self, fragment: int) -> tuple[str, Bytes]:
        """Our contribution as bytes, and its manifest (32 hex digits)."""
        ...

    def cut(self, fragment: int, encoded: Bytes, start: int, stop: int) -> Bytes:
        """The bytes of elements [start, stop) of an encoded contribution; no copy."""
        ...

    def reduce(
        self,
        fragment: int,
        elements: int,
        slices: Sequence[Bytes],
        contributors: Sequence[Contributor],
    ) -> tuple[str, Bytes]:
        """The weighted mean of the slices in this order, encoded; and its digest.

        Raises lowcomm errors for a slice that is not what its codec says.
        """
        ...

    def check_result(self, payload: Bytes) -> str:
        """The digest of a result that somebody sent."""
        ...

    def apply(
        self, fragment: int, round_: int, borders: Sequence[int], parts: Sequence[Bytes]
    ) -> str:
        """The outer step with a committed result, cut at `borders`; returns the state digest."""
        ...

    def copy_state(self, fragment: int) -> Bytes:
        """The fragment's state as it is now, as one buffer."""
        ...

    def check_state(self, fragment: int, payload: Bytes) -> str:
        """The state digest of such a buffer; "" if it has the wrong size."""
        ...

    def adopt_state(self, fragment: int, round_: int, payload: Bytes) -> None:
        """Replace the fragment's state."""
        ...

    def adopt_kept(self, fragment: int, round_: int) -> str:
        """Take the fragment's state from our newest checkpoint, which must be of that round;
        its digest, or "" if it cannot be read."""
        ...

    def contribution_bytes(self, fragment: int, elements: int) -> int:
        """Size of an encoded slice of so many elements: what a sender may make us hold."""
        ...

    def result_bytes(self, fragment: int, elements: int) -> int:
        """Size of an encoded result of so many elements."""
        ...

    def state_bytes(self, fragment: int) -> int:
        """Size of what `copy_state` returns."""
        ...


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

    def served(self, peer: PeerId, size_bytes: int) -> None:
        """A joiner's state was put on its way."""
        ...

    def received_state(self, donor: PeerId, size_bytes: int, seconds: float) -> None:
        """All fragments of a cut are adopted; `seconds` since the cut was read."""
        ...
