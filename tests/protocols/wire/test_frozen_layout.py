"""The frozen tensors of a model as bytes, behind its layout."""

import zlib
from contextlib import suppress
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.types.errors import ConfigError
from protocols.types.ids import FrozenTensor, TensorSpec
from protocols.types.limits import DIMENSIONS_MAX, LAYOUT_BYTES_MAX, TENSORS_MAX
from protocols.wire.frozen_layout import FROZEN_TYPES, pack_frozen, unpack_frozen
from protocols.wire.layout import pack_layout, split_layout, unpack_layout
from protocols.wire.validators import WireError

FROZEN = (
    FrozenTensor("embed.weight", "BF16", (4, 2), 0xFFFFFFFF),
    FrozenTensor("embed.codes", "U8", (1 << 40,), 0),
    FrozenTensor("scale", "F32", (), 7),
)
LAYOUT = (TensorSpec(0, "a", (2,), 0),)

tensors = st.builds(
    FrozenTensor,
    st.text("abc.0\u00e4", min_size=1, max_size=200),
    st.sampled_from(FROZEN_TYPES),
    st.lists(st.integers(1, 1 << 50), max_size=DIMENSIONS_MAX).map(tuple),
    st.integers(0, (1 << 32) - 1),
)


@given(st.lists(tensors, max_size=9))
def test_what_is_packed_can_be_read_by_itself_and_behind_a_layout(
    frozen: list[FrozenTensor],
) -> None:
    packed = pack_frozen(frozen)
    assert unpack_frozen(packed) == tuple(frozen)
    layout, others = split_layout(pack_layout(LAYOUT) + packed)
    assert unpack_layout(layout) == LAYOUT
    assert unpack_frozen(others) == tuple(frozen)


def test_a_model_without_frozen_tensors_has_the_bytes_that_it_had() -> None:
    assert pack_frozen(()) == b""
    assert split_layout(pack_layout(LAYOUT)) == (pack_layout(LAYOUT), b"")


def test_the_base_of_a_mixture_of_experts_fits_into_an_entry() -> None:
    frozen = [
        FrozenTensor(
            f"model.layers.{n // 1540}.mlp.experts.{n % 1540}.w", "BF16", (64, 9), n * n % (1 << 32)
        )
        for n in range(94_000)
    ]
    packed = pack_frozen(frozen)
    assert len(packed) < LAYOUT_BYTES_MAX
    assert unpack_frozen(packed) == tuple(frozen)


@pytest.mark.parametrize(
    ("frozen", "why"),
    [
        ([FROZEN[0]] * (TENSORS_MAX + 1), "100,001 frozen tensors, at most 100,000"),
        ([FROZEN[0]._replace(shape=(1,) * 9)], "frozen tensor 'embed.weight' has 9 dimensions"),
        ([FROZEN[0]._replace(name="a\nb")], "a name is one line of printable text"),
        ([FROZEN[0]._replace(name=f"{n * 7**300:x}") for n in range(9000)], "is too large"),
    ],
)
def test_what_is_beyond_a_limit_is_refused(frozen: list[FrozenTensor], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        pack_frozen(frozen)


@pytest.mark.parametrize(
    ("plain", "why"),
    [
        (b"", "ends too early"),
        (pack("<I", 0), "a list of 0 frozen tensors"),
        (pack("<I", TENSORS_MAX + 1), "a list of 100001 frozen tensors"),
        (pack("<I2H2BI", 1, 0, 1, 99, 0, 7) + b"a", "an unknown type"),
        (pack("<I2H2BI", 1, 0, 1, 0, 9, 7) + b"a", "too many dimensions"),
        (pack("<I2H2BI", 1, 0, 1, 0, 0, 7) + b"ab", "have 16 bytes"),
        (pack("<I2H2BI", 1, 0, 1, 0, 0, 7) + b"\n", "expected the name"),
        (pack("<I2H2BI", 1, 0, 1, 0, 0, 7) + b"\xff", "not encoded as ours"),
    ],
)
def test_what_is_no_list_is_the_senders_fault(plain: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        unpack_frozen(zlib.compress(plain))


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(payload: bytes) -> None:
    for packed in (payload, zlib.compress(payload)):
        split_layout(packed)
        with suppress(WireError):
            unpack_frozen(packed)


def test_something_behind_it_or_a_cut_is_noticed() -> None:
    packed = pack_frozen(FROZEN)
    for changed in (packed + b"x", packed[:-1], packed[:5]):
        with pytest.raises(WireError):
            unpack_frozen(changed)
    with pytest.raises(WireError):
        unpack_layout(split_layout(pack_layout(LAYOUT)[:-1])[0])
