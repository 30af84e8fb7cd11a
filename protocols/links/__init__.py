"""Connections as the core sees them.

In: events about connections, heartbeats and hellos. Out: which peers are connected in which
incarnation, which silence is too long, which peer leads, and which peers carry tunnels and the log
for others. Must NOT decide what a loss means for a round or for the membership: the leader decides
that (protocols/leader).

Start reading: connections.py, then failure_detector.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from protocols.links.handshake import Identity, refusal

__all__ = ["Identity", "refusal"]

__getattr__ = lazy_exports(
    __name__,
    {
        "handshake": "Identity refusal",
    },
)
