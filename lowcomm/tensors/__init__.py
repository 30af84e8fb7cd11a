"""Names and places of the tensors of a user's model.

In: any torch.nn.Module, wrapped, sharded, or with parts that no node trains. Out: names without
wrappers, the part of a tensor that one rank holds, and the fingerprints of frozen tensors. Must NOT
know rounds, nor change a tensor.

Start reading: names.py, then frozen.py.
"""

__all__ = []
