"""One peer's part in the rounds of one fragment.

In: the plan of the open round (protocols/state), names of payloads that arrived, finished sums.
Out: commands to encode a contribution, send a slice, reduce a part, send a result, apply the outer
step. Payloads of another lineage, view or attempt are dropped (fencing.py). Must NOT touch bytes,
and must not decide which contributions count: the log does.

Start reading: fragment_rounds.py, then round_exchange.py and local_work.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from protocols.rounds.contributions import PartResult
    from protocols.rounds.fencing import Fence
    from protocols.rounds.fragment_rounds import KEEP_ROUNDS
    from protocols.rounds.fragment_schedule import next_fragment
    from protocols.rounds.owner_checks import CONTRIBUTORS_MIN, block_elements, sample_size

__all__ = [
    "CONTRIBUTORS_MIN",
    "KEEP_ROUNDS",
    "Fence",
    "PartResult",
    "block_elements",
    "next_fragment",
    "sample_size",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "contributions": "PartResult",
        "fencing": "Fence",
        "fragment_rounds": "KEEP_ROUNDS",
        "fragment_schedule": "next_fragment",
        "owner_checks": "CONTRIBUTORS_MIN block_elements sample_size",
    },
)
