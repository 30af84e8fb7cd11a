"""The daemon's control of its own ranks.

In: events of the ranks' processes, and results, samples and orders for them. Out: contributions
and readiness for the core, parameters and samples for the ranks, checkpoints on disk. Must NOT
import torch, nor communicate with peers.

Start reading: rank_control.py, then rank_rounds.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from lowcomm.rank_control.rank_control import program_spawner
    from lowcomm.rank_control.round_clock import fits

__all__ = ["fits", "program_spawner"]

__getattr__ = lazy_exports(
    __name__,
    {
        "rank_control": "program_spawner",
        "round_clock": "fits",
    },
)
