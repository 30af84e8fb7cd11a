"""The text that a run trains on, and which of its samples each node draws.

In: files of text, and ranges of samples that the log has leased to a node. Out: batches for ranks,
held-out text for evaluation, and the digest of the corpus that all peers must share. Must NOT
import torch, and must not decide which node gets which samples: the leader does.

Start reading: batches.py, then lease.py.
"""
