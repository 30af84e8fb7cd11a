"""Ranks of one node on other hosts.

In: the daemon's messages for such ranks, and results in its memory. Out: the ranks' messages, and
their contributions in the same memory, over one mutually authenticated TLS connection for each
host. To a daemon such a rank is as any other, and to the rank the process on its host is its
daemon. Must NOT decide anything about training, nor keep the state of a run: a host that is lost
takes its ranks with it.

Start reading: rank_hosts.py (the daemon's side), host_ranks.py (the other one), arrays.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from peers.hosts.host_ranks import run_ranks
    from peers.hosts.rank_hosts import RankHosts
    from peers.hosts.spawner import HostsSpawner

__all__ = ["HostsSpawner", "RankHosts", "run_ranks"]

__getattr__ = lazy_exports(
    __name__,
    {
        "host_ranks": "run_ranks",
        "rank_hosts": "RankHosts",
        "spawner": "HostsSpawner",
    },
)
