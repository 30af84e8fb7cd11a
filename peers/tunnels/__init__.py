"""Connections through a third peer.

They serve two peers that cannot dial each other. In: a ticket from the peer in between. Out: a
connection that is used like a direct one; its bytes are encrypted between its two ends, so the peer
in between cannot read them. Must NOT choose the peer in between: the core does
(protocols/links/tunnel_choice.py).

Start reading: client.py for the two ends, relay.py for the peer in between.
"""
