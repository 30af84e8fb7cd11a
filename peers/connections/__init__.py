"""Control and bulk connections between peers: dialling, handshake, encryption, reconnects.

In: addresses and identities from the core. Out: one control connection and one or more bulk
connections for each peer, with mutual TLS 1.3, framed messages, and events when one begins or ends.
Bulk data is encrypted with keys that come from the control connection (encryption.py decrypts each
chunk). Must NOT decide which peers to connect with, nor what a lost connection means.

Start reading: mesh.py, then session.py.
"""
