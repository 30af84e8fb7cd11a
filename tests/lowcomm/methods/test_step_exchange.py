"""What all-reduce's daemons make of gradients: payloads in a codec, and their mean."""

import numpy as np
import pytest

from lowcomm.codecs import codec
from lowcomm.methods.step_exchange import CodedExchange
from lowcomm.numerics.operations import F32

ELEMENTS = 5000


def values(seed: int) -> F32:
    return np.random.default_rng(seed).standard_normal(ELEMENTS).astype(np.float32)


@pytest.mark.parametrize("name", ["fp32", "bf16", "int8"])
def test_a_mean_is_of_what_everybody_decodes(name: str) -> None:
    made, ours = CodedExchange(codec(name), ELEMENTS), codec(name)
    assert (made.written_bytes, made.payload_bytes) == (
        4 * ELEMENTS,
        ours.encoded_bytes(ELEMENTS),
    )
    payloads, decoded = list[bytes](), list[F32]()
    for seed in range(2):
        written = bytearray(values(seed).tobytes())
        payloads.append(bytes(made.make_payload(written)))
        written[:] = bytes(len(written))  # The ranks write the next one there.
        decoded.append(np.empty(ELEMENTS, np.float32))
        ours.decode(payloads[-1], decoded[-1])
    mean_P = np.empty(ELEMENTS, np.float32)
    assert list(made.write_mean(1, payloads, mean_P)) == [0, 1]
    expected_P = (decoded[0] + decoded[1]) * np.float32(0.5)
    assert mean_P.tobytes() == expected_P.tobytes()


def test_nothing_is_the_mean_of_nothing() -> None:
    mean_P = np.ones(ELEMENTS, np.float32)
    assert not CodedExchange(codec("fp32"), ELEMENTS).write_mean(1, [b"short"], mean_P)
    assert not mean_P.any()


def test_it_says_which_payloads_are_in_the_mean() -> None:
    made, values_P, mean_P = CodedExchange(codec("fp32"), ELEMENTS), values(0), values(1)
    good = values_P.tobytes()
    values_P[7] = np.nan
    payloads = [b"short", good, values_P.tobytes(), good]
    assert list(made.write_mean(1, payloads, mean_P)) == [1, 3]
    assert mean_P.tobytes() == good
