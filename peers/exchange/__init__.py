"""The data plane of rounds: contributions, sums and results.

In: commands of the core and pieces that arrive from other peers. Out: pieces for other peers, and
events when a payload or a sum is complete. A piece is 262,144 elements (1 MiB of fp32): it is
summed, encoded and sent as soon as it is there, so no step waits for a whole payload. Must NOT
decide whether a payload counts (the core does), nor know arrays: the arithmetic is behind the
protocol RoundWork (interfaces.py).

Start reading: data_plane.py, then pieces.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from peers.exchange.buffer_release import COPIED_BYTES_PER_S
    from peers.exchange.interfaces import Bytes, SlicesError, StateTaken, Told, no_matter
    from peers.exchange.payload_keys import SliceKey, slice_key
    from peers.exchange.pieces import PIECE_ELEMENTS, Encoding, Pool, digest_of, spans

__all__ = [
    "COPIED_BYTES_PER_S",
    "PIECE_ELEMENTS",
    "Bytes",
    "Encoding",
    "Pool",
    "SliceKey",
    "SlicesError",
    "StateTaken",
    "Told",
    "digest_of",
    "no_matter",
    "slice_key",
    "spans",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "buffer_release": "COPIED_BYTES_PER_S",
        "interfaces": "Bytes SlicesError StateTaken Told no_matter",
        "payload_keys": "SliceKey slice_key",
        "pieces": "Encoding PIECE_ELEMENTS Pool digest_of spans",
    },
)
