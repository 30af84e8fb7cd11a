"""Links of a wide-area network for real processes on one machine: `Wan`, `Link`; see docs/wan.md.

By network namespaces (real TCP; needs root) or by relayed streams (anywhere), one interface. Must
NOT send anything but to loopback, or inside namespaces that the run itself made.
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
