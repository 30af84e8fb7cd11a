"""Emulated links of a wide-area network for real processes on one machine (docs/wan.md).

In: bandwidth, delay, jitter and loss of each direction. Out: places in which processes run, with
links between them: network namespaces (real TCP; needs root) or relayed streams (anywhere). Must
NOT send anything but to loopback, or inside namespaces that the run itself made.

Start reading: network.py.
"""

from sims.wan.link import Counters, Link, Pair, WanError
from sims.wan.network import MEANS, Means, Place, Usage, Wan, why_not

__all__ = [
    "MEANS",
    "Counters",
    "Link",
    "Means",
    "Pair",
    "Place",
    "Usage",
    "Wan",
    "WanError",
    "why_not",
]
