"""With or without a copy, the bytes and the values are those of the codec."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcomm.codecs import codec, direct, known_codecs
from lowcomm.codecs.codec import CodecError
from lowcomm.numerics.operations import F32
from peers.exchange.pieces import PIECE_ELEMENTS
from protocols.types.limits import CHUNK_BYTES_MAX
from tests.lowcomm.codecs.samples import encoded, some_values

NAMES = st.sampled_from(known_codecs())
ODD = 1
"""Bytes before the payload: a part may lie at any address."""


@settings(deadline=None)
@given(name=NAMES, values=some_values(256))
def test_what_is_encoded_and_decoded_is_what_the_codec_says(name: str, values: F32) -> None:
    one, scratch = codec(name), np.full_like(values, 7)
    buffer = bytearray(b"\xff" * (ODD + one.encoded_bytes(values.size)))
    out = memoryview(buffer)[ODD:]
    place = direct.to_encode(one, out, scratch)
    place[:] = values
    direct.encode(one, place, out)
    wanted = encoded(one, values)
    assert bytes(out) == wanted
    expected = np.full_like(values, 7)
    one.decode(wanted, expected)
    found = direct.decoded(one, out, np.full_like(values, 7))
    assert found.tobytes() == expected.tobytes()
    assert bytes(out) == wanted, "it may be decoded again"


@pytest.mark.parametrize("name", known_codecs())
def test_only_the_codec_of_the_values_themselves_needs_no_scratch(name: str) -> None:
    one, scratch = codec(name), np.zeros(64, np.float32)
    out = memoryview(bytearray(one.encoded_bytes(64)))
    bytes_P, values = np.frombuffer(out, np.uint8), direct.to_encode(one, out, scratch)
    assert np.shares_memory(values, bytes_P) == (name == "fp32")
    assert np.shares_memory(values, scratch) == (name != "fp32")
    values[:] = 1
    direct.encode(one, values, out)
    found = direct.decoded(one, bytes(out), scratch)
    assert np.shares_memory(found, scratch) == (name != "fp32")
    assert found.flags.writeable == (name != "fp32")


@pytest.mark.parametrize("name", known_codecs())
@pytest.mark.parametrize("more", [-1, 1])
def test_another_size_is_the_senders_fault(name: str, more: int) -> None:
    one = codec(name)
    payload = memoryview(bytearray(one.encoded_bytes(64) + more))
    with pytest.raises(CodecError):
        direct.decoded(one, payload, np.zeros(64, np.float32))


@pytest.mark.parametrize("name", known_codecs())
def test_a_piece_suits_every_codec(name: str) -> None:
    assert PIECE_ELEMENTS % codec(name).grain == 0
    assert codec(name).encoded_bytes(PIECE_ELEMENTS) <= CHUNK_BYTES_MAX, "it travels as one chunk"
