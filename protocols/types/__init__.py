"""Identifiers, limits, timing rules and errors for all rooms.

In: nothing. Out: frozen records such as PeerId, Stamp, Version and TensorSpec; the limits of every
value that can reach the log or a message; ProtocolConfig with the protocol's times in seconds. Must
NOT import another room, and must not know a message, a log entry or the disk.

Start reading: ids.py, then limits.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from protocols.types import limits, sample_ranges
    from protocols.types.errors import ConfigError, LogError, LowcommError, RefusedError
    from protocols.types.ids import (
        PROTOCOL_VERSION,
        Contributor,
        FrozenTensor,
        PartBlocks,
        PeerId,
        Stamp,
        TensorKind,
        TensorSpec,
        Version,
        digest_text,
    )
    from protocols.types.limits import (
        ADMIT_BYTES_MAX,
        CERTIFICATE_BYTES_MAX,
        CHUNK_BYTES_MAX,
        CONTRIBUTION_STEPS_MAX,
        CONTRIBUTION_TOKENS_MAX,
        CONTROL_BYTES_MAX,
        CORPUS_FILES_MAX,
        ENTRIES_MAX,
        FRAGMENTS_MAX,
        JSON_MAX,
        LAYOUT_BYTES_MAX,
        NAME_MAX,
        PEERS_MAX,
        ROUNDS_MAX,
        SAMPLES_MAX,
        SECRET_BYTES,
        SNAPSHOT_BYTES_MAX,
        TEXT_MAX,
        TICKET_BYTES,
    )
    from protocols.types.rules import ProtocolConfig
    from protocols.types.sample_ranges import (
        ALL_REMAIN,
        Remaining,
        SampleRange,
        Samples,
        count,
        first,
        subtract,
        union,
    )
    from protocols.types.signatures import NO_SIGNATURES

__all__ = [
    "ADMIT_BYTES_MAX",
    "CERTIFICATE_BYTES_MAX",
    "ALL_REMAIN",
    "CHUNK_BYTES_MAX",
    "CONTRIBUTION_STEPS_MAX",
    "CONTRIBUTION_TOKENS_MAX",
    "CONTROL_BYTES_MAX",
    "CORPUS_FILES_MAX",
    "ENTRIES_MAX",
    "FRAGMENTS_MAX",
    "JSON_MAX",
    "LAYOUT_BYTES_MAX",
    "NAME_MAX",
    "NO_SIGNATURES",
    "PEERS_MAX",
    "PROTOCOL_VERSION",
    "ROUNDS_MAX",
    "SAMPLES_MAX",
    "SECRET_BYTES",
    "SNAPSHOT_BYTES_MAX",
    "TEXT_MAX",
    "TICKET_BYTES",
    "ConfigError",
    "Contributor",
    "FrozenTensor",
    "LogError",
    "LowcommError",
    "PartBlocks",
    "PeerId",
    "ProtocolConfig",
    "RefusedError",
    "Remaining",
    "SampleRange",
    "Samples",
    "Stamp",
    "TensorKind",
    "TensorSpec",
    "Version",
    "count",
    "digest_text",
    "first",
    "limits",
    "sample_ranges",
    "subtract",
    "union",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "errors": "ConfigError LogError LowcommError RefusedError",
        "ids": (
            "Contributor FrozenTensor PROTOCOL_VERSION PartBlocks PeerId Stamp TensorKind "
            "TensorSpec Version digest_text"
        ),
        "limits": (
            "ADMIT_BYTES_MAX CERTIFICATE_BYTES_MAX CHUNK_BYTES_MAX CONTRIBUTION_STEPS_MAX "
            "CONTRIBUTION_TOKENS_MAX CONTROL_BYTES_MAX CORPUS_FILES_MAX "
            "ENTRIES_MAX FRAGMENTS_MAX JSON_MAX LAYOUT_BYTES_MAX NAME_MAX "
            "PEERS_MAX ROUNDS_MAX SAMPLES_MAX SECRET_BYTES SNAPSHOT_BYTES_MAX "
            "TEXT_MAX TICKET_BYTES"
        ),
        "rules": "ProtocolConfig",
        "sample_ranges": "ALL_REMAIN Remaining SampleRange Samples count first subtract union",
        "signatures": "NO_SIGNATURES",
    },
)
