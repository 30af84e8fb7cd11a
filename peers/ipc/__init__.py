"""What a daemon, its ranks and local commands say to each other, and the memory they share.

In: records of messages.py and step_orders.py, encoded as strict msgpack. Out: the same records at
the other end of a Unix socket; shared memory for contributions and results (shared_memory.py); a
ZeroMQ bus for commands such as `lowcomm status`. Must NOT import torch, and must not decide what a
message leads to.

Start reading: messages.py, then rank_client.py (a rank's end) and daemon_socket.py (the daemon's).
"""
