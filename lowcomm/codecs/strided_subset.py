"""Every sixteenth value, beginning at a place that the key gives, as fp32: 0.25 bytes a value.

All others become 0. Values that are sent are exact and not scaled up: the user of the codec keeps
the rest (error feedback, or momentum as in FlexDeMo). `lowcomm.flexdemo.torch_codecs` makes the
same bytes in torch. Must NOT be used with different keys by two peers of a round.
"""

import numpy as np
import numpy.typing as npt

from lowcomm.codecs.subsets import RATE, SubsetCodec


class StridedSubset(SubsetCodec):
    """Sends other values with each of the keys 0, 1, 2 ...: after sixteen keys each value was sent
    once."""

    name = "strided"
    grain = RATE

    def places(self, elements: int) -> npt.NDArray[np.intp]:
        return np.array([self.key % elements], np.intp)
