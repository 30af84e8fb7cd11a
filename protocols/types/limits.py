"""Upper limits of all that a peer may send, so that no peer can make another one use up its memory.

Must NOT hold times, which each run agrees on (rules.py).
"""

CONTROL_BYTES_MAX = 1 << 20
"""Bytes of a control message. The largest log entry, Run, takes at most four fifths of it."""
ENTRY_BYTES_MAX = CONTROL_BYTES_MAX - 1024
"""Bytes of a log entry. It travels in one message, the rest of which takes less than 1 KiB."""
CHUNK_HEADER_BYTES_MAX = 64 << 10
"""Bytes of a chunk's header. A result's header names up to PEERS_MAX contributors, about 100 bytes
each."""
CHUNK_BYTES_MAX = 1 << 20
"""Bytes of payload in one chunk."""
PEERS_MAX = 512
ENTRIES_MAX = 64
"""Log entries in one Append."""
SEATS_MAX = 4096
"""Peers that took part in a run and are remembered (state/transitions.py). More are forgotten."""
SPENT_MAX = 4096
"""Admissions by token that are remembered (state/tokens.py)."""
STEERED_MAX = 512
"""Acts that steer the run and are remembered (acts/orders.py)."""
TOKEN_CHARS_MAX = 2048
"""Characters of a join token with ADDRESSES_MAX addresses of NAME_MAX characters each."""
ADMIT_BYTES_MAX = 4 << 10
"""Bytes that a connection without a certificate may send in all."""
SECRET_BYTES = 32
"""Bytes of the secret from which the keys of a bulk connection are derived."""
TICKET_BYTES = 16
"""Bytes of the ticket that ties a bulk connection to its control connection."""
CERTIFICATE_BYTES_MAX = 512
"""Bytes of a certificate in DER; those of this project have about 300, and 411 with the longest
peer id."""
CERTIFICATES_MAX = 7
"""Certificates in the answer to a joiner: those of all voters."""
CONTRIBUTION_TOKENS_MAX = 1 << 44
CONTRIBUTION_STEPS_MAX = 1 << 24
"""Tokens and inner steps that one contribution may report. No node trains so much between two
rounds, and the run's sums stay far below TOTAL_MAX."""
SAMPLES_MAX = 1 << 28
"""Samples of one contribution. A peer states in 32 bits how many it wants ahead, for several
rounds."""
ROUNDS_MAX = 1 << 31
"""Rounds of a run, or its steps in a stepwise run: stamps count them in 32 bits."""
TOTAL_MAX = (1 << 63) - 1
"""The run's sums of tokens and steps are cut off here, whatever members report."""
BALLOTS_MAX = 16
"""Votes in the proof of an election."""
MANDATE_MAX = 128
"""Elections and changes of the voters that are kept to prove later ones. A peer that has missed
more of them joins anew."""
TERM_LEAP_MAX = 1 << 16
"""A message with a term further ahead than this is refused; one of a leader raises the term by this
much. Candidates ask before they raise the term (pre-vote), so honest terms grow slowly, and no peer
can use up the range of terms."""
FRAGMENTS_MAX = 1024
DONORS_MAX = 4
"""Donors of one cut. More would not make a joiner faster, and each one keeps a copy of the
state."""
LEAF_BYTES = 32
LEAVES_MAX = 8192
"""Leaves of a hash tree in one message."""
SPANS_MAX = 64
"""Ranges of cells that a joiner asks one donor for at a time."""
TENSORS_MAX = 100_000
"""Parameters of a model: a mixture of experts with 60 layers of 512 experts has 94,000."""
TENSOR_NAME_BYTES_MAX = 1024
"""Bytes of one parameter's name in UTF-8; module paths of wrapped and compiled models are long."""
LAYOUT_NAMES_BYTES_MAX = 24 << 20
"""Bytes of all parameters' names in UTF-8. The header of a safetensors file holds up to three
arrays for each name, and loaders accept headers of 100 MB."""
DIMENSIONS_MAX = 8
ELEMENTS_MAX = (1 << 62) - 1
"""Elements of a model: offsets and sums of them fit into 63 bits."""
NAME_MAX = 128
"""Characters of a peer's id, of a node's name, or of an address."""
TEXT_MAX = 1024
"""Characters of a reason."""
JSON_MAX = 64 << 10
"""Characters of the agreed `[run]` as JSON; it is ASCII, so as many bytes."""
PIECE_BYTES_MAX = 512 << 10
"""Bytes of a snapshot, or of a contribution's blocks, in one message."""
SAMPLE_BLOCKS_MAX = 256
"""Blocks of one part in a request."""
SAMPLE_PARTS_MAX = 16
"""Parts in such a request; a fragment has no more (state/parts.py)."""
LAYOUT_BYTES_MAX = PIECE_BYTES_MAX
"""Bytes of a model's layout as it travels, compressed (wire/layout.py)."""
CORPUS_FILES_MAX = 1024
"""Files of a corpus that the log's first entry marks."""
CORPUS_MARKS_BYTES_MAX = 8 * CORPUS_FILES_MAX
SNAPSHOT_BYTES_MAX = 64 << 20

HELD_STEPS_MAX = 3
"""A peer that stops may hold payloads of so many steps beyond its own: two, unless a roster
dies."""
PROVIDERS_MAX = HELD_STEPS_MAX * PEERS_MAX

LIST_MAX = 10_000
"""Items of any list in a message or an entry."""
assert max(PEERS_MAX + 1, ENTRIES_MAX, SEATS_MAX, SPENT_MAX, FRAGMENTS_MAX) <= LIST_MAX
assert (
    LAYOUT_BYTES_MAX + JSON_MAX + 8 * FRAGMENTS_MAX + CORPUS_MARKS_BYTES_MAX
    <= CONTROL_BYTES_MAX * 4 // 5
)
