"""The leader's log on its way to everybody who reads it: voters, learners and joiners alike.

Optimistic: entries are sent as they come, up to a window; an answer that does not match moves the
reader back, to a snapshot if what it lacks is not in the log any more. Must NOT decide what is
committed (node.py).
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from protocols.interface.commands import Command, Send
from protocols.messages.log_entries import LogEntry
from protocols.messages.peer import Append, Appended
from protocols.messages.persisted import Snapshot
from protocols.raft.log import Log
from protocols.raft.snapshot_chunks import pieces
from protocols.types.ids import PeerId

Header = Callable[[], Append]
"""Makes what every message of a leader begins with, if there is one to send."""
WINDOW = 8
"""Messages with entries under way to one reader: a long log must not fill the outbox."""


@dataclass(slots=True)
class Progress:
    """How far one reader is."""

    next: int
    """The entry that it gets next."""
    match: int = 0
    """It has everything up to here on its disk; 0: not known."""
    under_way: int = 0
    """Messages with entries that it did not answer yet."""
    probing: bool = True
    """Where its log ends is a guess: one message at a time."""
    expected: int = 0
    """What a relay has brought it by the next heartbeat."""


@dataclass(slots=True)
class Replication:
    """One per peer; it holds something only while the peer leads."""

    me: PeerId
    log: Log
    snapshot: Snapshot | None = None
    """What is sent to those who lack more than the log still has."""
    acknowledged: set[PeerId] = field(default_factory=set[PeerId])
    """Who answered since somebody last looked."""
    relayed: set[PeerId] = field(default_factory=set[PeerId])
    """To whom others bring the log. Heartbeats ask them whether it has come."""
    _told_durable: int = 0
    """What our disk has, as those were told who are a majority with us."""
    _strayed: set[PeerId] = field(default_factory=set[PeerId])
    """Those to whom it had not."""
    _readers: dict[PeerId, Progress] = field(default_factory=dict[PeerId, Progress])

    def begin(self) -> None:
        """We lead now, and know nothing about anybody."""
        self._told_durable = 0
        self._readers.clear()
        self.acknowledged.clear()
        self.relayed.clear()
        self._strayed.clear()

    def reads(self, peer: PeerId) -> bool:
        return peer in self._readers

    def match(self, peer: PeerId) -> int:
        progress = self._readers.get(peer)
        return progress.match if progress is not None else 0

    def complete(self, peers: Iterable[PeerId]) -> set[PeerId]:
        """Who of these has our whole log on its disk."""
        return {peer for peer in peers if self.match(peer) == self.log.last_index}

    def held(self, durable_index: int) -> int:
        """More than half of the voters have everything up to here on their disks; `durable_index`:
        we have."""
        ends = (
            durable_index if voter == self.me else self.match(voter) for voter in self.log.voters
        )
        found = sorted(ends, reverse=True)
        return found[len(found) // 2] if found else 0

    def follow(self, readers: Iterable[PeerId], header: Header, up: set[PeerId]) -> list[Command]:
        """Exactly these read the log from now on; new ones are asked how far they are."""
        wanted = set(readers) - {self.me}
        if wanted == self._readers.keys():
            return []  # As nearly always.
        for peer in self._readers.keys() - wanted:
            del self._readers[peer]
        self.relayed &= wanted
        commands: list[Command] = []
        for peer in sorted(wanted - self._readers.keys()):
            self._readers[peer] = Progress(next=self.log.last_index + 1)
            commands += self.beat(peer, header()) if peer in up else []
        return commands

    def begin_from(self, peer: PeerId, index: int, header: Append) -> list[Command]:
        """The reader says how far it is: it may be empty."""
        if peer not in self._readers:
            return []
        self.relayed.discard(peer)
        self._readers[peer] = Progress(next=min(index, self.log.last_index) + 1)
        return self._send(peer, self._readers[peer], header)

    def restart(self, peer: PeerId) -> None:
        """Its connection is new or gone: what was under way is lost."""
        progress = self._readers.get(peer)
        self.relayed.discard(peer)
        if progress is not None:
            progress.next, progress.under_way, progress.probing = progress.match + 1, 0, True
            if not progress.match:
                progress.next = self.log.last_index + 1

    def publish(self, header: Append, up: set[PeerId]) -> list[Command]:
        """The log has a new entry."""
        commands: list[Command] = []
        for peer in self.relayed.intersection(self.log.voters):
            self._straight(peer)  # A relay brings only what is committed.
        for peer, progress in self._readers.items():
            if peer in up and peer not in self.relayed:
                commands += self._send(peer, progress, header)
        return commands

    def beat(self, peer: PeerId, header: Append) -> list[Command]:
        """A heartbeat: it finds out, too, whether something is missing."""
        progress = self._readers.get(peer)
        if progress is None:
            return []
        if peer in self.relayed:
            progress.next = max(progress.expected, progress.match) + 1
            progress.expected = header.commit_index
        # What is under way on the same connection comes first: it is there when this arrives.
        # Whether it lacks what only the snapshot has, its answer says: few do.
        previous = max(progress.next - 1, self.log.base)
        term = self.log.term_at(previous)
        assert term is not None, "nobody is thought to have more than the leader"
        return [Send(peer, _following(header, previous, term, ()))]

    def tell_durable(self, header: Append, up: set[PeerId]) -> list[Command]:
        """Where one more is enough, whoever it is may know at once that an entry holds."""
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
        """To all but those who know."""
        beats: list[Command] = []
        for peer in self._near(up):
            both = min(self._told_durable, self.match(peer))
            if header.commit_index > both or not self._decides(peer):
                beats += self.beat(peer, header)
        return beats

    def _near(self, up: set[PeerId]) -> list[PeerId]:
        """Who hears us without a relay."""
        return sorted(up - self.relayed)

    def _decides(self, peer: PeerId) -> bool:
        """It is a majority with us."""
        return self.log.is_majority({self.me, peer})

    def answered(self, peer: PeerId, answer: Appended, header: Header) -> list[Command]:
        """A reader says where its log agrees with ours."""
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
            progress.next = max(progress.match, min(answer.index, progress.next - 1)) + 1
            progress.probing, progress.under_way = True, 0
            if peer in self.relayed:
                self.relayed.discard(peer)
                self._strayed.add(peer)
        if progress.next > self.log.last_index or peer in self.relayed:
            return []
        return self._send(peer, progress, header())

    def relay(self, peers: Collection[PeerId], header: Append, up: set[PeerId]) -> list[Command]:
        """Relays bring the log to exactly these from now on."""
        commands: list[Command] = []
        for peer in sorted(self.relayed.difference(peers)):
            self._straight(peer)
            commands += self._send(peer, self._readers[peer], header) if peer in up else []
        for peer in (self._readers.keys() & set(peers)) - self.relayed:
            self._readers[peer].expected = self._readers[peer].match
            self.relayed.add(peer)
        return commands

    def take_strayed(self) -> set[PeerId]:
        """Those whom their relays have not brought what they should, since somebody last looked."""
        strayed, self._strayed = self._strayed, set()
        return strayed

    def _straight(self, peer: PeerId) -> None:
        """From us, and from where we know that it is."""
        self.relayed.discard(peer)
        progress = self._readers[peer]
        progress.next, progress.under_way, progress.probing = progress.match + 1, 0, True

    def _send(self, peer: PeerId, progress: Progress, header: Append) -> list[Command]:
        """Whatever fits into the window."""
        commands: list[Command] = []
        window = 1 if progress.probing else WINDOW
        while progress.under_way < window and progress.next <= self.log.last_index:
            previous = progress.next - 1
            term = self.log.term_at(previous)
            if term is None or not (entries := self.log.after(previous)):
                return commands + self._install(peer, progress, header)
            progress.under_way += 1
            progress.next = entries[-1].index + 1
            commands.append(Send(peer, _following(header, previous, term, entries)))
        return commands

    def _install(self, peer: PeerId, progress: Progress, header: Append) -> list[Command]:
        """What the reader lacks is only in the snapshot."""
        assert self.snapshot is not None, "the log begins with a snapshot"
        progress.next, progress.under_way, progress.probing = self.snapshot.index + 1, 1, True
        return [Send(peer, piece) for piece in pieces(self.snapshot, header.run, header.term)]


def _following(header: Append, index: int, term: int, entries: Iterable[LogEntry]) -> Append:
    """What follows the entry with this index and term, in a message with this header."""
    return replace(header, previous_index=index, previous_term=term, entries=tuple(entries))
