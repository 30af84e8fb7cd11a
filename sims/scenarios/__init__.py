"""Faults of a simulated run.

In: a seed. Out: which fault hits which peer at what time; faults of several steps; revocations;
worlds of two peers that lose each other. Must NOT judge what comes of a fault.

Start reading: fault_plan.py.
"""
