"""Each torch twin makes and reads the bytes of the numpy codec."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcomm.codecs import codec
from lowcomm.codecs.base import CodecError
from lowcomm.codecs.topk import TopK
from lowcomm.flexdemo.torch_codecs import Twin, twin
from tests.lowcomm.codecs.samples import encoded, some_values, there_and_back

TWINS = ["sign", "topk"]


@pytest.mark.parametrize("name", TWINS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_same_bytes_and_the_same_values(name: str, data: st.DataObject) -> None:
    one, other = codec(name), twin(name)
    values = data.draw(some_values(one.grain))
    payload = other.encode(torch.from_numpy(values))
    assert payload.numpy().tobytes() == encoded(one, values)
    back = other.decode(payload, values.size).numpy()
    assert back.tobytes() == there_and_back(one, values).tobytes()


def test_equal_values_and_an_odd_number_of_them() -> None:
    values = np.random.default_rng(0).integers(-9, 10, 5000).astype(np.float32)
    payload = Twin(TopK(7)).encode(torch.from_numpy(values))
    assert payload.numpy().tobytes() == encoded(TopK(7), values)


@pytest.mark.parametrize("name", TWINS)
def test_a_payload_of_another_size_is_refused(name: str) -> None:
    with pytest.raises(CodecError, match="bytes for 80 values"):
        twin(name).decode(torch.zeros(codec(name).encoded_bytes(80) + 1, dtype=torch.uint8), 80)


@pytest.mark.parametrize("payload", [[5, 0, 0, 0], [1, 16, 0, 0]])
def test_indices_that_nobody_sends_are_refused(payload: list[int]) -> None:
    with pytest.raises(CodecError, match="topk"):
        Twin(TopK(1)).decode(torch.tensor(payload, dtype=torch.uint8), 5)
