"""The models of the built-in training program.

In: a model's configuration and a seed. Out: a torch module with the same initial parameters on
every node. Must NOT know nodes, methods or fragments.

Start reading: llama.py.
"""
