"""Forecasts of a run's costs: `lowcomm plan`.

In: parameters of a model, nodes, seconds of a step, and a line; or the events of an earlier run.
Out: for each method bytes, time, compute share, memory and cost in loss; the advised settings; a
chart. Bytes are those of the methods and codecs themselves. Must NOT import torch, nor start or
change a run.

Start reading: forecast.py, then overlap.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from lowcomm.planning.line_load import NodeLine, load_of
    from lowcomm.planning.model_shapes import layout_of
    from lowcomm.planning.sent_bytes import NodeTraffic, traffic_of

__all__ = ["NodeLine", "NodeTraffic", "layout_of", "load_of", "traffic_of"]

__getattr__ = lazy_exports(
    __name__,
    {
        "line_load": "NodeLine load_of",
        "model_shapes": "layout_of",
        "sent_bytes": "NodeTraffic traffic_of",
    },
)
