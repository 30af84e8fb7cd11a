"""Several nodes in one process, in order, with the bits of real daemons: for research and tests.

In: models or contributions of each node. Out: the outer results of every round or step. Must NOT
use a connection, a log, a clock or a thread.

Start reading: exchange.py, then nodes.py.
"""
