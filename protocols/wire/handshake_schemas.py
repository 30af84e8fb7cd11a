"""Schemas of messages that open connections: hellos, admission, tunnels. A part of schemas.py."""

from collections.abc import Mapping

from protocols.messages import peer as m
from protocols.types.limits import (
    CERTIFICATE_BYTES_MAX,
    NAME_MAX,
    SECRET_BYTES,
    TEXT_MAX,
    TICKET_BYTES,
    TOKEN_CHARS_MAX,
)
from protocols.wire.validators import Check, flag, integer, octets, peer_id, text

_u32, _u63, _u64 = (integer(1 << bits) for bits in (32, 63, 64))
_name, _words = text(NAME_MAX), text(TEXT_MAX)
_certificate = octets(0, CERTIFICATE_BYTES_MAX)

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
    m.WantTunnel: {"peer": peer_id, "number": _u63},
    m.TunnelTicket: {
        "peer": peer_id,
        "number": _u63,
        "ticket": octets(TICKET_BYTES, TICKET_BYTES),
    },
    m.NoTunnel: {"number": _u63, "why": _words},
    m.Admit: {
        "protocol": _u32,
        "token": text(TOKEN_CHARS_MAX),
        "peer": peer_id,
        "key": octets(32, 32),
        "certificate": _certificate,
        "proof": octets(0, 64),
    },
    m.Admitted: {"certificate": _certificate, "authority": _certificate},
    m.NotAdmitted: {"why": _words, "final": flag},
    m.Decided: {"number": _u63, "certificate": _certificate, "why": _words, "final": flag},
    m.AskKey: {},
    m.AuthorityKey: {"key": _certificate},
}
