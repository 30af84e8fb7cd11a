"""The commands of `lowcomm`: init, token, peer, witness, resume, status, recover, revoke.

In: arguments of a command line. Out: exit status 0, 2 (configuration) or 3 (refused), and for every
error that a person can mend one line that says what, why and what to do. Must NOT import torch, nor
anything slow before a command runs.

Start reading: main.py.
"""
