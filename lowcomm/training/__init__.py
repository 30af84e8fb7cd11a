"""The torch half of a method, in each rank.

In: a model (FSDP2 or plain), an optimizer, and the daemon's shared memory. Out: contributions at
the end of each round, and the outer result in the model's parameters. `lowcomm.DiLoCo(model,
optimizer, peer).step()` is all that a training loop calls. Must NOT speak with other nodes: the
daemon does.

Start reading: attach.py, then round_methods.py and round_rank.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from lowcomm.training.attach import Peer
    from lowcomm.training.interfaces import Kind, RoundState
    from lowcomm.training.round_rank import RoundRank
    from lowcomm.training.round_schedule import ANCHOR
    from lowcomm.training.step_rank import StepRank

__all__ = [
    "ANCHOR",
    "Kind",
    "Peer",
    "RoundRank",
    "RoundState",
    "StepRank",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "attach": "Peer",
        "interfaces": "Kind RoundState",
        "round_rank": "RoundRank",
        "round_schedule": "ANCHOR",
        "step_rank": "StepRank",
    },
)
