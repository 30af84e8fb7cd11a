"""One value in sixteen, chosen by counter-based random numbers, as fp32: 0.25 bytes a value.

All others become 0. Values that are sent are exact and not scaled up: the user of the codec keeps
the rest (error feedback, or momentum as in FlexDeMo). `lowcomm.flexdemo.torch_codecs` makes the
same bytes in torch. Must NOT be used with different keys by two peers of a round.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import xxhash

from lowcomm.codecs.bits import counted_bits
from lowcomm.codecs.subsets import RATE, SubsetCodec


class RandomSubset(SubsetCodec):
    """Sends those of each 4096 values that have the smallest random numbers."""

    name = "random"
    grain = 4096

    def places(self, elements: int) -> npt.NDArray[np.intp]:
        return _places(self.key, elements)


@lru_cache(maxsize=64)
def _places(key: int, elements: int) -> npt.NDArray[np.intp]:
    draw_1N = np.empty((1, elements), np.uint32)
    seed = xxhash.xxh3_64_intdigest(key.to_bytes(8, "little"))
    counted_bits(np.array([seed], np.uint64), draw_1N)
    # Of equal numbers the first is taken: the choice does not depend on numpy's sort.
    order_N = np.argsort(draw_1N[0], kind="stable")
    places_K = np.sort(order_N[: -(-elements // RATE)])
    places_K.flags.writeable = False
    return places_K
