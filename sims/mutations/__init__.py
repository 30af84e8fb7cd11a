"""Planted bugs of the protocol core.

In: source text of a function. Out: the same function with one change, as a careless commit would
make it. catalogue.py lists them all by name; `python -m sims.mutants` checks that each is caught.
Must NOT run anything.

Start reading: patch.py, then rounds.py.
"""
