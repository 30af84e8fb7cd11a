"""The daemon's outer parameters and momentum, and all arithmetic on them.

In: contributions in shared memory and results from peers/exchange. Out: encoded contributions,
sums, the next version of each fragment, its digest, states for joiners and checkpoints. Replica
implements the protocol Work that peers/exchange calls; StepReplica does the same for stepwise runs.
Must NOT import torch, nor know connections.

Start reading: replica.py, then versions.py and outer_step.py.
"""
