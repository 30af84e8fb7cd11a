"""The torch half of a method, in each rank of a training program.

In: a model (FSDP2 or plain), an optimizer, and the daemon's shared memory. Out: contributions at
the end of each round, and the outer result in the model's parameters. `lowcomm.DiLoCo(model,
optimizer, peer).step()` is all that a training loop calls. Must NOT speak with other nodes: the
daemon does.

Start reading: attach.py, then round_methods.py and round_rank.py.
"""
