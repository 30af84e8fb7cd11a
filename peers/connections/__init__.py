"""Control and bulk connections: handshake, encryption, reconnects.

In: addresses and identities from the core. Out: one control connection and one or more bulk
connections for each peer, with mutual TLS 1.3, framed messages, and events when one begins or ends.
Bulk data is encrypted with keys that come from the control connection (encryption.py decrypts each
chunk). Must NOT decide which peers to connect with, nor what a lost connection means.

Start reading: mesh.py, then session.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from peers.connections.bulk import RECEIVE_BYTES_MAX, SEND_BYTES_MAX, Bulk
    from peers.connections.mesh import Mesh

__all__ = ["RECEIVE_BYTES_MAX", "SEND_BYTES_MAX", "Bulk", "Mesh"]

__getattr__ = lazy_exports(
    __name__,
    {
        "bulk": "Bulk RECEIVE_BYTES_MAX SEND_BYTES_MAX",
        "mesh": "Mesh",
    },
)
