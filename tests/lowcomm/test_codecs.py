"""Every codec keeps the contract of lowcomm.codecs.base; the exact ones keep every bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lowcomm.codecs import codec
from lowcomm.codecs.base import CodecError
from lowcomm.outer import F32
from protocols.errors import ConfigError

NAMES = ["fp32"]
# As words, so that NaNs of every kind, infinities and denormals are among them.
WORDS = hnp.arrays(np.uint32, st.integers(0, 40))


def encoded(name: str, values: F32) -> bytes:
    out = bytearray(codec(name).encoded_bytes(values.size))
    codec(name).encode(values, out)
    return bytes(out)


@given(WORDS)
def test_fp32_is_the_little_endian_words_there_and_back(words: np.ndarray) -> None:
    values = words.view(np.float32)
    payload = encoded("fp32", values)
    assert payload == words.astype("<u4").tobytes()
    back = np.zeros_like(values)
    codec("fp32").decode(payload, back)
    assert back.tobytes() == values.tobytes()


@pytest.mark.parametrize("name", NAMES)
@given(values=hnp.arrays(np.float32, st.integers(0, 40)), data=st.data())
def test_a_piece_encodes_as_it_does_in_the_whole(
    name: str, values: F32, data: st.DataObject
) -> None:
    one = codec(name)
    assert one.name == name
    cut = data.draw(st.integers(0, values.size // one.grain)) * one.grain
    border = one.encoded_bytes(cut)
    whole = encoded(name, values)
    assert whole[:border] == encoded(name, values[:cut])
    assert whole[border:] == encoded(name, values[cut:])
    back, piece = np.zeros_like(values), np.zeros_like(values)
    one.decode(whole, back)
    one.decode(memoryview(whole)[:border], piece[:cut])
    one.decode(memoryview(whole)[border:], piece[cut:])
    assert back.tobytes() == piece.tobytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("off", [-4, -1, 1, 4])
def test_a_payload_of_another_size_is_refused_and_changes_nothing(name: str, off: int) -> None:
    values = np.ones(8, np.float32)
    payload = bytes(codec(name).encoded_bytes(8) + off)
    with pytest.raises(CodecError, match=f"{len(payload)} bytes for 8 values"):
        codec(name).decode(payload, values)
    assert (values == 1).all()


@pytest.mark.parametrize("name", NAMES)
def test_bytes_need_no_alignment(name: str) -> None:
    size = codec(name).encoded_bytes(5)
    values = np.arange(5, dtype=np.float32)
    buffer = bytearray(size + 3)
    codec(name).encode(values, memoryview(buffer)[3:])
    back = np.zeros(5, np.float32)
    codec(name).decode(memoryview(buffer).toreadonly()[3:], back)
    assert (back == values).all()
    assert buffer[:3] == bytes(3)


def test_a_buffer_of_another_size_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError):
        codec("fp32").encode(np.zeros(2, np.float32), bytearray(9))


def test_an_unknown_codec_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown codec 'fp31'; known: fp32$"):
        codec("fp31")
