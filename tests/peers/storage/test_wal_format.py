"""What is in the file: its torn end is cut off, and every other damage is an error."""

from pathlib import Path

import pytest

from peers.storage import wal_format as records
from peers.storage.wal import FILE, WalError
from protocols.messages.persisted import Snapshot
from tests.peers.wal_room import (
    NOTHING,
    THREE,
    after,
    entry,
    found,
    found_in,
    opened,
    persist,
    written,
)


def test_a_torn_last_record_is_cut_off_wherever_it_was_torn(tmp_path: Path) -> None:
    sizes = written(tmp_path, *THREE)
    whole = (tmp_path / FILE).read_bytes()
    before = after(after(NOTHING, THREE[0]), THREE[1])
    for size in range(sizes[1], sizes[2]):
        (tmp_path / FILE).write_bytes(whole[:size])
        with opened(tmp_path) as (wal, saved):
            assert saved == before
            assert wal.cut_bytes == size - sizes[1]
            wal.write(THREE[2])
        assert found(tmp_path) == after(before, THREE[2])


def test_a_byte_flipped_in_the_last_record_costs_that_record(tmp_path: Path) -> None:
    sizes = written(tmp_path, *THREE)
    whole = (tmp_path / FILE).read_bytes()
    before = after(after(NOTHING, THREE[0]), THREE[1])
    for place in range(sizes[1], sizes[2]):
        for bit in (0x01, 0x80):
            assert found_in(flipped(whole, place, bit), tmp_path) == before


def test_a_byte_flipped_anywhere_else_is_an_error(tmp_path: Path) -> None:
    sizes = written(tmp_path, *THREE)
    whole = (tmp_path / FILE).read_bytes()
    for place in range(sizes[1]):
        with pytest.raises(WalError, match="cannot trust"):
            found_in(flipped(whole, place, 0x10), tmp_path)


def test_what_a_new_file_began_with_cannot_be_torn(tmp_path: Path) -> None:
    """A crash cannot do it, so to cut it off would be to forget a promise."""
    many = persist(2, *[1] * 200, snapshot=Snapshot(1, 1, b"image"))
    written(tmp_path, many)
    whole = (tmp_path / FILE).read_bytes()
    for size in range(0, len(whole), 7):
        with pytest.raises(WalError, match=r"cannot trust .*wal: "):
            found_in(whole[:size], tmp_path)
    assert found_in(whole, tmp_path) == after(NOTHING, many)


def flipped(whole: bytes, place: int, bits: int) -> bytes:
    return whole[:place] + bytes([whole[place] ^ bits]) + whole[place + 1 :]


def test_old_records_are_not_taken_for_new_ones(tmp_path: Path) -> None:
    """Blocks of the disk may come back: from elsewhere in this file, or from one before it."""
    here, there = tmp_path / "here", tmp_path / "there"
    sizes = written(here, *THREE)
    written(there, *THREE)
    whole, other = ((path / FILE).read_bytes() for path in (here, there))
    assert found_in(whole + whole[sizes[0] : sizes[1]], here) == found_in(whole, here)
    assert found_in(whole[: sizes[1]] + other[sizes[1] :], here) == found_in(
        whole[: sizes[1]], here
    )


def test_a_length_beyond_all_bounds_is_a_torn_record(tmp_path: Path) -> None:
    written(tmp_path, THREE[0])
    whole = (tmp_path / FILE).read_bytes()
    _, salt, end = records.load(whole)
    fields = records.HEAD.pack(records.MARK, (1 << 32) - 1, 0)
    head = records._with_digest(fields, records._seed(salt, end))
    assert found_in(whole + head + b"abc", tmp_path) == after(NOTHING, THREE[0])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "does not begin like a log of lowcomm"),
        (b"LOWCOMMW", "does not begin like a log of lowcomm"),
        (b"x" * 100, "does not begin like a log of lowcomm"),
        (records.HEADER.pack(records.MAGIC, 9, 0, 0) + bytes(8), "format 9, .* reads 11"),
        (records.HEADER.pack(records.MAGIC, records.VERSION, 0, 0) + bytes(8), "header is damaged"),
        (records.pack_header(0, 1), "damaged at byte"),
    ],
)
def test_what_is_no_log_of_this_version_is_an_error(
    tmp_path: Path, content: bytes, why: str
) -> None:
    with pytest.raises(WalError, match=why) as caught:
        found_in(content, tmp_path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (records.Change(1, "", 2, [], None), "does not fit"),
        (records.Change(1, "", 1, [b"\xc1"], None), "not msgpack"),
        (records.Change(1, "", 1, [records.encode_entry(entry(2))], None), "entry 2 stands at 1"),
    ],
)
def test_a_whole_record_of_nonsense_is_an_error(
    tmp_path: Path, change: records.Change, why: str
) -> None:
    record = records.pack_record(change, 5, records.RECORDS_AT)
    with pytest.raises(WalError, match=why):
        found_in(records.pack_header(5, 1) + record, tmp_path)
