"""The packets that a TUN device reads and writes: an IPv4 packet, or many TCP segments in one, with
a header.

The kernel leaves the cutting into segments to the reader of the device (TSO), so one read brings up
to 64 KiB, which are many packets of one MTU for TCP and for loss. Must NOT do I/O.
"""

import struct
from typing import NamedTuple

from sims.wan.lane import Runs

HEADER_BYTES = 10
"""struct virtio_net_hdr: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset."""
PACKET_BYTES_MAX = 65535 + HEADER_BYTES
PLAIN, TCP4 = 0, 1
"""gso_type: one packet, or segments of TCP over IPv4."""
FIN, PSH, CWR = 0x01, 0x08, 0x80
LAST_ONLY, FIRST_ONLY = FIN | PSH, CWR

_VIRTIO = struct.Struct("<BBHHHH")


class Shape(NamedTuple):
    """The properties of a packet that a link has to know."""

    wire_bytes: int
    """Bytes as IP packets of the MTU: each segment has its own headers."""
    packets: int
    headers_bytes: int
    """Bytes of the IP and TCP headers of each segment; 0 for a single packet."""
    segment_bytes: int


def destination(packet: bytes) -> int:
    """The last byte of the IPv4 destination address; -1 if the packet is not IPv4."""
    return packet[HEADER_BYTES + 19] if packet[HEADER_BYTES] >> 4 == 4 else -1


def shape(packet: bytes) -> Shape:
    size = len(packet) - HEADER_BYTES
    if packet[1] == PLAIN:
        return Shape(size, 1, 0, 0)
    tcp = HEADER_BYTES + 4 * (packet[HEADER_BYTES] & 15)
    headers = tcp - HEADER_BYTES + 4 * (packet[tcp + 12] >> 4)
    segment = packet[4] | packet[5] << 8
    count = -(-(size - headers) // segment)
    return Shape(size + (count - 1) * headers, count, headers, segment)


def keep(packet: bytes, of: Shape, runs: Runs) -> list[bytes]:
    """The packet without the segments outside the runs: one packet for each run."""
    if runs == ((0, of.packets),):
        return [packet]
    if of.packets == 1:
        return []
    return [_cut(packet, of, first, end) for first, end in runs]


def _cut(packet: bytes, of: Shape, first: int, end: int) -> bytes:
    """Segments `first` up to `end`, as if TCP had sent them as a packet."""
    start = HEADER_BYTES + of.headers_bytes
    head = bytearray(packet[:start])
    body = packet[start + first * of.segment_bytes : start + end * of.segment_bytes]
    flags, kind, header, segment, sum_start, sum_offset = _VIRTIO.unpack_from(head)
    if end - first == 1:
        kind, segment = PLAIN, 0
    _VIRTIO.pack_into(head, 0, flags, kind, header, segment, sum_start, sum_offset)
    ip = HEADER_BYTES
    tcp = ip + 4 * (head[ip] & 15)
    identity = int.from_bytes(head[ip + 4 : ip + 6], "big") + first
    sequence = int.from_bytes(head[tcp + 4 : tcp + 8], "big") + first * of.segment_bytes
    head[ip + 2 : ip + 4] = (of.headers_bytes + len(body)).to_bytes(2, "big")
    head[ip + 4 : ip + 6] = (identity & 0xFFFF).to_bytes(2, "big")
    head[ip + 10 : ip + 12] = b"\0\0"
    head[ip + 10 : ip + 12] = checksum(head[ip:tcp]).to_bytes(2, "big")
    head[tcp + 4 : tcp + 8] = (sequence & 0xFFFFFFFF).to_bytes(4, "big")
    if end < of.packets:
        head[tcp + 13] &= ~LAST_ONLY & 0xFF
    if first:
        head[tcp + 13] &= ~FIRST_ONLY & 0xFF
    return bytes(head + body)


def checksum(data: bytes | bytearray) -> int:
    """The Internet checksum of an even number of bytes."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
