"""Encodes a model's layout: in the Run entry, and from a rank to its daemon.

    zlib( count | fragments | shared | lengths | dimensions | extents | name bytes )

Little endian: u32 count; for each tensor its u16 fragment, the u16 number of bytes that its name
shares with the name before it, the u16 length of the rest, the u8 number of dimensions (plus 64 for
a buffer, 128 for a counter) and each extent as u64. Offsets are not in it: tensors lie densely.
94,000 names of a mixture of experts take 20 KB. Must NOT know messages (schemas.py) or arrays.
"""

import math
import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from struct import Struct, pack

from protocols.types.errors import ConfigError
from protocols.types.ids import TensorKind, TensorSpec
from protocols.types.limits import (
    DIMENSIONS_MAX,
    ELEMENTS_MAX,
    FRAGMENTS_MAX,
    LAYOUT_BYTES_MAX,
    LAYOUT_NAMES_BYTES_MAX,
    TENSOR_NAME_BYTES_MAX,
    TENSORS_MAX,
)
from protocols.wire.validators import WireError, short

_COUNT = Struct("<I")
_KINDS: tuple[TensorKind, ...] = ("parameter", "buffer", "counter")
_KIND_UNIT = 64
"""The byte of a tensor is its dimensions plus its kind's number times this."""
_TENSOR_BYTES_MAX = 3 * 2 + 1 + 8 * DIMENSIONS_MAX
"""Bytes of one tensor without its name."""
_PLAIN_BYTES_MAX = _COUNT.size + TENSORS_MAX * _TENSOR_BYTES_MAX + LAYOUT_NAMES_BYTES_MAX
_LEVEL = 6


def pack_layout(layout: Sequence[TensorSpec]) -> bytes:
    """Encode a layout in at most LAYOUT_BYTES_MAX bytes.

    Raises ConfigError that names the first parameter, or the sum, beyond a limit.
    """
    if not 1 <= len(layout) <= TENSORS_MAX:
        raise ConfigError(f"the model has {len(layout):,} parameters, at most {TENSORS_MAX:,}")
    names = [name_bytes(tensor.name) for tensor in layout]
    if (size := sum(map(len, names))) > LAYOUT_NAMES_BYTES_MAX:
        raise ConfigError(
            f"the layout is too large: its parameters' names take {size:,} bytes in UTF-8, at most "
            f"{LAYOUT_NAMES_BYTES_MAX:,}"
        )
    _check_places(layout)
    shared = [shared_bytes(*pair) for pair in zip(names, [b"", *names[:-1]], strict=True)]
    rests = [name[start:] for name, start in zip(names, shared, strict=True)]
    count, extents = len(layout), [extent for tensor in layout for extent in tensor.shape]
    plain = b"".join(
        (
            _COUNT.pack(count),
            pack(f"<{count}H", *(tensor.fragment for tensor in layout)),
            pack(f"<{count}H", *shared),
            pack(f"<{count}H", *map(len, rests)),
            pack(f"<{count}B", *(_KIND_UNIT * _KINDS.index(t.kind) + len(t.shape) for t in layout)),
            pack(f"<{len(extents)}Q", *extents),
            *rests,
        )
    )
    packed = zlib.compress(plain, _LEVEL)
    if len(packed) > LAYOUT_BYTES_MAX:
        raise ConfigError(
            f"the layout is too large: {count:,} parameters with {size:,} bytes of names take "
            f"{len(packed):,} bytes compressed, at most {LAYOUT_BYTES_MAX:,}: give parameters "
            "names that have more in common"
        )
    return packed


def unpack_layout(packed: bytes) -> tuple[TensorSpec, ...]:
    """Decode a layout, with bounded memory for any bytes. Raises WireError."""
    plain = _inflated(packed)
    try:
        return tuple(_tensors(plain))
    except UnicodeDecodeError as error:
        raise WireError("a layout's name is not UTF-8") from error


def split_layout(packed: bytes) -> tuple[bytes, bytes]:
    """A layout, and the bytes that follow it: frozen tensors (frozen_layout.py). Bytes that are no
    layout are returned as they are."""
    inflate = zlib.decompressobj()
    try:
        inflate.decompress(packed, _PLAIN_BYTES_MAX)
    except zlib.error:
        return packed, b""
    if not inflate.eof:
        return packed, b""
    end = len(packed) - len(inflate.unused_data)
    return packed[:end], packed[end:]


def _tensors(plain: bytes) -> Iterator[TensorSpec]:
    (count,) = read_numbers(plain, 0, 1, "I")
    if not 1 <= count <= TENSORS_MAX:
        raise WireError(f"a layout of {count} tensors, at most {TENSORS_MAX}")
    at = _COUNT.size
    fragments = read_numbers(plain, at, count, "H")
    shared = read_numbers(plain, at + 2 * count, count, "H")
    lengths = read_numbers(plain, at + 4 * count, count, "H")
    forms = read_numbers(plain, at + 6 * count, count, "B")
    dimensions = [each % _KIND_UNIT for each in forms]
    if max(forms) >= _KIND_UNIT * len(_KINDS):
        raise WireError("a layout has a tensor of an unknown kind")
    if max(dimensions) > DIMENSIONS_MAX or max(fragments) >= FRAGMENTS_MAX:
        raise WireError("a layout has a tensor of too many dimensions, or a fragment too many")
    at += 7 * count
    extents = iter(read_numbers(plain, at, sum(dimensions), "Q"))
    at += 8 * sum(dimensions)
    names_bytes = sum(shared) + sum(lengths)
    if at + sum(lengths) != len(plain) or names_bytes > LAYOUT_NAMES_BYTES_MAX:
        raise WireError(f"a layout has {len(plain)} bytes, and {names_bytes} of names")
    name, ends, total = b"", dict[int, int](), 0
    starts = accumulate(lengths, initial=at)  # One more: the last one is the end of all names.
    rows = zip(fragments, shared, lengths, forms, starts, strict=False)
    for fragment, kept, length, form, start in rows:
        if kept > len(name):
            raise WireError("a layout's name shares more than the one before it has")
        name = name[:kept] + plain[start : start + length]
        text, shape = name.decode(), tuple(next(extents) for _ in range(form % _KIND_UNIT))
        if not 1 <= len(name) <= TENSOR_NAME_BYTES_MAX or not text.isprintable():
            raise WireError(f"expected a parameter's name, got {short(text)}")
        elements = math.prod(shape)
        total += elements
        if not elements or total > ELEMENTS_MAX:
            raise WireError(f"{text} has the shape {shape}, the layout {total} elements so far")
        offset = ends.get(fragment, 0)
        ends[fragment] = offset + elements
        yield TensorSpec(fragment, text, shape, offset, _KINDS[form // _KIND_UNIT])


def _inflated(packed: bytes) -> bytes:
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(packed, _PLAIN_BYTES_MAX)
    except zlib.error as error:
        raise WireError("a layout is not compressed as ours are") from error
    if not inflate.eof or inflate.unused_data:
        raise WireError("a layout is cut off, is followed by other bytes, or is beyond its limits")
    return plain


def read_numbers(plain: bytes, start: int, count: int, kind: str) -> tuple[int, ...]:
    """So many numbers, in the format `kind` of the module struct. Raises WireError."""
    numbers = Struct(f"<{count}{kind}")
    if len(plain) < start + numbers.size:
        raise WireError("a layout ends too early")
    return numbers.unpack_from(plain, start)


def name_bytes(name: str) -> bytes:
    """A tensor's name in UTF-8. Raises ConfigError if it is empty, not printable or too long."""
    if not name or not name.isprintable():  # A printable name has no lone surrogate.
        raise ConfigError(f"parameter {short(name)}: a name is one line of printable text")
    raw = name.encode()
    if len(raw) > TENSOR_NAME_BYTES_MAX:
        raise ConfigError(
            f"parameter {short(name)}: its name takes {len(raw):,} bytes in UTF-8, at most "
            f"{TENSOR_NAME_BYTES_MAX:,}"
        )
    return raw


def _check_places(layout: Sequence[TensorSpec]) -> None:
    ends, total = dict[int, int](), 0
    for tensor in layout:
        shown, elements = short(tensor.name), math.prod(tensor.shape)
        if len(tensor.shape) > DIMENSIONS_MAX or elements < 1:
            raise ConfigError(
                f"parameter {shown} has the shape {list(tensor.shape)[: DIMENSIONS_MAX + 1]}: at "
                f"most {DIMENSIONS_MAX} dimensions, and none is 0"
            )
        if not 0 <= tensor.fragment < FRAGMENTS_MAX:
            raise ConfigError(
                f"parameter {shown} is in fragment {tensor.fragment}, of {FRAGMENTS_MAX} at most"
            )
        if (end := ends.get(tensor.fragment, 0)) != tensor.offset:
            raise ConfigError(
                f"parameter {shown} begins at element {tensor.offset} of fragment "
                f"{tensor.fragment}, expected {end}"
            )
        ends[tensor.fragment] = end + elements
        total += elements
    if total > ELEMENTS_MAX:
        raise ConfigError(f"the model has {total:,} elements, at most {ELEMENTS_MAX:,}")


def shared_bytes(name: bytes, before: bytes) -> int:
    """The number of bytes that both names begin with."""
    if name == before:
        return len(name)
    low, high = 0, min(len(name), len(before))
    while low < high:  # Bisection: a loop over bytes takes ten times as long.
        middle = (low + high + 1) // 2
        if name[:middle] == before[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
