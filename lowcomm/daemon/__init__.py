"""The node's daemon: core, shell, outer state and ranks composed into one program.

In: what lowcomm/startup has prepared. Out: a running node that trains, votes, writes checkpoints
and its event log, and answers `lowcomm status` and `lowcomm revoke`. `lowcomm witness` is the same
without ranks and arrays. Must NOT import torch, nor decide anything that all peers must agree on.

Start reading: daemon.py, then rank_control.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from lowcomm.daemon.round_clock import fits

__all__ = ["fits"]

__getattr__ = lazy_exports(
    __name__,
    {
        "round_clock": "fits",
    },
)
