"""Error feedback: what a codec left out of one contribution goes into the next.

A residue belongs to one node and one fragment. It changes only with the commit that counts the
contribution (I2 for compressed bytes): whatever was not counted is still in the parameters, and
would be sent twice if it were in the residue too. Must NOT know of weights: they change by the
round, the residue is unweighted.

Residues are never written to once made, so a round remembers the one it was encoded with by holding
on to it. fp32, P elements; at most ROUNDS_MAX rounds are remembered.
"""

from dataclasses import dataclass

import numpy as np

from lowcomm.arithmetic import BLOCK_ELEMENTS, F32
from lowcomm.codecs.base import Codec, WritablePayload

ROUNDS_MAX = 4
"""Rounds that may yet be counted, or taken back: older ones are settled by the protocol."""


@dataclass(frozen=True, slots=True)
class Residue:
    """What a checkpoint keeps."""

    version: int
    """The last round in the outer parameters that it goes with."""
    values_P: F32


@dataclass(frozen=True, slots=True)
class _Encoded:
    before_P: F32
    """The residue that went into it."""
    after_P: F32
    """What it left out, that included."""


class ErrorFeedback:
    """Around a codec that does not say everything. See `lowcomm.codecs.base.Codec`."""

    def __init__(self, codec: Codec, elements: int, *, decay: float = 1.0) -> None:
        """`decay`: what of a residue is left a round later (SparseLoCo: 0.95)."""
        assert 0 < decay <= 1
        self.codec = codec
        self.decay = np.float32(decay)
        self.version = 0
        self.residue_P: F32 = np.zeros(elements, np.float32)
        self._encoded: dict[int, _Encoded] = {}
        self._counted: dict[int, F32] = {}

    def encode(self, round_: int, values_P: F32, out: WritablePayload) -> None:
        """Fill `out` with values + residue. The residue stays as it is; again for the same round
        (after a rebase) forgets the first."""
        after_P = np.multiply(self.residue_P, self.decay)
        np.add(after_P, values_P, out=after_P)
        self.codec.encode(after_P, out)
        with np.errstate(invalid="ignore"):  # What is not finite is never counted.
            self._subtract_decoded(after_P, out)
        self._encoded[round_] = _Encoded(self.residue_P, after_P)
        _forget(self._encoded)

    def counted(self, round_: int) -> None:
        """The round is committed with our contribution."""
        encoded = self._encoded.pop(round_)
        self._counted[round_] = self.residue_P
        _forget(self._counted)
        if encoded.before_P is self.residue_P:
            self.residue_P = encoded.after_P
        else:
            # Another one was counted since this was encoded, and both sent the same old residue.
            change_P = np.subtract(encoded.after_P, encoded.before_P)
            self.residue_P = np.add(self.residue_P, change_P, out=change_P)
        self.version = round_

    def not_counted(self, round_: int) -> None:
        """The round is committed without us, or will never be: a rebase keeps the residue."""
        self._encoded.pop(round_, None)
        self.version = max(self.version, round_)

    def taken_back(self, round_: int) -> None:
        """A committed round is lost: what we were before it comes back, as its work does."""
        self.residue_P = self._counted.pop(round_, self.residue_P)
        self.version = min(self.version, round_ - 1)

    def state(self) -> Residue:
        """For a checkpoint."""
        return Residue(self.version, self.residue_P.copy())

    def restore(self, residue: Residue, version: int) -> None:
        """Go on at this version of the outer parameters; a residue of another one is void."""
        self._encoded.clear()
        self._counted.clear()
        self.version = version
        fits = residue.version == version and residue.values_P.size == self.residue_P.size
        zeros_P = np.zeros(self.residue_P.size, np.float32)
        self.residue_P = residue.values_P.astype(np.float32) if fits else zeros_P

    def _subtract_decoded(self, values_P: F32, payload: WritablePayload) -> None:
        """In pieces: no second array of the payload's size."""
        grain = self.codec.grain
        step = -(-BLOCK_ELEMENTS // grain) * grain
        scratch = np.empty(min(step, values_P.size), np.float32)
        view = memoryview(payload)
        for start in range(0, values_P.size, step):
            values = values_P[start : start + step]
            first, last = (self.codec.encoded_bytes(at) for at in (start, start + values.size))
            self.codec.decode(view[first:last], scratch[: values.size])
            np.subtract(values, scratch[: values.size], out=values)


def _forget(rounds: dict[int, _Encoded] | dict[int, F32]) -> None:
    while len(rounds) > ROUNDS_MAX:
        del rounds[min(rounds)]
