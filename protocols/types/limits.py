"""How much of anything a peer may send: what more would cost, a stranger must not make us pay.

Must NOT hold timing, which is agreed per run (rules.py).
"""

CONTROL_BYTES_MAX = 1 << 20
"""A control message. The largest entry of the log, Run, takes at most four fifths of it."""
ENTRY_BYTES_MAX = CONTROL_BYTES_MAX - 1024
"""A log entry. It travels in one message, the rest of which takes less than 1 KiB."""
CHUNK_HEADER_BYTES_MAX = 64 << 10
"""A result's header names every contributor: about 100 bytes each, PEERS_MAX of them."""
CHUNK_BYTES_MAX = 1 << 20
"""Payload of one chunk."""
PEERS_MAX = 512
ENTRIES_MAX = 64
"""Log entries in one Append."""
SEATS_MAX = 4096
"""Peers that took part in a run and are remembered (state/participants.py)."""
SPENT_MAX = 4096
"""Admissions by token that are remembered (state/tokens.py)."""
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
SAMPLES_MAX = 1 << 28
"""Of one contribution: of several rounds a peer says in 32 bits how many it wants ahead."""
ROUNDS_MAX = 1 << 31
"""Rounds of a run, or its steps where peers agree on each: stamps count them in 32 bits, and a Void
skips one."""
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
TENSORS_MAX = 100_000
"""Of a model: a mixture of experts with 60 layers of 512 experts has 94,000."""
TENSOR_NAME_BYTES_MAX = 1024
"""Of one parameter's name in UTF-8: what module paths of wrapped and compiled models take."""
LAYOUT_NAMES_BYTES_MAX = 24 << 20
"""Of all parameters' names in UTF-8: the header of a safetensors file, of which loaders take 100
MB, holds up to three arrays by each name."""
DIMENSIONS_MAX = 8
ELEMENTS_MAX = (1 << 62) - 1
"""Of a model: offsets and sums of them stay within 63 bits."""
NAME_MAX = 128
"""Characters of a peer's id, a node's name, an address."""
TEXT_MAX = 1024
"""Characters of a reason."""
JSON_MAX = 64 << 10
"""Characters of the agreed `[run]`; in ASCII, so as many bytes."""
PIECE_BYTES_MAX = 512 << 10
"""Of a snapshot, in one message."""
LAYOUT_BYTES_MAX = PIECE_BYTES_MAX
"""Of a model's layout as it travels, compressed (wire/layout.py)."""
SNAPSHOT_BYTES_MAX = 64 << 20

HELD_STEPS_MAX = 3
"""Steps beyond its own of which a peer that stops may hold payloads: two, unless a roster dies."""
PROVIDERS_MAX = HELD_STEPS_MAX * PEERS_MAX

LIST_MAX = 10_000
"""Items of any list in a message or an entry."""
assert max(PEERS_MAX + 1, ENTRIES_MAX, SEATS_MAX, SPENT_MAX, FRAGMENTS_MAX) <= LIST_MAX
assert LAYOUT_BYTES_MAX + JSON_MAX + 8 * FRAGMENTS_MAX <= CONTROL_BYTES_MAX * 4 // 5
