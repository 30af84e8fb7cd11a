"""Error feedback: the part that a codec leaves out of one contribution is added to the next one.

This part is the residue. It belongs to one node and one fragment, and changes only with the commit
that counts the contribution (I2 for compressed bytes): an uncounted contribution is still in the
parameters, and would be sent twice if it were in the residue too. Must NOT know of weights: they
change with the round, the residue is unweighted.

A residue is never written to after it is complete, so a contribution keeps a reference to the one
that it was encoded with. `begin_contribution` and `encode` are called in the event loop's
thread, all else in the worker thread, which alone changes the residue. Arrays are fp32, P elements.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lowcomm.codecs.codec import Codec, WritablePayload
from lowcomm.numerics.arrays import IN_MEMORY, LargeArrays
from lowcomm.numerics.kernels import F32

ENCODED_MAX = 2
"""Contributions that a commit may still count: the newest, and one that a commit counts now."""
ARRAYS_PER_FRAGMENT = 5
"""Most arrays of P elements at one time: the residue, its next value, and for each contribution the
residue before and after it, one of which is the present residue."""


@dataclass(frozen=True, slots=True)
class _Encoded:
    before_P: F32
    """The residue that was added to the values."""
    after_P: F32
    """The residue after it: the values with the decayed `before_P`, minus the decoded payload.
    Filled piece by piece."""


class ErrorFeedback:
    """Error feedback of one fragment, for a lossy codec. See `lowcomm.codecs.codec.Codec`."""

    def __init__(
        self, codec: Codec, elements: int, *, decay: float = 1.0, arrays: LargeArrays = IN_MEMORY
    ) -> None:
        """`decay`: the factor, above 0 and at most 1, for the residue in each round (SparseLoCo:
        0.95). `arrays` makes the residues."""
        assert 0 < decay <= 1
        self.codec = codec
        self.decay = np.float32(decay)
        self._arrays = arrays
        self.residue_P = arrays.zeros(elements)
        self._encoded: dict[str, _Encoded] = {}
        """By manifest, the contributions that a commit may still count."""
        self._newest: _Encoded | None = None
        """The contribution that `encode` makes."""

    def begin_contribution(self, manifest: str) -> None:
        """Begin the next contribution of this node, which has this name."""
        for older in list(self._encoded)[: 1 - ENCODED_MAX]:
            self._encoded.pop(older, None)  # No commit counts it any more.
        before_P = self.residue_P
        self._newest = _Encoded(before_P, self._arrays.zeros(before_P.size))
        self._encoded[manifest] = self._newest

    def encode(self, start: int, values_P: F32, out: WritablePayload, scratch_P: F32) -> None:
        """Encode values + decay * residue into `out`, from the fragment's element `start` on;
        `scratch_P` takes the decoded values. The present residue does not change."""
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
            after_P[~finite] = 0  # Else it would stay in the residue for ever.

    def counted(self, manifests: Iterable[str]) -> None:
        """Update the residue if one of these contributions of a committed round is this node's."""
        for manifest in manifests:
            encoded = self._encoded.pop(manifest, None)
            if encoded is None:
                continue
            if encoded.before_P is self.residue_P:
                self.residue_P = encoded.after_P
            else:
                # Another one was counted after this one was encoded: both contain the same residue.
                change_P = self._arrays.zeros(self.residue_P.size)
                np.subtract(encoded.after_P, encoded.before_P, out=change_P)
                self.residue_P = np.add(self.residue_P, change_P, out=change_P)

    def replace_residue(self, kept_P: F32 | None = None) -> None:
        """The outer state was replaced: continue with the residue that was kept with the new state,
        or with zeros. Contributions that were encoded before no longer change the residue."""
        self._encoded.clear()
        self.residue_P = residue_P = self._arrays.zeros(self.residue_P.size)
        if kept_P is not None:
            residue_P[:] = kept_P
