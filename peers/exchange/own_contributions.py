"""This node's own contributions, as long as their rounds need pieces of them.

Must NOT encode a piece before it is needed (pieces.py), nor know of other peers.
"""

import asyncio

from peers.exchange.pieces import Encoding
from protocols.types import Stamp


class OwnContributions:
    """Our contributions to open rounds, and how long their results took."""

    def __init__(self) -> None:
        self.encoded: dict[tuple[int, int], Encoding] = {}
        """By (fragment, round)."""
        self._times: dict[tuple[int, int], tuple[float, float]] = {}
        """By (fragment, round), the times when encoding began and when the result grew last."""

    def begin_contribution(
        self, fragment: int, round_: int, encoding: Encoding, now: float
    ) -> None:
        """The contribution has its name now; its pieces are encoded when they are first needed."""
        self._times[fragment, round_] = (now, now)
        self.encoded[fragment, round_] = encoding

    def encoding(self, fragment: int, round_: int) -> Encoding | None:
        """Our contribution to this round; None if there is none, or its time is over."""
        return self.encoded.get((fragment, round_))

    def is_encoding(self, fragment: int) -> bool:
        """May pieces of our contribution to an open round still be needed?"""
        return any(key[0] == fragment for key in self.encoded)

    def result_grew(self, stamp: Stamp) -> None:
        """Another piece of a result of this round is here."""
        began = self._times.get((stamp.fragment, stamp.round))
        if began is not None:
            now = asyncio.get_running_loop().time()
            self._times[stamp.fragment, stamp.round] = (began[0], now)

    def seconds(self, stamp: Stamp) -> float | None:
        """Seconds from the beginning of our contribution to the last piece of the round's result;
        None if we made none."""
        began, last = self._times.get((stamp.fragment, stamp.round), (None, 0.0))
        return None if began is None else last - began

    def end(self, fragment: int, round_: int) -> None:
        """Free the contributions to this round and earlier ones."""
        for key in [key for key in self.encoded if key[0] == fragment and key[1] <= round_]:
            self.encoded.pop(key).release()

    def forget_times(self, fragment: int, round_: int) -> None:
        """The times of this round and earlier ones are not asked for any more."""
        for key in [key for key in self._times if key[0] == fragment and key[1] <= round_]:
            del self._times[key]

    def clear(self) -> None:
        """Drop all contributions. Their memory is not reused."""
        self.encoded.clear()
        self._times.clear()
