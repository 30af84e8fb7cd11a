"""PeerCore: one peer's whole protocol, composed from the rooms below.

In: one event and the time. Out: a list of commands. Which parts of the core run after an event is
said by marks (wakeups.py); the simulator compares every event with a core that runs all parts. Must
NOT await, read a clock, draw random numbers or touch bytes: the same events give the same commands.

Start reading: core.py, then components.py for what each part does.
"""
