"""A whole cluster in virtual time.

It runs in one thread: lines, connections, admission, and the clock. In: a seed and a plan of
faults. Out: the same story for the same seed. Nodes (sims/node) run the real core; second cores
that run all of their parts after each event must give the same commands (twin_cores.py). A subclass
of a world adds its observer. Must NOT judge what happens: sims/checkers does.

Start reading: world.py; step_world.py is the same for stepwise runs.
"""
