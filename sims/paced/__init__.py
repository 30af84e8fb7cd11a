"""Ranks without a model: real daemons, sockets and shared memory with hardly any CPU.

In: a step time in seconds and a number of elements. Out: contributions that a test can work out.
Must NOT import torch.

Start reading: rank.py.
"""
