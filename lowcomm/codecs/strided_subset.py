"""Every sixteenth value, the first one named by the key, as fp32: 0.25 bytes a value.

All others become 0. What is sent is exact and not scaled up: whoever uses it keeps the rest (error
feedback, or momentum as FlexDeMo does). `lowcomm.flexdemo.torch_codecs` makes the same bytes in
torch. Must NOT let two peers of a round use two keys.
"""

import numpy as np
import numpy.typing as npt

from lowcomm.codecs.subsets import RATE, SubsetCodec


class StridedSubset(SubsetCodec):
    """Keys 0, 1, 2 ... take turns: after sixteen of them each value was sent once."""

    name = "strided"
    grain = RATE

    def places(self, elements: int) -> npt.NDArray[np.intp]:
        return np.array([self.key % elements], np.intp)
