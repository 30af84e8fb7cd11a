"""Entries of the replicated log: the only way to change what all peers must agree on.

Every peer applies the entries in order, each one after a majority of the voters has it on disk.
Must NOT contain behaviour: protocols/state applies entries, protocols/leader decides on them.
"""

from protocols.types.frozen import record
from protocols.types.ids import Contributor, FragmentParts, PeerId, PeerInfo, Provider, Version
from protocols.types.sample_ranges import ALL_REMAIN, Grant, Remaining, Samples


@record
class Run:
    """The first entry of a log: the run that all peers agree on."""

    run: int
    run_json: str
    """The `[run]` tables with defaults filled in, canonical JSON."""
    corpus_digest: str
    peers_min: int
    outer_steps: int
    grain: int
    """Elements that the codecs encode together: parts begin at multiples of it."""
    layout: bytes
    """The model's parameters, packed (wire/layout.py): the shell reads it, and the core carries it.
    """
    fragment_elements: tuple[int, ...]
    founder: PeerId
    """The peer that founded the run: the only voter at first."""
    commit_every_steps: int = 0
    """0: the run has rounds. Otherwise the run is stepwise (protocol.md section 5): a fixed roster
    makes every step together, `outer_steps` counts steps, and a StepCommit follows after so many of
    them."""
    snapshot_every_steps: int = 0
    """Of a stepwise run: every peer keeps a copy of its state after so many steps, for later
    joiners."""
    gossip: bool = False
    """In each round a peer exchanges with one other peer (NoLoCo). States differ between peers, so
    digests of states and results name the round and not the bits."""
    asks: bool = False
    """As soon as `quorum` peers have contributed to a round, the leader asks stragglers to
    contribute what they have (the pull of Decoupled DiLoCo, arXiv:2604.21428)."""
    root: str = ""
    """Public half of the run's root key, 64 hex digits, which names the run in tokens; "": the run
    is not encrypted, and admits without tokens."""
    voters_issue: bool = True
    """Tokens of voters count. Otherwise only those that an operator's key signed."""
    voters_revoke: bool = True
    """Voters may ask for revocations. Otherwise only those count that an operator's key signed."""
    voters_steer: bool = True
    """Voters may ask for a `Steered`. Otherwise only those count that an operator's key signed."""
    corpus_files: bytes = b""
    """Marks of the corpus's files, by which a node finds the one that differs (the shell reads
    them, and the core carries them)."""


@record
class Ballot:
    """The vote of one voter in one election."""

    voter: PeerId
    signature: bytes
    """That of the voter's key (raft/mandate.py), 64 bytes; b"" if the run is not encrypted."""


@record
class Elected:
    """The first entry of each term. When it is committed, all entries before it are."""

    peer: PeerId
    ballots: tuple[Ballot, ...] = ()
    """The votes of a majority of the voters before this entry."""


@record
class Voter:
    """A member gets its vote, or loses it (protocol.md section 1)."""

    peer: PeerId
    votes: bool
    why: str
    key: str = ""
    """Public key of a peer that gets its vote, 64 hex digits; "" if the run is not encrypted."""


@record
class Restore:
    """A rollback: the run goes on from these versions in a new lineage; all later rounds are
    void."""

    parent_lineage: int
    versions: tuple[Version, ...]
    inner_step: int
    tokens: int
    voters: tuple[PeerId, ...]
    """The voters from now on; empty: as before. Only a fork names voters."""
    fork: int
    """Number of the branch of the log that these voters open; 0: no new branch."""
    lonely: bool
    """One of two voters goes on alone: it votes alone until it has met the other one."""
    salt: int
    """Makes two rollbacks to the same versions two lineages."""
    remaining: Remaining = ALL_REMAIN
    """The sample ledger at these versions: samples that were committed later are leased again."""
    live: bool = False
    """Members hold these versions in memory: only later commits are void. The members keep the
    inner steps since then, and the samples of these."""


@record
class Cut:
    """The joining point of a peer: it receives all rounds from here on, and the donors keep a copy
    of these versions and send it their cells.

    The entry is in the log before the transfer begins, so no commit can fall between the two.
    """

    info: PeerInfo
    donors: tuple[PeerId, ...]
    versions: tuple[Version, ...]
    roots: tuple[str, ...] = ()
    """Roots of the states' hash trees, once a Roots entry named them; () in the log."""


@record
class Roots:
    """The roots of the hash trees of a cut's states, 64 hex digits for each fragment. A receiver
    accepts a cell only if it belongs to its tree."""

    peer: PeerId
    index: int
    """Log index of the Cut."""
    roots: tuple[str, ...]


@record
class Member:
    """The peer has its state and is a member of the run."""

    info: PeerInfo
    state: str = ""
    """In an encrypted run, the state that the peer has: `name_of_state` in
    state/entry_validation.py; "" of the founder."""


@record
class Left:
    """The peer left on its own account."""

    peer: PeerId
    why: str


@record
class Lost:
    """The peer was lost: it left without a Leave."""

    peer: PeerId
    why: str


@record
class View:
    """The roster (its peers' contributions count) and the owners of parts, from `first_round` on.

    A view is valid until the next one, so opening a round writes no entry.
    """

    view: int
    roster: tuple[PeerId, ...]
    parts: tuple[FragmentParts, ...]
    """One for each fragment; empty in a stepwise run."""
    first_round: tuple[int, ...]
    """One for each fragment; in a stepwise run the first step."""


@record
class Attempt:
    """Another attempt at an open round: the parts of its view, with other owners or a smaller
    roster."""

    view: int
    fragment: int
    round: int
    attempt: int
    roster: tuple[PeerId, ...]
    owners: tuple[PeerId, ...]
    why: str


@record
class Commit:
    """The round is final: every peer applies its result, made of these contributions."""

    view: int
    fragment: int
    round: int
    attempt: int
    contributors: tuple[Contributor, ...]
    """Sorted by peer, which is the order of the sum."""
    borders: tuple[int, ...]
    """Borders of the parts in elements, so that a result can be fetched later without its view."""
    result_digest: str
    previous_state_digest: str
    """Digest of the state of the round before, by majority; "" if no peer had reported it yet."""
    samples: tuple[Samples, ...] = ()
    """Of the anchor fragment: the samples of each contributor, in the order of `contributors`; ()
    if samples are not accounted for."""
    held_by_all: bool = False
    """Every receiver holds the result (in a gossip run: needs no other peer's): a peer that has
    applied it may free it."""


@record
class Witness:
    """A peer that only votes: with it, two nodes have a majority when one of them is lost."""

    info: PeerInfo


@record
class BranchDropped:
    """Another branch of this run was met and this one stays: the other one's commits are lost."""

    peer: PeerId
    """The leader of the other branch."""
    forks: tuple[int, ...]
    """The other branch (RunState.forks)."""
    tokens: int
    """Tokens committed on it since the beginning of the run."""


@record
class Lease:
    """Leases samples to peers, in bulk and ahead of need."""

    grants: tuple[Grant, ...]


@record
class StepCommit:
    """All steps up to this one are final: every peer of the roster made them."""

    view: int
    """The newest view; its roster reported this state."""
    upto_step: int
    state_digest: str
    """Digest of the state after `upto_step`."""


@record
class Halt:
    """The roster has to change: every peer stops and reports its step.

    A Lost or Left of a roster member has the same effect.
    """

    view: int
    without: tuple[PeerId, ...]
    """Peers that no longer count in this view; their steps since the last commit are void."""
    why: str


@record
class Close:
    """The view ends with this step: all its peers complete it, and no later one."""

    view: int
    last_step: int
    providers: tuple[Provider, ...]
    """For each payload that a remaining peer lacks, the peer that has it."""


@record
class TokenTerms:
    """The content of a join token that its issuer has signed."""

    number: str
    """The token's number, 32 hex digits."""
    key: str
    """Public half of the token's own key, 64 hex digits. The other half is the token's secret."""
    uses: int
    """The number of peers that the token admits in all."""
    expires: int
    """Unix seconds."""
    witness: bool
    """The token admits witnesses, and no members; otherwise members, and no witnesses."""
    issuer: PeerId
    """The voter that signed it, or the public key of an operator, 64 hex digits; "": the root key.
    In a renewal the earlier peer of the node."""


@record
class TokenSpent:
    """A peer is admitted with a join token: all peers trust its certificate from here on.

    The entry tells every peer how many uses the token has left, and proves to each of them that the
    issuer and the holder of the token have signed. Without signatures it is a renewal: a node with
    a branch that was given up becomes another peer, with the key that it had.
    """

    terms: TokenTerms
    peer: PeerId
    key: str
    """The peer's public key, 64 hex digits."""
    certificate: bytes
    """The peer's certificate (DER), signed with its own key; the founder's with the root key."""
    signature: bytes
    """The issuer's, of the terms (state/tokens.py: `statement`)."""
    proof: bytes
    """The token's own key's, of the peer's key (state/tokens.py: `claim`)."""

    @property
    def renews(self) -> bool:
        """The node was admitted before, as the peer `terms.issuer`."""
        return not self.signature


@record
class Revoked:
    """A peer's certificate is revoked: no peer connects with it. No rollback takes this back."""

    peer: PeerId
    by: PeerId
    """The peer at which a person asked for it."""
    why: str
    signature: bytes = b""
    """An operator's (acts/statements.py: `act_statement`); b"": a voter asked for it."""
    key: str = ""
    """Public key of the operator that signed, 64 hex digits; "": the root key."""
    unix_s: int = 0
    """The time at which a person asked, by the clock of that machine; 0: it is not known."""


@record
class TokenRevoked:
    """A join token is revoked: it admits no further peer. No rollback takes this back."""

    token: str
    """The token's number, 32 hex digits."""
    by: PeerId
    why: str
    signature: bytes = b""
    key: str = ""
    unix_s: int = 0
    """As of Revoked, like `signature` and `key`."""


@record
class Steered:
    """A person steers the run, as an operator or at a voter. The entry counts once: its number is
    the next one. No rollback takes it back."""

    what: str
    """One of acts/orders.py."""
    subject: str
    """A peer's id, a key of the configuration, or an operator's public key; "" for a pause."""
    value: str
    """The peer's incarnation, or the key's value as JSON."""
    number: int
    """One more than that of the Steered before it, from 1 on."""
    lineage: int
    """The lineage in which it was asked for. The act counts in no other one."""
    by: PeerId
    """The peer at which a person asked for it."""
    why: str
    signature: bytes = b""
    key: str = ""
    unix_s: int = 0
    """As of Revoked, like `signature` and `key`."""


@record
class TokenIssued:
    """A voter has made this token. It counts as long as its terms say, also if its issuer does not
    vote any more, but not if the issuer is revoked. No rollback takes this back."""

    terms: TokenTerms

    @property
    def by(self) -> PeerId:
        return self.terms.issuer


Revocation = Revoked | TokenRevoked
SignedAct = Revocation | Steered
"""The acts that an operator's key may sign."""
Act = SignedAct | TokenIssued
"""What a person asks the run for at one of its nodes; `by` is the node's peer."""
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
    | BranchDropped
    | Lease
    | StepCommit
    | Halt
    | Close
    | TokenSpent
    | Act
)


@record
class LogEntry:
    """An entry with its index and term."""

    index: int
    """Index in the log, from 1 on, without gaps."""
    term: int
    body: Entry
    signature: bytes = b""
    """That of the leader's key, if the entry changes the voters of an encrypted run: a peer that
    missed the change can then check later elections (raft/mandate.py)."""


@record
class Mandate:
    """The proof that a peer leads a term: entries of the log about elections and voters."""

    after: int = 0
    """The entries are all changes of the voters with a higher index than this, and the last
    election in each term with such a change, and the last one of all."""
    entries: tuple[LogEntry, ...] = ()
