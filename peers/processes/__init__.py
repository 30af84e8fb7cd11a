"""Child processes of a daemon: start them, watch them, end them, and never leave one behind.

In: command lines and environments. Out: running processes, their exit status and the last lines of
their stderr. Ranks are forked from a zygote that has imported torch once, or started by the user's
own launcher; every child dies with its parent. Must NOT know what a child is for, nor speak with
ranks.

Start reading: supervisor.py.
"""
