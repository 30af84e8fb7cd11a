"""Bytes to records and back: the encoding of messages, log entries, snapshots and join tokens.

In: bytes that any peer may have sent. Out: records of protocols/messages, each field checked for
type, range and size; bytes from records. Malformed bytes raise WireError and change nothing. Must
NOT trust a length, a count or a text before it is checked, and must not know what a message leads
to.

Start reading: codec.py, then schemas.py for the fields of each record.
"""
