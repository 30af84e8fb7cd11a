"""Encodes the frozen tensors of a model: behind its layout in the Run entry, and from a rank.

    zlib( count | shared | lengths | types | dimensions | digests | extents | name bytes )

As in layout.py, with the u8 number of each tensor's type in FROZEN_TYPES and its u32 digest. A
model without frozen tensors has no bytes here. Must NOT know messages (schemas.py) or arrays.
"""

import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from struct import Struct, pack

from protocols.types.errors import ConfigError
from protocols.types.ids import FrozenTensor
from protocols.types.limits import (
    DIMENSIONS_MAX,
    LAYOUT_BYTES_MAX,
    LAYOUT_NAMES_BYTES_MAX,
    TENSOR_NAME_BYTES_MAX,
    TENSORS_MAX,
)
from protocols.wire.layout import name_bytes, read_numbers, shared_bytes
from protocols.wire.validators import WireError, short

FROZEN_TYPES = (
    *("F32", "BF16", "F16", "F64", "F8_E4M3", "F8_E5M2"),
    *("I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64", "BOOL"),
)
"""Types of frozen tensors, with their names in safetensors files. Only append to them."""
_COUNT = Struct("<I")
_TENSOR_BYTES_MAX = 2 * 2 + 2 + 4 + 8 * DIMENSIONS_MAX
_PLAIN_BYTES_MAX = _COUNT.size + TENSORS_MAX * _TENSOR_BYTES_MAX + LAYOUT_NAMES_BYTES_MAX


def pack_frozen(frozen: Sequence[FrozenTensor]) -> bytes:
    """Encode these tensors in at most LAYOUT_BYTES_MAX bytes. Raises ConfigError that names the
    first tensor, or the sum, beyond a limit."""
    if not frozen:
        return b""
    if (count := len(frozen)) > TENSORS_MAX:
        raise ConfigError(f"the model has {count:,} frozen tensors, at most {TENSORS_MAX:,}")
    for tensor in frozen:
        if len(tensor.shape) > DIMENSIONS_MAX:
            raise ConfigError(
                f"frozen tensor {short(tensor.name)} has {len(tensor.shape)} dimensions, at most "
                f"{DIMENSIONS_MAX}"
            )
    names = [name_bytes(tensor.name) for tensor in frozen]
    shared = [shared_bytes(*pair) for pair in zip(names, [b"", *names[:-1]], strict=True)]
    rests = [name[start:] for name, start in zip(names, shared, strict=True)]
    extents = [extent for tensor in frozen for extent in tensor.shape]
    plain = b"".join(
        (
            _COUNT.pack(count),
            pack(f"<{count}H", *shared),
            pack(f"<{count}H", *map(len, rests)),
            pack(f"<{count}B", *(FROZEN_TYPES.index(tensor.type) for tensor in frozen)),
            pack(f"<{count}B", *(len(tensor.shape) for tensor in frozen)),
            pack(f"<{count}I", *(tensor.digest for tensor in frozen)),
            pack(f"<{len(extents)}Q", *extents),
            *rests,
        )
    )
    packed = zlib.compress(plain, 6)
    if len(packed) > LAYOUT_BYTES_MAX or sum(map(len, names)) > LAYOUT_NAMES_BYTES_MAX:
        raise ConfigError(
            f"the model is too large: {count:,} frozen tensors take {len(packed):,} bytes "
            f"compressed, at most {LAYOUT_BYTES_MAX:,}"
        )
    return packed


def unpack_frozen(packed: bytes) -> tuple[FrozenTensor, ...]:
    """Decode frozen tensors, with bounded memory for any bytes. Raises WireError."""
    if not packed:
        return ()
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(packed, _PLAIN_BYTES_MAX)
        whole = inflate.eof and not inflate.unused_data
        if not whole:
            raise WireError("a list of frozen tensors is cut off, or beyond its limits")
        return tuple(_tensors(plain))
    except (zlib.error, UnicodeDecodeError) as error:
        raise WireError("a list of frozen tensors is not encoded as ours are") from error


def _tensors(plain: bytes) -> Iterator[FrozenTensor]:
    (count,) = read_numbers(plain, 0, 1, "I")
    if not 1 <= count <= TENSORS_MAX:
        raise WireError(f"a list of {count} frozen tensors, at most {TENSORS_MAX}")
    at = _COUNT.size
    shared = read_numbers(plain, at, count, "H")
    lengths = read_numbers(plain, at + 2 * count, count, "H")
    types = read_numbers(plain, at + 4 * count, count, "B")
    dimensions = read_numbers(plain, at + 5 * count, count, "B")
    digests = read_numbers(plain, at + 6 * count, count, "I")
    if max(dimensions) > DIMENSIONS_MAX or max(types) >= len(FROZEN_TYPES):
        raise WireError("a frozen tensor has too many dimensions, or an unknown type")
    at += 10 * count
    extents = iter(read_numbers(plain, at, sum(dimensions), "Q"))
    at += 8 * sum(dimensions)
    names_bytes = sum(shared) + sum(lengths)
    if at + sum(lengths) != len(plain) or names_bytes > LAYOUT_NAMES_BYTES_MAX:
        raise WireError(f"frozen tensors have {len(plain)} bytes, and {names_bytes} of names")
    name = b""
    starts = accumulate(lengths, initial=at)
    rows = zip(shared, lengths, types, dimensions, digests, starts, strict=False)
    for kept, length, kind, axes, digest, start in rows:
        name = name[:kept] + plain[start : start + length]
        text = name.decode()
        if not 1 <= len(name) <= TENSOR_NAME_BYTES_MAX or not text.isprintable():
            raise WireError(f"expected the name of a frozen tensor, got {short(text)}")
        shape = tuple(next(extents) for _ in range(axes))
        yield FrozenTensor(text, FROZEN_TYPES[kind], shape, digest)
