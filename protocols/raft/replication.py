"""The leader sends its log to all readers: voters, learners and joiners.

Entries are sent as they come, up to a window of unanswered messages. An answer that does not match
moves the reader's position back, to a snapshot if the log has dropped the entries. Must NOT decide
what is committed (commitment.py).
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from protocols.interface.commands import Command, Send
from protocols.messages.log_entries import LogEntry
from protocols.messages.peer import Append, Appended, Leads
from protocols.messages.persisted import Snapshot
from protocols.messages.raft import Acknowledgement
from protocols.raft.log import Log
from protocols.raft.mandate import LeaderProofs, NoProofs
from protocols.raft.snapshot_chunks import pieces
from protocols.types.ids import PeerId

Header = Callable[[], Append]
"""Makes the fields that are the same in all messages of the leader; called only if one is sent."""
TOLD_BEATS = 8
"""Acknowledgements are sent once, and again with every so many heartbeats: the reader may have
dropped them, as one that follows another leader does."""
WINDOW = 8
"""Unanswered messages with entries to one reader, so that a long log does not fill the outbox."""


@dataclass(slots=True)
class Progress:
    """The position of one reader in the log."""

    next: int
    """Index of the entry that is sent to it next."""
    match: int = 0
    """Index up to which its disk has our log; 0: not known."""
    under_way: int = 0
    """Messages with entries that it has not answered."""
    probing: bool = True
    """The end of its log is not known: send one message at a time."""
    expected: int = 0
    """Index up to which its relay should have brought the log by the next heartbeat."""
    shown: bool = False
    """It has got the proof that we lead, on this connection."""
    told: tuple[Acknowledgement, ...] = ()
    """The acknowledgements that it has got last, on this connection."""
    beats: int = 0
    """Heartbeats since it has got them."""


@dataclass(slots=True)
class Replication:
    """The readers of one peer's log; empty unless the peer leads."""

    me: PeerId
    log: Log
    proofs: LeaderProofs = field(default_factory=NoProofs)
    snapshot: Snapshot | None = None
    """Sent to readers that lack entries which the log has dropped."""
    acknowledged: set[PeerId] = field(default_factory=set[PeerId])
    """Readers that have answered since the last check for a majority."""
    relayed: set[PeerId] = field(default_factory=set[PeerId])
    """Readers that get the log from relays. Heartbeats ask them whether it has come."""
    _told_durable: int = 0
    """Durable index that was sent last to voters that are a majority together with us."""
    _strayed: set[PeerId] = field(default_factory=set[PeerId])
    """Relayed readers that had not got the log in time."""
    _readers: dict[PeerId, Progress] = field(default_factory=dict[PeerId, Progress])

    def begin_term(self) -> None:
        """We lead now, and do not know the position of any reader."""
        self._told_durable = 0
        self._readers.clear()
        self.acknowledged.clear()
        self.relayed.clear()
        self._strayed.clear()

    def match(self, peer: PeerId) -> int:
        progress = self._readers.get(peer)
        return progress.match if progress is not None else 0

    def serves(self, peer: PeerId) -> bool:
        """Is this peer one of the readers?"""
        return peer in self._readers

    def complete(self, peers: Iterable[PeerId]) -> set[PeerId]:
        """Those of these peers that have our whole log on their disks."""
        return {peer for peer in peers if self.match(peer) == self.log.last_index}

    def held(self, durable_index: int) -> int:
        """Index up to which more than half of the voters have the log on their disks;
        `durable_index` is our own."""
        ends = (
            durable_index if voter == self.me else self.match(voter) for voter in self.log.voters
        )
        found = sorted(ends, reverse=True)
        return found[len(found) // 2] if found else 0

    def follow(self, readers: Iterable[PeerId], header: Header, up: set[PeerId]) -> list[Command]:
        """Exactly these peers are readers from now on; new ones are asked for their position."""
        wanted = set(readers) - {self.me}
        if wanted == self._readers.keys():
            return []  # The usual case.
        for peer in self._readers.keys() - wanted:
            del self._readers[peer]
        self.relayed &= wanted
        commands: list[Command] = []
        for peer in sorted(wanted - self._readers.keys()):
            self._readers[peer] = Progress(next=self.log.last_index + 1)
            commands += self.beat(peer, header()) if peer in up else []
        return commands

    def begin_from(self, peer: PeerId, index: int, header: Append) -> list[Command]:
        """A reader reports its position; its log may be empty."""
        if peer not in self._readers:
            return []
        self.relayed.discard(peer)
        self._readers[peer] = Progress(next=min(index, self.log.last_index) + 1)
        return self._send(peer, self._readers[peer], header)

    def restart(self, peer: PeerId) -> None:
        """The connection is new or gone: unanswered messages are lost."""
        progress = self._readers.get(peer)
        self.relayed.discard(peer)
        if progress is not None:
            progress.next, progress.under_way, progress.probing = progress.match + 1, 0, True
            progress.shown, progress.told = False, ()
            if not progress.match:
                progress.next = self.log.last_index + 1

    def publish(self, header: Append, up: set[PeerId]) -> list[Command]:
        """Send a new entry of the log."""
        commands: list[Command] = []
        for peer in self.relayed.intersection(self.log.voters):
            self._straight(peer)  # A relay brings committed entries only.
        for peer, progress in self._readers.items():
            if peer in up and peer not in self.relayed:
                commands += self._send(peer, progress, header)
        return commands

    def beat(self, peer: PeerId, header: Append) -> list[Command]:
        """Send a heartbeat, which also finds out whether the reader lacks entries."""
        progress = self._readers.get(peer)
        if progress is None:
            return []
        if peer in self.relayed:
            progress.next = max(progress.expected, progress.match) + 1
            progress.expected = header.commit_index
        progress.beats += 1
        if progress.beats >= TOLD_BEATS:
            progress.told, progress.beats = (), 0
        # Entries that are under way on the same connection arrive before the heartbeat.
        # The answer tells whether it needs the snapshot: few do.
        previous = max(progress.next - 1, self.log.base)
        term = self.log.term_at(previous)
        assert term is not None, "no reader is ahead of the leader"
        return [
            *self._show(peer, progress, header),
            Send(peer, _following(progress, header, previous, term, ())),
        ]

    def tell_durable(self, header: Append, up: set[PeerId]) -> list[Command]:
        """Send the durable index to voters that are a majority with us: they can commit at once."""
        if header.durable_index <= max(header.commit_index, self._told_durable):
            return []
        self._told_durable = header.durable_index
        return [
            beat
            for peer in self._near(up)
            if self._decides(peer)
            for beat in self.beat(peer, header)
        ]

    def tell_commit(self, header: Append, up: set[PeerId]) -> list[Command]:
        """Send the commit index to all readers that do not know it yet."""
        beats: list[Command] = []
        for peer in self._near(up):
            both = min(self._told_durable, self.match(peer))
            if header.commit_index > both or not self._decides(peer):
                beats += self.beat(peer, header)
        return beats

    def _near(self, up: set[PeerId]) -> list[PeerId]:
        """Readers that get the log from us and not from a relay."""
        return sorted(up - self.relayed)

    def _decides(self, peer: PeerId) -> bool:
        """Is this voter a majority together with us?"""
        return self.log.is_majority({self.me, peer})

    def answered(self, peer: PeerId, answer: Appended, header: Header) -> list[Command]:
        """A reader answers up to where its log agrees with ours."""
        progress = self._readers.get(peer)
        if progress is None:
            return []
        self.acknowledged.add(peer)
        progress.under_way = max(0, progress.under_way - 1)
        if answer.matches:
            progress.match = max(progress.match, min(answer.index, self.log.last_index))
            progress.next = max(progress.next, progress.match + 1)
            progress.probing = False
        else:
            if answer.doubts:
                progress.match = min(progress.match, answer.index)
            progress.next = max(progress.match, min(answer.index, progress.next - 1)) + 1
            progress.probing, progress.under_way = True, 0
            progress.shown, progress.told = False, ()
            if peer in self.relayed:
                self.relayed.discard(peer)
                self._strayed.add(peer)
        if progress.next > self.log.last_index or peer in self.relayed:
            return []
        return self._send(peer, progress, header())

    def relay(self, peers: Collection[PeerId], header: Append, up: set[PeerId]) -> list[Command]:
        """Relays bring the log to exactly these readers from now on."""
        commands: list[Command] = []
        for peer in sorted(self.relayed.difference(peers)):
            self._straight(peer)
            commands += self._send(peer, self._readers[peer], header) if peer in up else []
        for peer in (self._readers.keys() & set(peers)) - self.relayed:
            self._readers[peer].expected = self._readers[peer].match
            self.relayed.add(peer)
        return commands

    def take_strayed(self) -> set[PeerId]:
        """Readers that their relays failed to bring the log since the last call."""
        strayed, self._strayed = self._strayed, set()
        return strayed

    def _straight(self, peer: PeerId) -> None:
        """Serve this reader directly, from its known position."""
        self.relayed.discard(peer)
        progress = self._readers[peer]
        progress.next, progress.under_way, progress.probing = progress.match + 1, 0, True

    def _send(self, peer: PeerId, progress: Progress, header: Append) -> list[Command]:
        """Send as many messages as fit into the window."""
        window = 1 if progress.probing else WINDOW
        commands: list[Command] = []
        while progress.under_way < window and progress.next <= self.log.last_index:
            commands += self._show(peer, progress, header)
            previous = progress.next - 1
            term = self.log.term_at(previous)
            if term is None or not (entries := self.log.after(previous)):
                return commands + self._install(peer, progress, header)
            progress.under_way += 1
            progress.next = entries[-1].index + 1
            commands.append(Send(peer, _following(progress, header, previous, term, entries)))
        return commands

    def _show(self, peer: PeerId, progress: Progress, header: Append) -> list[Command]:
        """The proof that we lead, unless this reader has it."""
        if progress.shown or not self.proofs.required:
            return []
        progress.shown = True
        return [Send(peer, Leads(header.run, header.term, self.proofs.mandate()))]

    def _install(self, peer: PeerId, progress: Progress, header: Append) -> list[Command]:
        """Send the snapshot: the log has dropped the entries that the reader lacks."""
        assert self.snapshot is not None, "the log begins with a snapshot"
        progress.next, progress.under_way, progress.probing = self.snapshot.index + 1, 1, True
        return [Send(peer, piece) for piece in pieces(self.snapshot, header.run, header.term)]


def _following(
    progress: Progress, header: Append, index: int, term: int, entries: Iterable[LogEntry]
) -> Append:
    """A message with the entries that follow the entry with this index and term, and with the
    acknowledgements that the reader does not have."""
    held = header.held if header.held != progress.told else ()
    progress.told = header.held
    return replace(
        header, previous_index=index, previous_term=term, entries=tuple(entries), held=held
    )
