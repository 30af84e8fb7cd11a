"""What people see of a run: event log, timeline, summary, live view, HTML report.

In: events.jsonl, which each daemon writes. Out: texts, tables and charts made from it. Must NOT
change a run, and must not ask a daemon for anything that is not in its event log.

Start reading: events.py, then timeline.py.
"""
