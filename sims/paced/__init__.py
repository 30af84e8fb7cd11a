"""Ranks without a model, under real daemons.

Sockets and shared memory are real, with hardly any CPU. In: a step time in seconds and a number of
elements. Out: contributions that a test can work out. Must NOT import torch.

Start reading: rank.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from sims.paced.cluster import paced_command, start_all
    from sims.paced.moves import FRAGMENT, TENSORS, tensors
    from sims.paced.rank import RankSpeed

__all__ = ["FRAGMENT", "TENSORS", "RankSpeed", "paced_command", "start_all", "tensors"]

__getattr__ = lazy_exports(
    __name__,
    {
        "cluster": "paced_command start_all",
        "moves": "FRAGMENT TENSORS tensors",
        "rank": "RankSpeed",
    },
)
