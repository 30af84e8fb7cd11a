"""Counters of one daemon, and its Prometheus endpoint.

In: counts and durations from the other rooms. Out: figures by peer and purpose; text for `GET
/metrics`. Must NOT be imported by a daemon that serves no metrics (prometheus.py), nor tell any
secret.

Start reading: counters.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from peers.metrics.counters import (
        PURPOSES,
        RATE_WINDOW_S,
        Counters,
        PeerTraffic,
        Purpose,
        watch,
    )
    from peers.metrics.prometheus import Figures, served

__all__ = [
    "PURPOSES",
    "RATE_WINDOW_S",
    "Counters",
    "Figures",
    "PeerTraffic",
    "Purpose",
    "served",
    "watch",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "counters": "Counters PURPOSES PeerTraffic Purpose RATE_WINDOW_S watch",
        "prometheus": "Figures served",
    },
)
