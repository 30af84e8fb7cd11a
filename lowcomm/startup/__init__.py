"""The start of a node.

Identity, admission and memory check come before the run. In: a node's directory, its options and
its configuration. Out: a peer id, certificates, a write-ahead log to go on from, join tokens, and
the refusal of a model that does not fit into memory. Must NOT import torch, nor start ranks.

Start reading: startup.py, then identity.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from lowcomm.startup.agreement import INTERVALS_AHEAD
    from lowcomm.startup.identity import in_use, node_directories, read_record, recorded_config
    from lowcomm.startup.join_tokens import new_token
    from lowcomm.startup.running_status import ask
    from lowcomm.startup.startup import last_voters, memory_needed

__all__ = [
    "INTERVALS_AHEAD",
    "ask",
    "in_use",
    "last_voters",
    "memory_needed",
    "new_token",
    "node_directories",
    "read_record",
    "recorded_config",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "agreement": "INTERVALS_AHEAD",
        "identity": "in_use node_directories read_record recorded_config",
        "join_tokens": "new_token",
        "running_status": "ask",
        "startup": "last_voters memory_needed",
    },
)
