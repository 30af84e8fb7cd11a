"""Decisions of the leader, and its memory for them.

In: the state that the log led to, and the reports of peers in this term. Out: the next entry for
the log, each with its reason: views, attempts, commits, joins, exclusions, votes, leases,
rollbacks. Reports are kept by peer and incarnation and are dropped as a whole; a new leader begins
with none. Must NOT send bulk data, and must not remember a decision anywhere but in the log.

Start reading: term.py (what exists only while a peer leads), then decisions.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from protocols.leader.joins import HOLD_DOWN_MAX_S, HOLD_DOWN_S
    from protocols.leader.voters import LAG_MAX, VOTERS_MAX

__all__ = ["HOLD_DOWN_MAX_S", "HOLD_DOWN_S", "LAG_MAX", "VOTERS_MAX"]

__getattr__ = lazy_exports(
    __name__,
    {
        "joins": "HOLD_DOWN_MAX_S HOLD_DOWN_S",
        "voters": "LAG_MAX VOTERS_MAX",
    },
)
