"""FlexDeMo's payloads on numpy arrays.

A replicator chooses the part of a momentum that is sent. In: momentum in chunks. Out: payload
bytes, and the mean of several payloads as dense arrays. lowcomm/flexdemo has the same operations in
torch, bit by bit. Must NOT import torch.

Start reading: replicators.py.
"""
