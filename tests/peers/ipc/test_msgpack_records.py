"""Strict records: what goes in comes out, and everything else is refused by name."""

from dataclasses import dataclass
from typing import Literal, cast

import msgpack
import pytest

from peers.ipc.msgpack_records import (
    RECORD_BYTES_MAX,
    LinkError,
    decode,
    encode,
    frame,
    kinds_of,
    take_frame,
)


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    count: int
    text: str
    flag: bool
    rate: float
    kind: Literal["full", "delta"]
    sizes: tuple[int, ...]
    places: tuple[Place, ...]


SAMPLE = Sample(
    count=7, text="t", flag=True, rate=0.5, kind="full", sizes=(1, 2), places=(Place("w", (3,)),)
)
KINDS = kinds_of(Sample)


def pack(value: object) -> bytes:
    return cast("bytes", msgpack.packb(value))


def packed(**changes: object) -> bytes:
    record: dict[str, object] = {
        "type": "sample",
        "count": 7,
        "text": "t",
        "flag": True,
        "rate": 0.5,
        "kind": "full",
        "sizes": [1, 2],
        "places": [["w", [3]]],
    }
    record.update(changes)
    return pack({key: value for key, value in record.items() if value != "absent"})


def test_a_record_survives_the_way() -> None:
    assert decode(encode(SAMPLE), KINDS) == SAMPLE
    assert decode(packed(), KINDS) == SAMPLE


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("count", 7.0),
        ("count", True),
        ("count", "7"),
        ("count", -1),
        ("count", 1 << 63),
        ("count", None),
        ("text", b"t"),
        ("text", 1),
        ("flag", 1),
        ("rate", 1),
        ("rate", "nan"),
        ("kind", "half"),
        ("kind", {"full": 1}),
        ("sizes", 1),
        ("sizes", [1, "2"]),
        ("sizes", {"1": 2}),
        ("places", [["w"]]),
        ("places", [["w", 3]]),
        ("places", ["w"]),
        ("places", [{"name": "w", "shape": [3]}]),
        ("count", "absent"),
        ("surplus", 1),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object) -> None:
    with pytest.raises(LinkError, match=f"sample: .*{field}"):
        decode(packed(**{field: value}), KINDS)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x81",
        pack([1]),
        pack("sample"),
        pack({}),
        pack({"type": "other"}),
        pack({"type": 1}),
        pack({"type": {"sample": 1}}),
        pack({1: 2}),
        packed() + b"\x00",
        b"\x91" * 100_000,
        b"\xdf\xff\xff\xff\xff",
        pack({"type": "sample", b"count": 7}),
    ],
)
def test_what_is_no_record_is_a_link_error(payload: bytes) -> None:
    with pytest.raises(LinkError):
        decode(payload, KINDS)


def test_a_value_that_nests_deeply_is_a_link_error() -> None:
    nested = b"\x91" * 500 + b"\x01"
    payload = packed().replace(pack("sizes") + b"\x92\x01\x02", b"\xa5sizes" + nested)
    assert nested in payload
    with pytest.raises(LinkError, match="sizes"):
        decode(payload, KINDS)


def test_a_large_record_is_refused_on_both_sides() -> None:
    fits = RECORD_BYTES_MAX - len(packed(text="")) - 4
    assert decode(packed(text="x" * fits), KINDS).text == "x" * fits
    with pytest.raises(LinkError, match="at most"):
        decode(packed(text="x" * (fits + 1)), KINDS)
    with pytest.raises(LinkError, match="at most"):
        encode(Place("x" * RECORD_BYTES_MAX, ()))


def test_frames_are_cut_off_one_by_one() -> None:
    buffer = bytearray(frame(SAMPLE) + frame(Place("w", ())) + b"\x05\x00\x00\x00abcd")
    assert take_frame(buffer) == encode(SAMPLE)
    assert take_frame(buffer) == encode(Place("w", ()))
    assert take_frame(buffer) is None
    buffer += b"e"
    assert take_frame(buffer) == b"abcde"
    assert take_frame(buffer) is None
    for start in (b"\xff", b"\xff\xff\xff"):
        assert take_frame(bytearray(start)) is None
    with pytest.raises(LinkError, match="4294967295 bytes, at most"):
        take_frame(bytearray(b"\xff\xff\xff\xff"))
