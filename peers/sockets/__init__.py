"""Addresses and sockets: what the kernel is asked for, without any protocol.

In: HOST:PORT texts and file descriptors. Out: listening sockets, resolved addresses, socket
options, the kernel's figures about a connection (tcp_info.py), a rate for a connection that
overfills its line, and large anonymous memory (memory_pages.py). Must NOT know peers, messages or
certificates.

Start reading: address.py and listener.py.
"""
