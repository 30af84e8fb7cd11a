"""Planted bugs of the shell.

The shell is peers and lowcomm, which no simulated seed runs. In: source text of a function. Out:
the same function with one change, and the test files that must notice it. `python -m
sims.shell_mutants` checks that they do; docs/planted-bugs.md is its table. Must NOT run anything.

Start reading: all.py.
"""
