"""What a node does before its run begins or goes on: identity, admission, memory check.

In: a node's directory, its options and its configuration. Out: a peer id, certificates, a
write-ahead log to go on from, join tokens, and the refusal of a model that does not fit into
memory. Must NOT import torch, nor start ranks.

Start reading: startup.py, then identity.py.
"""
