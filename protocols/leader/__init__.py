"""What the leader decides, and what it remembers in order to decide.

In: the state that the log led to, and the reports of peers in this term. Out: the next entry for
the log, each with its reason: views, attempts, commits, joins, exclusions, votes, leases,
rollbacks. Reports are kept by peer and incarnation and are dropped as a whole; a new leader begins
with none. Must NOT send bulk data, and must not remember a decision anywhere but in the log.

Start reading: term.py (what exists only while a peer leads), then decisions.py.
"""
