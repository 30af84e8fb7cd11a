"""What the log holds: the only way in which anything that all peers must agree on changes.

Every peer applies entries in order, each once a majority of the voters has it on disk.
"""

from protocols.types.frozen import record
from protocols.types.ids import Contributor, FragmentParts, PeerId, PeerInfo, Provider, Version
from protocols.types.sample_ranges import ALL_REMAIN, Grant, Remaining, Samples


@record
class Run:
    """The first entry: what all peers of the run agree on."""

    run: int
    run_json: str
    """The `[run]` tables with defaults filled in, canonical JSON."""
    corpus_digest: str
    peers_min: int
    outer_steps: int
    grain: int
    """Elements that the codecs encode together: part borders fall on its multiples."""
    layout: bytes
    """The model's parameters, packed (wire/layout.py): the shell reads it, and the core carries
    it.
    """
    fragment_elements: tuple[int, ...]
    founder: PeerId
    """Who began: the only voter at first."""
    commit_every_steps: int = 0
    """0: peers agree on rounds. Else on each step, in a fixed roster, and `outer_steps` counts
    these: the run is stepwise (protocol.md section 5)."""
    snapshot_every_steps: int = 0
    """Of a stepwise run: how often everybody keeps a copy of its state, for who comes later."""
    gossip: bool = False
    """Each peer exchanges with one other a round, and no two have equal states: their digests, and
    those of results, say which round they are of, and not which bits."""
    asks: bool = False
    """Who is late for a round contributes what it has, as soon as `quorum` others have contributed:
    the leader asks for it (the pull of Decoupled DiLoCo, arXiv:2604.21428)."""


@record
class Elected:
    """The first entry of each term: with it, everything before it is committed."""

    peer: PeerId


@record
class Voter:
    """A member's acknowledgement counts from now on, or no longer (protocol.md section 1)."""

    peer: PeerId
    votes: bool
    why: str


@record
class Restore:
    """The run goes on from a cut, in a new lineage; everything after the cut is void."""

    parent_lineage: int
    versions: tuple[Version, ...]
    inner_step: int
    tokens: int
    voters: tuple[PeerId, ...]
    """Who votes from now on; none: as before. Only a fork names some."""
    fork: int
    """Names the branch of the log that these voters open; 0: none."""
    lonely: bool
    """One of two went on alone: it votes alone until it has met the other."""
    salt: int
    """Two restores from one cut are two lineages."""
    remaining: Remaining = ALL_REMAIN
    """The ledger at the cut: what was committed after it is leased again."""
    live: bool = False
    """The cut is what members have in memory: only what was committed after it is void. What they
    trained since stays theirs, and their samples with it."""


@record
class Cut:
    """`info.peer` is from now on a registered receiver; the donors keep a copy of these versions
    for it, and each sends it a part.

    It is in the log before the transfer, so that no commit can fall between the two.
    """

    info: PeerInfo
    donors: tuple[PeerId, ...]
    versions: tuple[Version, ...]
    roots: tuple[str, ...] = ()
    """Of the states' trees, once Roots has said them; () in the log."""


@record
class Roots:
    """The states of a peer's newest cut have these trees: 64 hex digits for each fragment, the
    SHA-256 of its leaves. What a donor sends is believed only if it belongs to them."""

    peer: PeerId
    index: int
    """Log index of the Cut."""
    roots: tuple[str, ...]


@record
class Member:
    """The peer has its state and belongs to the run."""

    info: PeerInfo


@record
class Left:
    """Gone on its own account."""

    peer: PeerId
    why: str


@record
class Lost:
    """Gone without a word."""

    peer: PeerId
    why: str


@record
class View:
    """Whose contributions count, and who owns which part, from `first_round` on.

    It stays valid until the next one: opening a round writes nothing.
    """

    view: int
    roster: tuple[PeerId, ...]
    parts: tuple[FragmentParts, ...]
    """One per fragment; none in a stepwise run."""
    first_round: tuple[int, ...]
    """One per fragment; in a stepwise run the first step."""


@record
class Attempt:
    """Another try at one open round, with the borders of its view: only owners change."""

    view: int
    fragment: int
    round: int
    attempt: int
    roster: tuple[PeerId, ...]
    owners: tuple[PeerId, ...]
    why: str


@record
class Commit:
    """The round is part of the model: with these contributions, by everyone, for good."""

    view: int
    fragment: int
    round: int
    attempt: int
    contributors: tuple[Contributor, ...]
    """Sorted by peer: the order of the sum."""
    borders: tuple[int, ...]
    """Of the parts, in elements: whoever fetches a result later needs no old view for it."""
    result_digest: str
    previous_state_digest: str
    """Of the round before, by majority; "" when nobody had reported yet."""
    samples: tuple[Samples, ...] = ()
    """Of the anchor fragment: what each contributor's steps saw, in the order of `contributors`;
    () if nobody accounts for any."""
    held_by_all: bool = False
    """Every receiver has the result, or in a gossip run has no use for another's: whoever has taken
    its step needs to keep it for nobody."""


@record
class Witness:
    """A peer that votes and trains nothing: with two nodes, a majority outlives one of them."""

    info: PeerInfo


@record
class Dropped:
    """We met another branch of this run, and ours stays: what that one committed is lost."""

    peer: PeerId
    """Who led it."""
    forks: tuple[int, ...]
    """Its name (Membership.forks)."""
    tokens: int
    """Committed on it, from the run's beginning."""


@record
class Lease:
    """These samples are these peers', in bulk and ahead of need."""

    grants: tuple[Grant, ...]


@record
class StepCommit:
    """Steps up to this one are part of the model, for good: all of the roster made them."""

    view: int
    """The newest one, whose roster reported this state."""
    upto_step: int
    state_digest: str
    """After that step."""


@record
class Halt:
    """Everybody stops at its step and says where it stands: the roster has to change.

    The loss of a roster member says the same by itself.
    """

    view: int
    without: tuple[PeerId, ...]
    """They count in this view no more, and what they made since the last commit is void."""
    why: str


@record
class Close:
    """The view ends with this step: everybody who takes part completes it, and no other."""

    view: int
    last_step: int
    providers: tuple[Provider, ...]
    """Of every payload that some survivor lacks."""


@record
class TokenSpent:
    """A peer is let in with a join token: its certificate is signed when this holds.

    Whoever reads this can say how many uses the token has left.
    """

    token: str
    """32 hex digits: the token's number."""
    peer: PeerId
    key: str
    """64 hex digits: the public key that the certificate is for. Who asks again with the same one
    gets its certificate again."""
    uses: int
    """So many peers the token lets in, all in all."""
    expires: int
    """Unix seconds."""


@record
class Revoked:
    """A peer's certificate counts no more: nobody speaks with it. This stays, whatever comes."""

    peer: PeerId
    by: PeerId
    """Where a person asked for it."""
    why: str


@record
class TokenRevoked:
    """A join token lets nobody in any more; who came with it stays. This stays, too."""

    token: str
    """32 hex digits: the token's number."""
    by: PeerId
    why: str


Revocation = Revoked | TokenRevoked
Entry = (
    Run
    | Elected
    | Voter
    | Restore
    | Cut
    | Roots
    | Member
    | Left
    | Lost
    | View
    | Attempt
    | Commit
    | Witness
    | Dropped
    | Lease
    | StepCommit
    | Halt
    | Close
    | TokenSpent
    | Revocation
)


@record
class LogEntry:
    """An entry at its place."""

    index: int
    """From 1, without gaps."""
    term: int
    body: Entry
