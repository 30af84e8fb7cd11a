"""Schemas of messages that open connections: hellos, admission, tunnels. A part of schemas.py."""

from collections.abc import Mapping

from protocols.messages import peer as m
from protocols.types.limits import (
    CERTIFICATE_BYTES_MAX,
    CERTIFICATES_MAX,
    NAME_MAX,
    SECRET_BYTES,
    TEXT_MAX,
    TICKET_BYTES,
)
from protocols.wire.validators import Check, flag, integer, many, octets, peer_id, text

_u32, _u63, _u64 = (integer(1 << bits) for bits in (32, 63, 64))
_name, _words = text(NAME_MAX), text(TEXT_MAX)
_certificates = many(octets(1, CERTIFICATE_BYTES_MAX), CERTIFICATES_MAX)

MEETING: Mapping[type, Mapping[str, Check]] = {
    m.Hello: {
        "protocol": _u32,
        "run": _u64,
        "peer": peer_id,
        "name": _name,
        "incarnation": _u32,
        "address": _name,
        "leader": _name,
    },
    m.BulkKeys: {"secret": octets(SECRET_BYTES, SECRET_BYTES)},
    m.WantBulk: {},
    m.Disconnecting: {"why": _words},
    m.WantTunnel: {"peer": peer_id, "number": _u63},
    m.TunnelTicket: {
        "peer": peer_id,
        "number": _u63,
        "ticket": octets(TICKET_BYTES, TICKET_BYTES),
    },
    m.NoTunnel: {"number": _u63, "why": _words},
    m.Admitted: {"certificates": _certificates},
    m.NotAdmitted: {"why": _words, "final": flag},
    m.Decided: {"number": _u63, "certificates": _certificates, "why": _words, "final": flag},
}
