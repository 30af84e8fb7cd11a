"""The layout of a model as bytes: at its limits it travels, beyond them it is refused at once."""

import random
import time
import tracemalloc
import zlib
from contextlib import suppress
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.types.errors import ConfigError
from protocols.types.ids import TensorSpec
from protocols.types.limits import (
    DIMENSIONS_MAX,
    ELEMENTS_MAX,
    FRAGMENTS_MAX,
    LAYOUT_BYTES_MAX,
    LAYOUT_NAMES_BYTES_MAX,
    TENSOR_NAME_BYTES_MAX,
    TENSORS_MAX,
)
from protocols.wire.layout import pack_layout, unpack_layout
from protocols.wire.validators import WireError

LAYOUT = (
    TensorSpec(0, "embed.weight", (4, 2), 0),
    TensorSpec(1, "embed.bias", (), 0),
    TensorSpec(0, "embed.weight_norm", (3,), 8),
)


def many(count: int, name: str = "model.layers.{}.weight", elements: int = 1) -> list[TensorSpec]:
    return [TensorSpec(0, name.format(n), (elements,), n * elements) for n in range(count)]


@st.composite
def layouts(draw: st.DrawFn) -> list[TensorSpec]:
    text = st.text(
        st.characters(exclude_categories=("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs")),
        min_size=1,
        max_size=300,
    )
    made, ends = list[TensorSpec](), dict[int, int]()
    for stem in draw(st.lists(text, min_size=1, max_size=20)):
        fragment = draw(st.integers(0, FRAGMENTS_MAX - 1))
        shape = tuple(draw(st.lists(st.integers(1, 99), max_size=DIMENSIONS_MAX)))
        elements, offset = 1, ends.get(fragment, 0)
        for extent in shape:
            elements *= extent
        if sum(ends.values()) + elements > ELEMENTS_MAX:
            break
        made.append(TensorSpec(fragment, stem[: TENSOR_NAME_BYTES_MAX // 4], shape, offset))
        ends[fragment] = offset + elements
    return made


@given(layouts())
@settings(deadline=None)
def test_what_is_packed_can_be_read(layout: list[TensorSpec]) -> None:
    assert unpack_layout(pack_layout(layout)) == tuple(layout)


@pytest.mark.parametrize("characters", [129, 200, TENSOR_NAME_BYTES_MAX])
def test_a_long_name_is_a_name(characters: int) -> None:
    """Seen: a name of more than 128 characters, which the founder wrote and nobody could read."""
    layout = [TensorSpec(0, "x" * characters, (1,), 0)]
    assert unpack_layout(pack_layout(layout)) == tuple(layout)


def test_the_limit_of_a_name_counts_bytes_of_utf_8() -> None:
    fits, too_long = "\u00e4" * 512, "\u00e4" * 512 + "x"
    pack_layout([TensorSpec(0, fits, (1,), 0)])
    with pytest.raises(ConfigError, match=r"its name takes 1,025 bytes in UTF-8, at most 1,024"):
        pack_layout([TensorSpec(0, too_long, (1,), 0)])


@pytest.mark.parametrize("count", [12_000, TENSORS_MAX])
def test_as_many_tensors_as_real_models_have_fit_into_an_entry(count: int) -> None:
    """Seen: 12,000. Names of 200 characters; 100,000 of them take 2 s of a slow machine at most."""
    layout = many(count, "network." * 23 + "{:08}.w")
    began = time.process_time()
    packed = pack_layout(layout)
    assert len(packed) < LAYOUT_BYTES_MAX // 10
    assert unpack_layout(packed) == tuple(layout)
    assert time.process_time() - began < 6.0


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ([], "the model has 0 parameters, at most 100,000"),
        (many(TENSORS_MAX + 1), "the model has 100,001 parameters, at most 100,000"),
        (many(30_000, "y" * 990 + "{}"), "names take 29,8"),
        ([TensorSpec(0, "", (1,), 0)], "parameter '': a name is one line of printable text"),
        ([TensorSpec(0, "a\nb", (1,), 0)], "a name is one line of printable text"),
        ([TensorSpec(0, "\ud800", (1,), 0)], "a name is one line of printable text"),
        ([TensorSpec(0, "a", (1,) * 9, 0)], "at most 8 dimensions"),
        ([TensorSpec(0, "a", (0, 2), 0)], "none is 0"),
        ([TensorSpec(0, "a", (1 << 62,), 0)], "the model has 4,611,686,018,427,387,904 elements"),
        ([TensorSpec(FRAGMENTS_MAX, "a", (1,), 0)], "is in fragment 1024"),
        ([TensorSpec(0, "a", (1,), 1)], "begins at element 1 of fragment 0, expected 0"),
    ],
)
def test_what_is_beyond_a_limit_is_refused_in_one_line(layout: list[TensorSpec], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        pack_layout(layout)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_names_without_anything_in_common_are_refused_where_they_do_not_fit() -> None:
    rng = random.Random(1)
    names = [f"{rng.getrandbits(800):0200x}" for _ in range(12_000)]
    layout = [TensorSpec(0, name, (1,), n) for n, name in enumerate(names)]
    with pytest.raises(ConfigError, match=r"12,000 parameters with 2,400,000 bytes of names take"):
        pack_layout(layout)


@pytest.mark.parametrize(
    ("plain", "why"),
    [
        (b"", "ends too early"),
        (pack("<I", 0), "a layout of 0 tensors"),
        (pack("<I", TENSORS_MAX + 1), "a layout of 100001 tensors"),
        (pack("<I", TENSORS_MAX), "ends too early"),
        (pack("<I3HB", 1, 0, 0, 1, 9) + b"a", "too many dimensions"),
        (pack("<I3HB", 1, FRAGMENTS_MAX, 0, 1, 0) + b"a", "a fragment too many"),
        (pack("<I3HB", 1, 0, 0, 1, 0) + b"ab", "has 13 bytes"),
        (pack("<I3HB", 1, 0, 1, 0, 0), "shares more than the one before it has"),
        (pack("<I3HB", 1, 0, 0, 0, 0), "expected a parameter's name, got ''"),
        (pack("<I3HB", 1, 0, 0, 1, 0) + b"\n", "expected a parameter's name"),
        (pack("<I3HB", 1, 0, 0, 1, 0) + b"\xff", "not UTF-8"),
        (pack("<I3HBQ", 1, 0, 0, 1, 1, 0) + b"a", "has the shape"),
        (pack("<I3HB2Q", 1, 0, 0, 1, 2, 1 << 40, 1 << 40) + b"a", "has the shape"),
    ],
)
def test_what_is_no_layout_is_the_senders_fault(plain: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        unpack_layout(zlib.compress(plain))


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(payload: bytes) -> None:
    for packed in (payload, zlib.compress(payload)):
        with suppress(WireError):
            unpack_layout(packed)


def test_something_behind_it_or_a_cut_is_noticed() -> None:
    packed = pack_layout(LAYOUT)
    for changed in (packed + b"x", packed[:-1], b""):
        with pytest.raises(WireError):
            unpack_layout(changed)


def test_a_few_bytes_cannot_make_us_pay_for_many() -> None:
    """A thousandth of what it inflates to; and names that share all but one byte each."""
    bombs = [zlib.compress(bytes(1 << 30), 1)]
    count = TENSORS_MAX
    columns = [[0] * count, [0, *[1000] * (count - 1)], [1001, *[1] * (count - 1)]]
    plain = pack("<I", count) + b"".join(pack(f"<{count}H", *column) for column in columns)
    bombs.append(zlib.compress(plain + bytes(count) + b"a" * (1000 + count)))
    for bomb in bombs:
        tracemalloc.start()
        try:
            with pytest.raises(WireError):
                unpack_layout(bomb)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 4 * LAYOUT_NAMES_BYTES_MAX


def test_buffers_and_counters_travel_as_such_and_other_kinds_are_refused() -> None:
    layout = [
        TensorSpec(0, "weight", (2,), 0),
        TensorSpec(1, "running_mean", (2, 1), 0, "buffer"),
        TensorSpec(1, "num_batches_tracked", (), 2, "counter"),
    ]
    packed = pack_layout(layout)
    assert unpack_layout(packed) == tuple(layout)
    plain = bytearray(zlib.decompress(packed))
    forms = 4 + 6 * len(layout)
    assert plain[forms : forms + 3] == bytes((1, 64 + 2, 128))
    plain[forms + 2] = 192
    with pytest.raises(WireError, match="unknown kind"):
        unpack_layout(zlib.compress(bytes(plain)))
