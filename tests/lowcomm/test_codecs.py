"""Every codec keeps the contract of lowcomm.codecs.codec: size, pieces, errors, bad bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcomm.codecs import codec, known_codecs
from lowcomm.codecs.codec import CodecError
from lowcomm.methods.base import GATHERED
from lowcomm.numerics.operations import F32
from protocols.types.errors import ConfigError
from tests.lowcomm.codecs.samples import (
    BOUNDS,
    BYTES,
    FINITE,
    NAMES,
    blocks,
    encoded,
    some_values,
    there_and_back,
)

EXAMPLES = settings(max_examples=25, deadline=None)
every_codec = pytest.mark.parametrize("name", NAMES)


def test_all_codecs_are_tested() -> None:
    assert list(known_codecs()) == NAMES
    assert [name for name in NAMES if not codec(name).reducible] == ["topk", "topk2bit"]


@every_codec
@EXAMPLES
@given(data=st.data())
def test_size_pieces_and_repetition(name: str, data: st.DataObject) -> None:
    one = codec(name)
    assert one.name == name
    values = data.draw(some_values(one.grain))
    before = values.tobytes()
    whole = encoded(one, values)
    assert values.tobytes() == before
    assert whole == encoded(codec(name), values)

    cut = data.draw(st.integers(0, values.size // one.grain)) * one.grain
    border = one.encoded_bytes(cut)
    assert whole[:border] == encoded(one, values[:cut])
    assert whole[border:] == encoded(one, values[cut:])
    back, piece = np.zeros_like(values), np.ones_like(values)
    one.decode(whole, back)
    one.decode(memoryview(whole)[:border], piece[:cut])
    one.decode(memoryview(whole)[border:], piece[cut:])
    assert back.tobytes() == piece.tobytes()


@every_codec
def test_bytes_of_a_value_are_as_stated(name: str) -> None:
    one, (each, alone) = codec(name), BYTES[name]
    assert one.encoded_bytes(0) == 0
    assert one.encoded_bytes(1) == alone
    assert one.encoded_bytes(1 << 20) == each * (1 << 20)
    sizes = [one.encoded_bytes(size) for size in range(2 * one.grain)]
    assert sizes == sorted(sizes)


def assert_within_bound(name: str, values: F32) -> None:
    back = there_and_back(codec(name), values)
    assert np.isfinite(back).all()
    error = np.abs(back.astype(np.float64) - values)
    assert (error <= BOUNDS[name](values)).all()


@pytest.mark.parametrize("name", sorted(BOUNDS))
@EXAMPLES
@given(data=st.data())
def test_the_error_is_within_the_stated_bound(name: str, data: st.DataObject) -> None:
    assert_within_bound(name, data.draw(some_values(codec(name).grain, special=FINITE)))


@pytest.mark.parametrize("name", sorted(BOUNDS))
@pytest.mark.parametrize("exponent", [-145, -127, -110, -101, -98])
def test_the_error_of_small_values_is_too(name: str, exponent: int) -> None:
    """Of denormal ones, and of those below 2**-100."""
    one = codec(name)
    values = np.random.default_rng(0).standard_normal(one.grain + 300) * 2.0**exponent
    assert_within_bound(name, values.astype(np.float32))


@pytest.mark.parametrize("name", GATHERED)
@EXAMPLES
@given(data=st.data())
def test_no_block_loses_more_than_it_has(name: str, data: st.DataObject) -> None:
    """In squares: else a residue of error feedback would grow by itself."""
    one = codec(name)
    values = data.draw(some_values(one.grain, special=FINITE))
    back = there_and_back(one, values)
    for had, decoded in zip(blocks(values, one.grain), blocks(back, one.grain), strict=True):
        exact = had.astype(np.float64)
        limit = np.square(exact).sum() * 1.01**2  # The columns of powersgd are not quite normal.
        assert np.square(decoded - exact).sum() <= limit + exact.size * 2.0**-298


@EXAMPLES
@given(data=st.data())
def test_what_topk_does_not_send_becomes_zero(data: st.DataObject) -> None:
    one = codec("topk")
    values = data.draw(some_values(one.grain, special=FINITE))
    back = there_and_back(one, values)
    exact = there_and_back(codec("bf16"), values)
    assert ((back == exact) | (back == 0)).all()
    assert np.count_nonzero(back) <= one.encoded_bytes(values.size) / 2


@every_codec
@pytest.mark.parametrize("void", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen(name: str, void: float) -> None:
    one = codec(name)
    values = np.random.default_rng(0).standard_normal(2 * one.grain + 5, np.float32)
    for place in (0, one.grain + one.grain // 2, values.size - 1):
        broken = values.copy()
        broken[place] = void
        back = there_and_back(one, broken)
        for number, block in enumerate(blocks(back, one.grain)):
            assert np.isfinite(block).all() == (number != place // one.grain)


@every_codec
def test_zeros_stay_zeros(name: str) -> None:
    values = np.zeros(2 * codec(name).grain + 3, np.float32)
    values[1::2] = -0.0
    assert not there_and_back(codec(name), values).any()


@every_codec
@pytest.mark.parametrize("off", [-4, -1, 1, 4])
def test_a_payload_of_another_size_is_refused_and_changes_nothing(name: str, off: int) -> None:
    values = np.ones(80, np.float32)
    payload = bytes(codec(name).encoded_bytes(80) + off)
    with pytest.raises(CodecError, match=f"{name}: {len(payload)} bytes for 80 values"):
        codec(name).decode(payload, values)
    assert (values == 1).all()


@every_codec
@EXAMPLES
@given(data=st.data())
def test_any_bytes_are_decoded_or_refused(name: str, data: st.DataObject) -> None:
    one = codec(name)
    size = data.draw(st.sampled_from([1, 5, one.grain, one.grain + 1]))
    seed = data.draw(st.integers(0, 1000))
    payload = np.random.default_rng(seed).bytes(one.encoded_bytes(size))
    room = np.full(size + 8, 7, np.float32)
    try:
        one.decode(payload, room[4:-4])
    except CodecError:
        assert (room == 7).all()
    assert (room[:4] == 7).all()
    assert (room[-4:] == 7).all()


@every_codec
@pytest.mark.parametrize("size", [5, 300, 4097])
def test_bytes_need_no_alignment_and_nothing_else_is_written(name: str, size: int) -> None:
    one = codec(name)
    values = np.random.default_rng(1).standard_normal(size, np.float32)
    buffer = bytearray(b"\x55" * (one.encoded_bytes(size) + 6))
    one.encode(values, memoryview(buffer)[3:-3])
    assert buffer[:3] == buffer[-3:] == b"\x55" * 3
    assert buffer[3:-3] == encoded(one, values)
    back = np.zeros(size, np.float32)
    one.decode(memoryview(buffer).toreadonly()[3:-3], back)
    assert back.tobytes() == there_and_back(one, values).tobytes()


@every_codec
def test_a_buffer_of_another_size_is_a_mistake_of_ours(name: str) -> None:
    with pytest.raises(AssertionError):
        codec(name).encode(np.zeros(2, np.float32), bytearray(codec(name).encoded_bytes(2) + 1))


def test_an_unknown_codec_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown codec 'fp31'; known: 2bit, bf16, fp16, fp32"):
        codec("fp31")
