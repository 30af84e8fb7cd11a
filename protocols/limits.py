"""How much of anything a peer may send: what more would cost, a stranger must not make us pay.

Must NOT hold timing, which is agreed per run (config.py).
"""

CONTROL_BYTES_MAX = 1 << 20
"""A control message. The Run entry of a model with 5,000 parameters takes a third of it."""
CHUNK_HEADER_BYTES_MAX = 64 << 10
"""A result's header names every contributor: about 100 bytes each, PEERS_MAX of them."""
CHUNK_BYTES_MAX = 1 << 20
"""Payload of one chunk."""
PEERS_MAX = 512
ENTRIES_MAX = 64
"""Log entries in one Append."""
SEATS_MAX = 4096
"""Peers that took part in a run and are remembered (seats.py)."""
SPENT_MAX = 4096
"""Admissions by token that are remembered (tokens.py)."""
TOKEN_CHARS_MAX = 1024
ADMIT_BYTES_MAX = 4 << 10
"""All that a connection without a certificate may send."""
SECRET_BYTES = 32
"""What the keys of a bulk connection are made of."""
TICKET_BYTES = 16
"""What a connection begins with that belongs to another one."""
CERTIFICATE_BYTES_MAX = 1 << 10
"""In DER; ours have about 350."""
CONTRIBUTION_TOKENS_MAX = 1 << 44
CONTRIBUTION_STEPS_MAX = 1 << 24
"""What one contribution may say of itself: no node ever trains so much between two rounds, and the
run's sums stay far from where they could not be written any more."""
TOTAL_MAX = (1 << 63) - 1
"""Where the run's sums stay, whatever members say."""
TERM_LEAP_MAX = 1 << 16
"""So far ahead of us is nobody but a leader, of whoever was away: candidates ask before they stand,
so that terms hardly grow while nobody can win. And nobody can use up all of them."""
FRAGMENTS_MAX = 1024
DONORS_MAX = 4
"""Of one cut: more would not make a joiner faster, and each copies the state."""
LEAF_BYTES = 32
LEAVES_MAX = 8192
"""In one message."""
SPANS_MAX = 64
"""Stretches of cells that a joiner asks one donor for at a time."""
TENSORS_MAX = 10_000
DIMENSIONS_MAX = 8
NAME_MAX = 128
TEXT_MAX = 1024
JSON_MAX = 64 << 10
PIECE_BYTES_MAX = 512 << 10
"""Of a snapshot, in one message."""
SNAPSHOT_BYTES_MAX = 64 << 20

HELD_STEPS_MAX = 3
"""Steps beyond its own of which a peer that stops may hold payloads: two, unless a roster dies."""
PROVIDERS_MAX = HELD_STEPS_MAX * PEERS_MAX

LIST_MAX = max(PEERS_MAX + 1, ENTRIES_MAX, SEATS_MAX, SPENT_MAX, FRAGMENTS_MAX, TENSORS_MAX)
