"""The proof that a peer leads a term: votes and changes of the voters, signed and in the log.

A voter signs its vote, and the leader's first entry of the term (Elected) has the votes of a
majority. A leader signs each entry that changes the voters. So a peer that knows the voters at one
index can check all later elections, one after the other, whichever peer shows them. One of exactly
two voters may go on alone (protocol.md section 8): its fork is signed with its own key. After a
recovery by force the log begins behind the fork, since no reader could check it.

Without such a proof no peer follows a leader. Must NOT know where keys and entries are kept
(links/leader_proofs.py), nor make or check signatures.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, cast

import msgpack

from protocols.messages.log_entries import (
    Elected,
    Left,
    LogEntry,
    Lost,
    Mandate,
    Restore,
    Voter,
)
from protocols.raft.log import Log, Voters, voters_after
from protocols.types.ids import PeerId
from protocols.types.limits import MANDATE_MAX
from protocols.wire.codec import encode_entry

VOTE, CHANGE, HEIR = b"lowcomm vote 1\0", b"lowcomm voters 1\0", b"lowcomm heir 1\0"
HELD = b"lowcomm held 1\0"
"""Beginnings of signed bytes: a signature of one kind is none of another."""

Verify = Callable[[str, bytes, bytes], bool]
"""(public key in hex digits, statement, signature) -> is it that key's signature?"""


class LeaderProofs(Protocol):
    """Gives and checks the signatures of one peer (links/leader_proofs.py)."""

    def read(self, log: Log) -> None:
        """Called once with the peer's log, in which keys and elections are found."""
        ...

    @property
    def required(self) -> bool:
        """The run is encrypted: votes and leaders need proofs."""
        ...

    def sign(self, what: "Statement") -> bytes: ...

    def is_signed(self, peer: PeerId, what: "Statement", signature: bytes) -> bool:
        """Has this peer signed the statement? True if no proofs are required."""
        ...

    def mandate(self) -> Mandate:
        """The proof of the newest election in this peer's log."""
        ...

    def proves(self, mandate: Mandate, leader: PeerId, term: int) -> bool:
        """Do these entries prove to this peer that `leader` leads the term?"""
        ...


class NoProofs:
    """Of a run that is not encrypted: each claim counts, and nothing is signed."""

    required = False

    def read(self, log: Log) -> None:
        pass

    def sign(self, what: "Statement") -> bytes:
        return b""

    def is_signed(self, peer: PeerId, what: "Statement", signature: bytes) -> bool:
        return True

    def mandate(self) -> Mandate:
        return Mandate()

    def proves(self, mandate: Mandate, leader: PeerId, term: int) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class VoteStatement:
    """A voter signs: in this term it votes for this candidate."""

    term: int
    candidate: PeerId

    def content(self, run: int) -> bytes:
        return VOTE + _packed(run, self.term, self.candidate)


@dataclass(frozen=True, slots=True)
class HeirStatement:
    """A leader signs: this peer may stand for election although the leader of `term` lives."""

    term: int
    peer: PeerId

    def content(self, run: int) -> bytes:
        return HEIR + _packed(run, self.term, self.peer)


@dataclass(frozen=True, slots=True)
class ChangeStatement:
    """A leader signs: an entry that changes the voters."""

    entry: LogEntry

    def content(self, run: int) -> bytes:
        return CHANGE + _packed(run, encode_entry(replace(self.entry, signature=b"")))


@dataclass(frozen=True, slots=True)
class HeldStatement:
    """A voter signs: in this term its disk holds the log with this hash up to an index."""

    term: int
    index: int
    log_hash: bytes
    """Of the whole log up to `index`, 32 bytes (raft/log.py)."""

    def content(self, run: int) -> bytes:
        return HELD + _packed(run, self.term, self.index, self.log_hash)


Statement = VoteStatement | HeirStatement | ChangeStatement | HeldStatement


def extended(known: Mandate, entry: LogEntry, *, changes: bool) -> Mandate:
    """The proof after one more entry of the log. `changes`: the entry changes the voters."""
    entries = known.entries
    if isinstance(entry.body, Elected):
        if entries and isinstance(entries[-1].body, Elected):
            entries = entries[:-1]  # No later election depends on it.
    elif not changes:
        return known
    entries = (*entries, entry)
    if len(entries) <= MANDATE_MAX:
        return Mandate(known.after, entries)
    # The last election stays, since a change after it needs it.
    last = max((i for i, e in enumerate(entries) if isinstance(e.body, Elected)), default=-1)
    gone = 1 if last == 0 else 0
    return Mandate(entries[gone].index, (*entries[:gone], *entries[gone + 1 :]))


def parted(mandate: Mandate, voters: Voters) -> set[PeerId]:
    """The peers that lost their votes when they were one of exactly two voters: each may have gone
    on alone. `voters`: those after the last entry."""
    found: set[PeerId] = set()
    for entry in reversed(mandate.entries):
        match entry.body:
            case Left(peer=peer) | Lost(peer=peer) | Voter(peer=peer, votes=False):
                if len(voters) == 1:
                    found.add(peer)
                voters = (*voters, peer)
            case Voter(peer=peer):
                voters = tuple(voter for voter in voters if voter != peer)
            case Restore():
                break  # Earlier voters are not known.
            case _:
                pass
    return found


def last_election(mandate: Mandate) -> tuple[int, PeerId | None]:
    """(term, leader) of the last election in a proof; (0, None) if there is none."""
    for entry in reversed(mandate.entries):
        if isinstance(entry.body, Elected):
            return entry.term, entry.body.peer
    return 0, None


@dataclass(slots=True)
class Electorate:
    """The voters at one index of the log, and the last election before it, as one peer knows
    them."""

    run: int
    index: int
    voters: Voters
    keys: dict[PeerId, str]
    """Public keys of these and earlier voters, 64 hex digits."""
    term: int = 0
    leader: PeerId | None = None
    """The leader of that term; None: no election is known."""

    def follow(self, mandate: Mandate, *, verify: Verify) -> bool:
        """Go on along the entries of a proof; False if one of them proves nothing."""
        if mandate.after > self.index:
            return False  # Changes of the voters in between are not in the proof any more.
        for entry in mandate.entries:
            if entry.index <= self.index:
                continue
            elects = isinstance(entry.body, Elected)
            if not (self._elects if elects else self._changes)(entry, verify):
                return False
            self.index = entry.index
        return True

    def _elects(self, entry: LogEntry, verify: Verify) -> bool:
        body = cast(Elected, entry.body)
        said = VoteStatement(entry.term, body.peer).content(self.run)
        voted = {
            ballot.voter
            for ballot in body.ballots
            if ballot.voter in self.voters
            and verify(self.keys.get(ballot.voter, ""), said, ballot.signature)
        }
        if entry.term <= self.term or 2 * len(voted) <= len(self.voters):
            return False
        self.term, self.leader = entry.term, body.peer
        return True

    def _changes(self, entry: LogEntry, verify: Verify) -> bool:
        body, signer = entry.body, self.leader if entry.term == self.term else None
        if isinstance(body, Restore):
            (signer,) = body.voters if len(body.voters) == 1 else (None,)
            if signer not in self.voters or len(self.voters) != 2:
                return False
        said = ChangeStatement(entry).content(self.run)
        key = self.keys.get(signer, "") if signer is not None else ""
        if not (key and verify(key, said, entry.signature)):
            return False
        self.voters = voters_after(self.voters, body)
        if isinstance(body, Voter) and body.votes:
            self.keys[body.peer] = body.key
        return True


def _packed(*values: object) -> bytes:
    return cast(bytes, msgpack.packb(values))
