"""State transfer in bytes: hashed, sent, received, checked.

In: commands of the core. Out: cells of 1 MiB to and from other peers, and events when a state is
hashed or complete. Hashing runs in a thread of low priority, and sending yields to rounds. Must NOT
decide which peer gives which cells, nor look into a state.

Start reading: state_transfer.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from peers.transfer.tree_hashing import cells

__all__ = ["cells"]

__getattr__ = lazy_exports(
    __name__,
    {
        "tree_hashing": "cells",
    },
)
