"""Payloads of FlexDeMo on numpy arrays: which part of a momentum is sent, and how it is encoded.

In: momentum in chunks. Out: payload bytes, and the mean of several payloads as dense arrays.
lowcomm/flexdemo has the same operations in torch, bit by bit. Must NOT import torch.

Start reading: replicators.py.
"""
