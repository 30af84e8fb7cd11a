"""fp32 keeps every bit."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lowcomm.codecs.fp32 import Fp32
from tests.lowcomm.codecs.samples import encoded, there_and_back


# As words, so that NaNs of every kind, infinities and denormals are among them.
@given(hnp.arrays(np.uint32, st.integers(0, 40)))
def test_little_endian_words_there_and_back(words: np.ndarray) -> None:
    values = words.view(np.float32)
    assert encoded(Fp32(), values) == words.astype("<u4").tobytes()
    assert there_and_back(Fp32(), values).tobytes() == values.tobytes()
