"""The write-ahead log on disk: term, vote, log entries and snapshots survive a crash.

In: Persist commands. Out: a confirmation for each ticket after fsync, and the state that a
restarted peer begins with. A torn last record is dropped; any other damage is an error. Must NOT
decide what is written, nor what a full disk means.

Start reading: wal.py, then wal_format.py.
"""
