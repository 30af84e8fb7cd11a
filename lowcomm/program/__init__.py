"""Muon, evaluation, progress meter.

They are parts of the built-in training program, like its model and process group. In: `[run]`,
`[node]`, batches. Out: a sharded model with its values and gradients, optimizer steps, held-out
loss, samples of text, and tokens per second. A user's own program needs none of it. Must NOT be
needed by lowcomm/training.

Start reading: lowcomm/worker.py, which puts them together.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from lowcomm.program.evaluate import held_out_loss
    from lowcomm.program.muon import Muon

__all__ = ["Muon", "held_out_loss"]

__getattr__ = lazy_exports(
    __name__,
    {
        "evaluate": "held_out_loss",
        "muon": "Muon",
    },
)
