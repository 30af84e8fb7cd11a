"""Every record that travels between peers, stands in the log, or is kept on disk.

In: identifiers and sample ranges (types). Out: frozen records without behaviour. log_entries.py has
the entries of the replicated log, peer.py the control messages and the chunks of bulk payloads,
persisted.py what a peer must find again after a crash, snapshot.py what a snapshot of the log
holds. Must NOT encode or check anything (protocols/wire does), nor decide what a record leads to.

Start reading: log_entries.py, since everything that all peers agree on is an entry of the log.
"""
