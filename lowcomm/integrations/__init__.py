"""Nodes made of other projects' trainers.

In: a trainer of torchtitan, Hugging Face or Lightning, and its data loader. Out: the same training
as one rank of a node: the leases choose its items, and a method exchanges its parameters. Each
trainer has one file, which only its users import, since it needs their package. Must NOT be
imported by a daemon, nor by another room. Programs that use it are in examples/.

Start reading: huggingface.py, then training_node.py.
"""

__all__: list[str] = []
