"""Applies the committed entries of the log, in order and once each.

Joins raft/node.py (the log) and run_state.py (its meaning), with snapshots in both directions and
the log that an earlier incarnation left on the disk. Must NOT react to an entry (peer/core.py
does).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.messages.persisted import Saved, Snapshot
from protocols.messages.snapshot import RunStateSnapshot
from protocols.raft.log import EMPTY_HASH, Log, Voters, voters_after
from protocols.raft.mandate import Electorate, LeaderProofs, last_election
from protocols.raft.node import Raft
from protocols.raft.snapshot_chunks import IncomingSnapshot
from protocols.state import transitions
from protocols.state.entry_validation import objection, snapshot_objection
from protocols.state.run_state import RunState
from protocols.types.errors import LogError, RemoteProtocolError
from protocols.types.ids import PeerId, PeerInfo
from protocols.types.signatures import NO_SIGNATURES, Signatures
from protocols.wire.codec import decode_image, encode_image
from protocols.wire.validators import WireError

COMPACT_ENTRIES = 512
"""Beyond so many applied entries the log is replaced by a snapshot."""
KEPT_SHARE = 8
"""The last COMPACT_ENTRIES / KEPT_SHARE entries stay: a reader that is a little behind needs no
snapshot, and a relay can bring its learners the entries that it has just applied."""
AHEAD_MAX = 16
"""Entries. If the last state ahead of the committed entries is further behind than that, it is
quicker to copy the state than to apply them."""
LetsIn = e.Cut | e.Member | e.Witness
"""Entries after which another peer reads the log."""


class LogApplier:
    """`raft` has the log, `members` the state after the entries that are applied so far."""

    def __init__(
        self,
        me: PeerId,
        saved: Saved | None,
        signatures: Signatures = NO_SIGNATURES,
        prove: Callable[[RunState], LeaderProofs] | None = None,
    ) -> None:
        """`prove`: makes the proofs of leadership; None: any peer may claim to lead. Raises
        LogError if the saved log of an earlier incarnation contradicts itself."""
        self.compact_entries = COMPACT_ENTRIES
        """Entries before a snapshot is made. Simulated runs are short, and lower it."""
        self.run_state = RunState(signatures=signatures)
        image = _image_of(saved)
        proofs = prove(self.run_state) if prove is not None else None
        base = _base_of(image) if image is not None else ((), EMPTY_HASH)
        self.raft = Raft(me, saved, base, proofs)
        self.raft.log.judge = self._objection
        self._incoming = IncomingSnapshot()
        self._ahead = (
            RunState(signatures=signatures),
            e.LogEntry(0, 0, e.BranchDropped(me, (), 0)),
        )
        """A state that entries led to which were not committed then, and the last one of them."""
        self._judged: e.LogEntry | None = None
        """The entry that was judged last by the committed state, which is the same when it is
        applied."""
        inside = (*image.members, *image.joiners, *image.witnesses) if image is not None else ()
        self.known = addresses(inside, saved.entries if saved is not None else ())
        """Addresses of the peers that an earlier incarnation knew."""
        first = saved.entries[0].body if saved is not None and saved.entries else None
        if image is not None:
            transitions.become(self.run_state, image)
            self.raft.run = image.run.run
        elif isinstance(first, e.Run):
            self.raft.run = first.run

    def receive(self, peer: PeerId, message: m.Control, now: float) -> None:
        """Handle a message of Raft. Raises RemoteProtocolError."""
        raft = self.raft
        if isinstance(message, m.Append) and raft.run and message.run != raft.run:
            raise RemoteProtocolError(peer, "appends to the log of another run")
        try:
            raft.receive(peer, message, now)
        except LogError as error:
            raise RemoteProtocolError(peer, str(error)) from error

    def relayed(self, peer: PeerId, message: m.Relayed) -> None:
        """Entries through a relay, with the acknowledgements of a majority. They are no sign of
        life of the leader and are not answered: the leader's heartbeat asks for the position.
        Raises RemoteProtocolError."""
        raft, append = self.raft, message.append
        previous, end = append.previous_index, append.previous_index + len(append.entries)
        fits = previous < raft.log.base or raft.log.term_at(previous) == append.previous_term
        if append.term != raft.term or append.run != raft.run or not fits:
            return
        if raft.proofs.required:
            if append.commit_index > raft.commit_index and not raft.commitment.is_proved(append):
                why = "passes on entries that no majority of the voters has acknowledged"
                raise RemoteProtocolError(peer, why)
            end = min(end, append.commit_index)  # A single voter vouches for later entries.
        new = append.entries[: max(0, end - previous)]
        try:
            first = raft.log.merge(new, peer, append, floor=raft.commit_index)
        except LogError as error:
            raise RemoteProtocolError(peer, str(error)) from error
        if first is not None:
            raft.disk.log_changed(first)
        raft.commit_index = max(raft.commit_index, min(append.commit_index, end))

    def install(self, peer: PeerId, piece: m.Install, now: float) -> bool:
        """Add a piece of a snapshot; True if it was the last one and moved this peer forward."""
        raft = self.raft
        if piece.term < raft.term or (raft.run and piece.run != raft.run):
            return False
        if not raft.is_proved(peer, piece.term):
            return False
        if not raft.election.is_near(piece.term, now, raises=True):
            return False
        snapshot = self._incoming.add_piece(peer, piece)
        if snapshot is None:
            return False
        try:
            image = decode_image(snapshot.image)
        except WireError as error:
            raise RemoteProtocolError(peer, f"sends a bad snapshot: {error}") from error
        if image.index != snapshot.index:
            raise RemoteProtocolError(peer, "sends a snapshot of another index")
        if why := snapshot_objection(image, self.run_state):
            raise RemoteProtocolError(peer, f"sends a snapshot that {why}")
        ahead = snapshot.index > raft.commit_index
        raft.installed(peer, snapshot, _base_of(image), piece.term, now)
        if ahead:
            transitions.become(self.run_state, image)
            raft.run = image.run.run
        return ahead

    def next_entry(self) -> e.LogEntry | None:
        """Apply the next committed entry and return it; None if there is none.

        Raises LogError for an entry that contradicts the state: no peer can go on from it.
        """
        raft, run_state = self.raft, self.run_state
        if run_state.index >= raft.commit_index:
            if run_state.index - raft.log.base > self.compact_entries:
                self._compact()
            return None
        entry = raft.log.entries[run_state.index - raft.log.base]
        transitions.apply(run_state, entry, judged=entry is self._judged)
        if isinstance(entry.body, e.Run):
            raft.run = entry.body.run
        return entry

    def returns(self, peer: PeerId) -> bool:
        """Do later entries of our log let this peer in (again)? Then the present entry is
        history."""
        log = self.raft.log
        later = log.since(max(self.run_state.index, log.base) + 1)
        bodies = [entry.body for entry in later]
        return any(isinstance(body, LetsIn) and body.info.peer == peer for body in bodies)

    def snapshot(self) -> Snapshot:
        """A snapshot of the state after the last applied entry."""
        index, log = self.run_state.index, self.raft.log
        term = log.term_at(index)
        assert term is not None, "what we have not applied is in the log"
        image = replace(transitions.image_of(self.run_state), log_hash=log.hash_at(index))
        return Snapshot(index, term, encode_image(image))

    def _objection(self, new: Sequence[e.LogEntry]) -> str:
        """Why these entries cannot follow the log before the first of them; "" if they can.

        A majority that acknowledged an invalid entry could not go on from it. So each entry is
        judged by the state that the whole log before it leads to.
        """
        for place, entry in enumerate(new):
            before = self._state_before(new, place)
            why = objection(before, entry.body)
            if not why and self._is_unproved(before, entry):
                why = "proves no election, and no change of the voters"
            if why:
                return f"entry {entry.index} of the log {why}"
            if before is self.run_state:
                self._judged = entry
        return ""

    def _state_before(self, new: Sequence[e.LogEntry], place: int) -> RunState:
        """The state that our log leads to, and these new entries up to this place."""
        applied, index = self.run_state, new[place].index - 1
        if applied.index == index:
            return applied  # The usual case.
        log, (ahead, last) = self.raft.log, self._ahead
        stays = last.index < new[0].index and log.holds(last)  # The new ones replace later ones.
        known = stays or any(entry is last for entry in new[:place])
        if not known or not 0 <= index - ahead.index <= AHEAD_MAX:
            ahead = transitions.copy(applied)
        first = new[0].index
        for at in range(ahead.index + 1, index + 1):
            last = log.entries[at - log.base - 1] if at < first else new[at - first]
            transitions.apply(ahead, last)
        self._ahead = ahead, last
        return ahead

    def _is_unproved(self, before: RunState, entry: e.LogEntry) -> bool:
        """Would this entry end the chain of signed elections and changes of the voters? No reader
        could follow a later leader."""
        body, run, proofs = entry.body, before.run, self.raft.proofs
        if not isinstance(body, e.Elected) and (
            isinstance(body, e.Run) or voters_after(before.voters, body) == before.voters
        ):
            return False
        if run is None or not proofs.required:
            return False
        link = e.Mandate(before.index, (entry,))
        return not electorate_of(run, before).follow(link, verify=before.signatures.verify)

    def _compact(self) -> None:
        """Replace the applied entries by a snapshot, except the last ones."""
        snapshot = self.snapshot()
        self.raft.compact(snapshot, to=snapshot.index - self.compact_entries // KEPT_SHARE)


def _image_of(saved: Saved | None) -> RunStateSnapshot | None:
    """The image of the saved snapshot, if any. Raises LogError if it cannot be read."""
    if saved is None or saved.snapshot is None:
        return None
    try:
        return decode_image(saved.snapshot.image)
    except WireError as error:
        raise LogError(f"the log's snapshot cannot be read: {error}") from error


def _base_of(image: RunStateSnapshot) -> tuple[Voters, bytes]:
    """The voters and the hash of the log at a snapshot."""
    return image.voters, image.log_hash


def run_of(run_state: RunState, log: Log) -> e.Run | None:
    """The first entry of the run, perhaps not applied yet; None if the log has none."""
    if run_state.run is not None or log.base or not log.entries:
        return run_state.run
    body = log.entries[0].body
    return body if isinstance(body, e.Run) else None


def electorate_of(run: e.Run, run_state: RunState) -> Electorate:
    """The voters as of this state, and the last election."""
    term, leader = last_election(run_state.mandate)
    peers = (*run_state.voters, *([leader] if leader is not None else ()))
    keys = {peer: run_state.key_of(peer) for peer in peers}
    return Electorate(run.run, run_state.index, run_state.voters, keys, term, leader)


def addresses(inside: Iterable[PeerInfo], entries: Iterable[e.LogEntry]) -> dict[PeerId, str]:
    """Addresses of all peers in these entries, committed or not."""
    known = {info.peer: info.address for info in inside}
    for entry in entries:
        body = entry.body
        if isinstance(body, LetsIn):
            known[body.info.peer] = body.info.address
        elif isinstance(body, e.Left | e.Lost):
            known.pop(body.peer, None)
    return known
