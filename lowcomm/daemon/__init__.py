"""The node's daemon, composed of all other parts.

Its parts are core, shell, outer state and ranks. In: what lowcomm/startup has prepared. Out: a
running node that trains, votes, writes its event log, and answers `lowcomm status` and `lowcomm
revoke`. `lowcomm witness` is the same without ranks and arrays. Must NOT import torch, nor decide
anything that all peers must agree on.

Start reading: daemon.py, then bootstrap.py.
"""
