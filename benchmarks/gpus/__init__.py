"""A node of the GPU benchmark: the training program of its peers.

In: a mode and sizes on the command line, and a daemon if the mode has a peer. Out: one JSON line
with seconds for each step. Must NOT judge: benchmarks/gpu.py compares.

Start reading: gpu_node.py.
"""

__all__: list[str] = []
