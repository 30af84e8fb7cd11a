"""The data plane of stepwise runs: payloads of steps between peers, orders to the ranks.

In: commands of the core and payloads of other peers. Out: payloads, orders, and events when ranks
have obeyed. A payload is kept by the digest of its bytes. Must NOT decide which steps are made or
committed.

Start reading: step_shell.py.
"""
