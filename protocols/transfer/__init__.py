"""State transfer to a joiner: donors, cells, hash tree.

In: a Cut in the log (which versions a joiner gets, from which donors), cells that arrived. Out:
commands to lend, hash, request, send and adopt a state. Each cell is checked against a root that is
in the log, so a donor that sends a wrong cell is named at once. Must NOT touch bytes, and must not
choose donors: the leader does (protocols/leader/recovery.py).

Start reading: receiver.py, then donor.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from protocols.transfer.receiver import REFILL_CELLS

__all__ = ["REFILL_CELLS"]

__getattr__ = lazy_exports(
    __name__,
    {
        "receiver": "REFILL_CELLS",
    },
)
