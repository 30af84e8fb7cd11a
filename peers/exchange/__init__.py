"""The data plane of rounds: contributions, sums and results, in pieces.

In: commands of the core and pieces that arrive from other peers. Out: pieces for other peers, and
events when a payload or a sum is complete. A piece is 262,144 elements (1 MiB of fp32): it is
summed, encoded and sent as soon as it is there, so no step waits for a whole payload. Must NOT
decide whether a payload counts (the core does), nor know arrays: the arithmetic is behind the
protocol Work (interfaces.py).

Start reading: data_plane.py, then pieces.py.
"""
