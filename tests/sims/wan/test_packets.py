"""TCP segments that come as one: how many there are, and what is left without the lost ones."""

import struct

from sims.wan.packets import HEADER_BYTES, Shape, checksum, destination, keep, shape

SEGMENT = 100
SEQUENCE = 0xFFFFFF00  # It wraps within the burst.
ALL_FLAGS = 0xFF
HEADERS = 20 + 32  # IPv4; TCP with time stamps.


def burst(segments: int, last: int = SEGMENT, kind: int = 1) -> bytes:
    """As a TUN device gives it: byte n of the stream is n modulo 251."""
    body = bytes(n % 251 for n in range((segments - 1) * SEGMENT + last))
    virtio = struct.pack("<BBHHHH", 1, kind, HEADERS, SEGMENT if kind else 0, 20, 16)
    source, target = bytes([10, 77, 0, 1]), bytes([10, 77, 0, 3])
    ip = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, HEADERS + len(body), 0xFFFF, 0, 64, 6, 0, source, target
    )
    ip = ip[:10] + checksum(ip).to_bytes(2, "big") + ip[12:]
    tcp = struct.pack("!HHIIBBHHH12s", 1, 2, SEQUENCE, 7, 8 << 4, ALL_FLAGS, 9, 0, 0, b"\1" * 12)
    return virtio + ip + tcp + body


def read(packet: bytes) -> tuple[int, int, int, int, bytes]:
    """(gso type, IP identity, sequence, flags, body), after checks that hold for each packet."""
    ip = packet[HEADER_BYTES : HEADER_BYTES + 20]
    assert checksum(ip) == 0
    assert int.from_bytes(ip[2:4], "big") == len(packet) - HEADER_BYTES
    tcp = packet[HEADER_BYTES + 20 :]
    identity, sequence = int.from_bytes(ip[4:6], "big"), int.from_bytes(tcp[4:8], "big")
    return packet[1], identity, sequence, tcp[13], tcp[32:]


def test_the_receiver_is_the_last_byte_of_the_address() -> None:
    assert destination(burst(1)) == 3
    assert destination(bytes(HEADER_BYTES) + b"\x60" + bytes(39)) == -1


def test_segments_carry_headers_of_their_own_on_the_line() -> None:
    assert shape(burst(4, last=1)) == Shape(4 * HEADERS + 3 * SEGMENT + 1, 4, HEADERS, SEGMENT)
    assert shape(burst(1, kind=0)) == Shape(HEADERS + SEGMENT, 1, 0, 0)


def test_a_burst_without_loss_is_not_touched() -> None:
    packet = burst(3)
    assert keep(packet, shape(packet), ((0, 3),))[0] is packet


def test_a_lost_packet_leaves_nothing() -> None:
    packet = burst(1, kind=0)
    assert keep(packet, shape(packet), ()) == []


def test_what_is_left_is_as_if_it_had_been_sent_by_itself() -> None:
    packet = burst(6, last=50)
    whole = read(packet)[4]
    first, second, third = keep(packet, shape(packet), ((0, 1), (2, 4), (5, 6)))

    assert read(first) == (0, 0xFFFF, SEQUENCE, ALL_FLAGS & ~0x09, whole[:100])
    assert read(second) == (1, 1, (SEQUENCE + 200) % 2**32, ALL_FLAGS & ~0x89, whole[200:400])
    assert read(third) == (0, 4, (SEQUENCE + 500) % 2**32, ALL_FLAGS & ~0x80, whole[500:])


def test_no_segment_is_named_where_there_is_just_one() -> None:
    packet = burst(2)
    single, _ = keep(packet, shape(packet), ((0, 1), (1, 2)))
    assert struct.unpack_from("<BBHH", single)[1:] == (0, HEADERS, 0)
