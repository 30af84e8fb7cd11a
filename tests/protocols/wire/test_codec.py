"""Every message survives the wire; nothing else does, and nothing but WireError comes of it."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast, get_args, get_type_hints

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peers.connections.control import HELLO_BYTES_MAX
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types import ids, limits
from protocols.wire import codec, schemas, type_codes

TEXT = st.text(st.characters(categories=["L", "N", "P"]), max_size=20)
DIGEST = st.sampled_from(["", "0123456789abcdef" * 2])
PEER = st.sampled_from(["a.00000001", "b.00000002"])
SMALL = st.integers(0, (1 << 16) - 1)


def of(hint: Any, name: str) -> st.SearchStrategy[Any]:
    """Values of a field, from its annotation."""
    if hint is ids.PeerId:
        return PEER
    if hint is int:
        return SMALL
    if hint is bool:
        return st.booleans()
    if hint is bytes and name in ("key", "secret", "digests", "log_hash"):
        return st.binary(min_size=32, max_size=32)
    if hint is bytes and name == "ticket":
        return st.binary(min_size=16, max_size=16)
    if hint is bytes:
        return st.binary(min_size=1, max_size=20)
    if hint is type(None):
        return st.none()
    if hint is str and name in ("corpus_digest", "key", "root", "roots"):
        return st.sampled_from(["", "0123456789abcdef" * 4])
    if hint is str:
        return (
            DIGEST if "digest" in name or name in ("manifest", "number", "state", "token") else TEXT
        )
    args = get_args(hint)
    if getattr(hint, "__origin__", None) is tuple:
        return st.lists(of(args[0], name), max_size=3).map(tuple)
    if args:
        return st.one_of([of(arg, name) for arg in args])
    return made(hint)


def made(cls: type) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    return st.builds(cls, **{name: of(hints[name], name) for name in schemas.SHAPES[cls]})


@pytest.mark.parametrize("cls", list(type_codes.MESSAGES.values()), ids=lambda cls: cls.__name__)
def test_every_message_comes_back_equal(cls: type[m.Message]) -> None:
    @settings(max_examples=25, deadline=None)
    @given(made(cls))
    def check(message: m.Message) -> None:
        payload = codec.encode(message)
        assert codec.decode(payload, size_max=len(payload)) == message

    check()


@pytest.mark.parametrize("cls", list(type_codes.ENTRIES.values()), ids=lambda cls: cls.__name__)
def test_every_entry_comes_back_equal(cls: type[e.Entry]) -> None:
    @settings(max_examples=15, deadline=None)
    @given(made(cls))
    def check(body: e.Entry) -> None:
        message = append(e.LogEntry(1, 1, body))
        payload = codec.encode(message)
        assert codec.decode(payload, size_max=limits.CONTROL_BYTES_MAX) == message

    check()


def test_every_type_of_the_unions_has_a_code_and_a_shape() -> None:
    assert set(type_codes.MESSAGES.values()) == set(get_args(m.Message))
    assert set(type_codes.ENTRIES.values()) == set(get_args(e.Entry))
    for cls in (*type_codes.MESSAGES.values(), *type_codes.ENTRIES.values()):
        fields = [name for name in get_type_hints(cls) if not name.startswith("_")]
        assert list(schemas.SHAPES[cls]) == fields, cls


READY = m.ContributionOffered(
    ids.Stamp(1, 2, 3, 0, 7, 0), ids.Contributor(ids.PeerId("a.1"), 10, 5, "ab" * 16)
)


RUN = e.Run(1, "{}", "", 1, 1, 1, b"", (1,), ids.PeerId("a.1"))


def append(*entries: e.LogEntry) -> m.Append:
    return m.Append(1, 1, 0, 0, entries, 0)


def tampered(change: Callable[[list[Any]], None]) -> bytes:
    raw = cast(list[Any], msgpack.unpackb(codec.encode(READY)))
    change(raw)
    return cast(bytes, msgpack.packb(raw))


def _nest(raw: list[Any]) -> None:
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    raw[1] = deep


CHANGES: dict[str, Callable[[list[Any]], None]] = {
    "unknown type": lambda raw: raw.__setitem__(0, 99),
    "type is a bool": lambda raw: raw.__setitem__(0, True),
    "type is a text": lambda raw: raw.__setitem__(0, "11"),
    "a field more": lambda raw: raw.append(1),
    "a field less": lambda raw: raw.pop(),
    "a bool for a number": lambda raw: raw[1].__setitem__(4, True),
    "a float for a number": lambda raw: raw[1].__setitem__(4, 7.0),
    "a text for a number": lambda raw: raw[1].__setitem__(4, "7"),
    "a negative number": lambda raw: raw[1].__setitem__(4, -1),
    "a number too big": lambda raw: raw[1].__setitem__(4, 1 << 32),
    "bytes for a text": lambda raw: raw[2].__setitem__(0, b"a.1"),
    "a peer id too long": lambda raw: raw[2].__setitem__(0, "a" * 200),
    "a peer id that is empty": lambda raw: raw[2].__setitem__(0, ""),
    "a peer id with an escape": lambda raw: raw[2].__setitem__(0, "a\x1b[2J"),
    "a digest too short": lambda raw: raw[2].__setitem__(3, "ab"),
    "a digest not hex": lambda raw: raw[2].__setitem__(3, "x" * 32),
    "a map for a struct": lambda raw: raw.__setitem__(1, {"run": 1}),
    "nothing for a struct": lambda raw: raw.__setitem__(1, None),
    "deep nesting": _nest,
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_no_message_of_ours_is_named_and_refused(what: str) -> None:
    with pytest.raises(schemas.WireError):
        codec.decode(tampered(CHANGES[what]), size_max=limits.CONTROL_BYTES_MAX)


def test_the_error_names_the_field() -> None:
    payload = tampered(CHANGES["a text for a number"])
    where = r"ContributionOffered\.stamp: Stamp\.round: expected an integer"
    with pytest.raises(schemas.WireError, match=where):
        codec.decode(payload, size_max=limits.CONTROL_BYTES_MAX)


@pytest.mark.parametrize("length", range(len(codec.encode(READY))))
def test_every_truncation_is_refused(length: int) -> None:
    with pytest.raises(schemas.WireError):
        codec.decode(codec.encode(READY)[:length], size_max=limits.CONTROL_BYTES_MAX)


def test_size_is_looked_at_before_anything_is_decoded() -> None:
    payload = codec.encode(READY)
    with pytest.raises(schemas.WireError, match="at most"):
        codec.decode(payload, size_max=len(payload) - 1)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\x91" * 5000, b"\x80"],
)
def test_hostile_bytes_cost_nothing(payload: bytes) -> None:
    with pytest.raises(schemas.WireError):
        codec.decode(payload, size_max=limits.CONTROL_BYTES_MAX)


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_a_message_or_a_wire_error(payload: bytes) -> None:
    try:
        message = codec.decode(payload, size_max=limits.CONTROL_BYTES_MAX)
    except schemas.WireError:
        return
    assert codec.decode(codec.encode(message), size_max=limits.CONTROL_BYTES_MAX) == message


def test_collections_have_a_limit() -> None:
    many = tuple(
        e.LogEntry(i, 1, e.Left(ids.PeerId("a.1"), "")) for i in range(limits.ENTRIES_MAX + 1)
    )
    with pytest.raises(schemas.WireError, match="items, at most"):
        codec.decode(codec.encode(append(*many)), size_max=limits.CONTROL_BYTES_MAX)


def test_limits_of_texts_and_lists_hold_to_the_last_one() -> None:
    longest = m.Leave("x" * limits.TEXT_MAX)
    assert codec.decode(codec.encode(longest), size_max=limits.CONTROL_BYTES_MAX) == longest
    peers = tuple(ids.PeerId(f"p{n}") for n in range(limits.PEERS_MAX))
    most = m.WaitsForPeers(READY.stamp, peers)
    assert codec.decode(codec.encode(most), size_max=limits.CONTROL_BYTES_MAX) == most
    for message in (
        m.Leave("x" * (limits.TEXT_MAX + 1)),
        m.WaitsForPeers(READY.stamp, (*peers, ids.PeerId("one more"))),
        m.Join("n" * (limits.NAME_MAX + 1), 1, "a:1", "", ""),
    ):
        with pytest.raises(schemas.WireError):
            codec.decode(codec.encode(message), size_max=limits.CONTROL_BYTES_MAX)


@pytest.mark.parametrize("depth", [900, 990, 1000, 1020, 1023, 1024, 2000])
def test_lists_in_lists_are_refused_at_every_depth(depth: int) -> None:
    """Naming the culprit in full would exceed Python's stack before msgpack's limit is reached."""
    with pytest.raises(schemas.WireError):
        codec.decode(b"\x91" * depth + b"\x90", size_max=limits.CONTROL_BYTES_MAX)


def nested(depth: int, width: int) -> bytes:
    """A list of `width` empty lists, the first of which is such a list again, and so on."""
    head = b"\xdc" + width.to_bytes(2, "big")
    return (head * depth + b"\x90" + b"\x90" * ((width - 1) * depth))[: limits.CONTROL_BYTES_MAX]


@pytest.mark.parametrize(
    "payload",
    [
        nested(100, 9_999),
        (b"\xdd" + (1_000_000).to_bytes(4, "big")) * 1000,
        (b"\xdc" + (9_999).to_bytes(2, "big")) * 1000,
        b"\xdf" + (1 << 20).to_bytes(4, "big") + b"\x80" * 1000,
        b"\x93\xc0" * (limits.CONTROL_BYTES_MAX // 2),
    ],
    ids=["lists of lists", "headers of long lists", "headers of lists", "a long map", "deep"],
)
def test_the_worst_bytes_of_a_stranger_cost_bounded_memory(payload: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(schemas.WireError):
            codec.decode(payload, size_max=limits.CONTROL_BYTES_MAX)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 * limits.CONTROL_BYTES_MAX


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[2J", "\u202eright to left", "\x00"])
def test_what_people_read_cannot_move_their_cursor(text: str) -> None:
    for message in (m.Leave(text), m.Join(text, 1, "a:1", "", ""), m.Join("b", 1, text, "", "")):
        with pytest.raises(schemas.WireError, match="expected a text"):
            codec.decode(codec.encode(message), size_max=limits.CONTROL_BYTES_MAX)


@given(st.text(max_size=3000))
@settings(deadline=None)
def test_every_reason_of_ours_can_travel(text: str) -> None:
    message = m.Leave(codec.one_line(text))
    assert codec.decode(codec.encode(message), size_max=limits.CONTROL_BYTES_MAX) == message


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-9, 1 << 63)
        | st.text(max_size=4)
        | st.binary(max_size=4),
        lambda inner: st.lists(inner, max_size=8),
        max_leaves=40,
    )
)
@settings(max_examples=200, deadline=None)
def test_any_list_of_anything_is_a_message_or_a_wire_error(raw: object) -> None:
    payload = cast(bytes, msgpack.packb([11, *raw] if isinstance(raw, list) else raw))
    try:
        message = codec.decode(payload, size_max=limits.CONTROL_BYTES_MAX)
    except schemas.WireError:
        return
    assert codec.encode(message) == payload


def test_what_we_send_fits() -> None:
    """Too long is our own fault: the log splits what it sends."""
    entry = e.LogEntry(1, 1, replace(RUN, run_json="x" * limits.CONTROL_BYTES_MAX))
    with pytest.raises(AssertionError, match="too long for the wire"):
        codec.encode(append(entry))


def test_views_of_memory_are_decoded_too() -> None:
    """As they come from a socket: without a copy."""
    payload = codec.encode(replace(READY))
    assert codec.decode(memoryview(bytearray(payload)), size_max=len(payload)) == READY


def test_the_largest_request_and_answer_fit_into_what_a_stranger_may_send() -> None:
    longest = ids.PeerId("\U0001f600" * limits.NAME_MAX)
    terms = e.TokenTerms("0f" * 16, "5e" * 32, 2**31, 2**62, witness=True, issuer=longest)
    certificate, signature = bytes(limits.CERTIFICATE_BYTES_MAX), bytes(64)
    signatures = (terms, signature, signature, longest)
    admit = m.Admit(2**31, longest, bytes(32), certificate, True, *signatures)
    assert len(codec.encode(admit)) < limits.ADMIT_BYTES_MAX
    admitted = m.Admitted((certificate,) * limits.CERTIFICATES_MAX)
    assert len(codec.encode(admitted)) < HELLO_BYTES_MAX


@pytest.mark.parametrize(
    "blocks", [[1 << 63], [-1], [True], ["1"], [*range(limits.SAMPLE_BLOCKS_MAX + 1)], 7]
)
def test_numbers_of_blocks_are_integers_and_few(blocks: Any) -> None:
    sample = (ids.PartBlocks(0, (1, 2)),)
    asked = m.BlocksWanted(READY.stamp, ids.PeerId("a.1"), sample)
    raw = cast(list[Any], msgpack.unpackb(codec.encode(asked)))
    packed = cast(bytes, msgpack.packb(raw))
    assert codec.decode(packed, size_max=limits.CONTROL_BYTES_MAX) == asked
    raw[-1] = [[0, blocks]]
    with pytest.raises(schemas.WireError, match="blocks"):
        codec.decode(cast(bytes, msgpack.packb(raw)), size_max=limits.CONTROL_BYTES_MAX)
