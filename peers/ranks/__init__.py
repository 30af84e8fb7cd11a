"""The ranks of one node: attempts, faults, restarts.

In: what ranks say, and their exit statuses. Out: events for the node, among them the reason why an
attempt ended, and whether another attempt makes sense (restarts.py). Must NOT speak with
other peers, and no fault of a rank may end the daemon.

Start reading: rank_group.py, then attempt.py for the rules that a rank must keep.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from peers.ranks import events
    from peers.ranks.attempt import HangLimits
    from peers.ranks.config import RanksConfig
    from peers.ranks.rank_group import RankGroup
    from peers.ranks.rendezvous import Elsewhere
    from peers.ranks.socket_directory import SocketDirectory

__all__ = ["Elsewhere", "HangLimits", "RankGroup", "RanksConfig", "SocketDirectory", "events"]

__getattr__ = lazy_exports(
    __name__,
    {
        "attempt": "HangLimits",
        "config": "RanksConfig",
        "rank_group": "RankGroup",
        "rendezvous": "Elsewhere",
        "socket_directory": "SocketDirectory",
    },
)
