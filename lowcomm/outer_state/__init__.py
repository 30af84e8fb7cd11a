"""Outer parameters and momentum, in the daemon.

All arithmetic on them is here. In: contributions in shared memory and results from peers/exchange.
Out: encoded contributions, sums, the next version of each fragment, its digest, states for joiners
and checkpoints. Replica implements the protocol RoundWork that peers/exchange calls; StepReplica
does the same for stepwise runs. Must NOT import torch, nor know connections.

Start reading: replica.py, then versions.py and outer_step.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from lowcomm.outer_state.fragment_layout import fragment_elements
    from lowcomm.outer_state.replica import Replica
    from lowcomm.outer_state.step_replica import StepReplica

__all__ = ["Replica", "StepReplica", "fragment_elements"]

__getattr__ = lazy_exports(
    __name__,
    {
        "fragment_layout": "fragment_elements",
        "replica": "Replica",
        "step_replica": "StepReplica",
    },
)
