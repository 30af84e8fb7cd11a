"""Error feedback: what a codec left out of one contribution goes into the next.

A residue belongs to one node and one fragment. It changes only with the commit that counts the
contribution (I2 for compressed bytes): whatever was not counted is still in the parameters, and
would be sent twice if it were in the residue too. Must NOT know of weights: they change by the
round, the residue is unweighted.

Residues are never written to once made, so a contribution remembers the one it was encoded with by
holding on to it. `begin` and `encode` are called in the loop's thread, the rest in the worker's,
which alone changes the residue. fp32, P elements.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lowcomm.codecs.base import Codec, WritablePayload
from lowcomm.numerics.arrays import zeros
from lowcomm.numerics.kernels import F32

ENCODED_MAX = 2
"""Contributions that may yet be counted: the newest, and one whose commit is being applied."""
ARRAYS_PER_FRAGMENT = 5
"""The residue, what it changes to, and for each contribution what it leaves out and began with."""


@dataclass(frozen=True, slots=True)
class _Encoded:
    before_P: F32
    """The residue that went into it."""
    after_P: F32
    """What it left out, that included; made piece by piece."""


class ErrorFeedback:
    """Around a codec that does not say everything. See `lowcomm.codecs.base.Codec`."""

    def __init__(self, codec: Codec, elements: int, *, decay: float = 1.0) -> None:
        """`decay`: what of a residue is left a round later (SparseLoCo: 0.95)."""
        assert 0 < decay <= 1
        self.codec = codec
        self.decay = np.float32(decay)
        self.residue_P = zeros(elements)
        self._encoded: dict[str, _Encoded] = {}
        """By manifest."""
        self._newest: _Encoded | None = None
        """What `encode` is about."""

    def begin(self, manifest: str) -> None:
        """Another contribution of ours, under this name."""
        for older in list(self._encoded)[: 1 - ENCODED_MAX]:
            self._encoded.pop(older, None)  # It will not be counted any more.
        before_P = self.residue_P
        self._newest = _Encoded(before_P, zeros(before_P.size))
        self._encoded[manifest] = self._newest

    def encode(self, start: int, values_P: F32, out: WritablePayload, scratch_P: F32) -> None:
        """Fill `out` with values + residue, from element `start` on. The residue stays as it is."""
        encoded = self._newest
        assert encoded is not None, "nothing was begun"
        here = slice(start, start + values_P.size)
        after_P = encoded.after_P[here]
        with np.errstate(all="ignore"):
            np.multiply(encoded.before_P[here], self.decay, out=after_P)
            np.add(after_P, values_P, out=after_P)
            self.codec.encode(after_P, out)
            self.codec.decode(out, scratch_P)
            np.subtract(after_P, scratch_P, out=after_P)
        finite = np.isfinite(after_P)
        if not finite.all():
            after_P[~finite] = 0  # It would never go away again.

    def counted(self, manifests: Iterable[str]) -> None:
        """These contributions are in a committed round; ours may be one of them."""
        for manifest in manifests:
            encoded = self._encoded.pop(manifest, None)
            if encoded is None:
                continue
            if encoded.before_P is self.residue_P:
                self.residue_P = encoded.after_P
            else:
                # Another one was counted since this was encoded, and both sent the same residue.
                change_P = np.subtract(encoded.after_P, encoded.before_P)
                self.residue_P = np.add(self.residue_P, change_P, out=change_P)

    def forget(self, kept_P: F32 | None = None) -> None:
        """The outer state is another one now: go on with the residue that was kept with it, or
        without one; whatever was encoded before leaves none."""
        self._encoded.clear()
        self.residue_P = zeros(self.residue_P.size) if kept_P is None else kept_P
