"""Counters of one daemon, and the Prometheus endpoint that serves them.

In: counts and durations from the other rooms. Out: figures by peer and purpose; text for `GET
/metrics`. Must NOT be imported by a daemon that serves no metrics (prometheus.py), nor tell any
secret.

Start reading: counters.py.
"""
