"""Emulated wide-area links for real processes (docs/wan.md).

In: bandwidth, delay, jitter and loss of each direction. Out: places in which processes run, with
links between them: network namespaces (real TCP; needs root) or relayed streams (anywhere). Must
NOT send anything but to loopback, or inside namespaces that the run itself made.

Start reading: network.py.
"""

from lowcomm.quantities import RATE, SHARE, TIME, parse
from sims.wan.link import WanLink, all_pairs
from sims.wan.network import Means, Place, Wan, why_not

__all__ = [
    "RATE",
    "SHARE",
    "TIME",
    "Means",
    "Place",
    "Wan",
    "WanLink",
    "all_pairs",
    "parse",
    "why_not",
]
