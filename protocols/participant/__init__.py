"""One peer's part in the run.

In: committed entries, payloads, requests of other peers, reports of the ranks and of the own
arithmetic. Out: commands, and the reports that the leader lacks. It works in the same way whichever
peer leads. Must NOT decide for others (protocols/leader does), nor know how the log is replicated.

Start reading: participant.py, then member_status.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from protocols.participant.member_status import MemberStatus

__all__ = ["MemberStatus"]

__getattr__ = lazy_exports(__name__, {"member_status": "MemberStatus"})
