"""Values that all other rooms share: identifiers, limits, timing rules, sample ranges, errors.

In: nothing. Out: frozen records such as PeerId, Stamp, Version and TensorSpec; the limits of every
value that can reach the log or a message; ProtocolConfig with the protocol's times in seconds. Must
NOT import another room, and must not know a message, a log entry or the disk.

Start reading: ids.py, then limits.py.
"""
