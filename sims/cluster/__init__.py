"""Runs of several real daemons on this machine: `lowcomm demo` and `lowcomm sim`.

In: a configuration, a number of nodes, faults. Out: daemons as a user would start them, a live
view, a summary and a report. Must NOT reach into a daemon: it uses the command line and the event
log, as a user does.

Start reading: local_cluster.py, then launch.py.
"""
