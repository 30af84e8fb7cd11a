"""FlexDeMo in each rank, in torch.

It compresses the momentum, sends it, and applies the mean update. In: gradients of this rank's
rows. Out: payloads in shared memory with the same bytes as lowcomm/replicators makes on numpy
arrays, and the step of the model. Must NOT decide when a step is applied, nor speak with a peer.

Start reading: method.py, then momentum.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from lowcomm.flexdemo.momentum import MomentumExchange

__all__ = ["MomentumExchange"]

__getattr__ = lazy_exports(
    __name__,
    {
        "momentum": "MomentumExchange",
    },
)
