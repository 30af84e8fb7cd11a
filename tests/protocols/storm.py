"""Anything that can happen to a few Raft objects, at random, and what must be true all the while.

Messages are lost, repeated and reordered, disks are full or slower than an election, machines stop
and start again, connections end, voters change, logs are compacted. What any peer says about its
disk is compared with the disk at that moment. Must NOT be kind to any peer.
"""

import random

from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.raft.log import Voters, voters_after
from protocols.raft.node import Raft
from protocols.types.ids import PeerId
from tests.protocols.circle import Circle, note, votes

VOTERS_MIN = 1


class Storm:
    """One run of events; the same seed gives the same run."""

    def __init__(self, seed: int, *peers: PeerId) -> None:
        self.random = random.Random(seed)
        self.circle = Circle(*peers)
        self.leaders: dict[int, PeerId] = {}
        """By term."""
        self.held: list[e.LogEntry] = []
        """Every entry that anybody ever saw committed, from index 1 on."""
        self.count = 0
        self.circle.said = self._check_said
        self.circle.begin()
        self.check()

    def blow(self, events: int) -> None:
        """So many things happen, and after each of them everything is looked at."""
        acts = (
            [self._deliver] * 50
            + [self._write] * 20
            + [self._time] * 10
            + [self._append] * 6
            + [self._beat] * 6
            + [self._lose, self._repeat, self._fail, self._part, self._meet]
            + [self._meet, self._crash, self._restart, self._restart]
            + [self._vote, self._vote, self._hand_over, self._compact]
            + [self._slow, self._hasten, self._hasten]
        )
        for _ in range(events):
            self.random.choice(acts)()
            self.check()

    def calm(self) -> None:
        """Everybody lives, hears everybody, and can write."""
        circle = self.circle
        circle.stuck.clear()
        for peer in circle.disks.keys() - circle.rafts.keys():
            circle.restart(peer)
        for peer in circle.disks:
            circle.back(peer)
        circle.settle()
        circle.pass_time(30.0)
        self.check()

    # What must be true ----------------------------------------------------------------------

    def check(self) -> None:
        for peer, raft in self.circle.rafts.items():
            if raft.leads:
                before = self.leaders.setdefault(raft.term, peer)
                assert before == peer, f"{before} and {peer} both lead in term {raft.term}"
                assert raft.log.last_index >= len(self.held) or raft.term < self._last_term(), (
                    f"{peer} leads in term {raft.term} without all that is committed"
                )
            self._check_committed(peer, raft)
            claim = f"{peer} takes its log up to {raft.disk.durable_index} for durable"
            self._check_disk(peer, raft.disk.durable_index, claim)
        self._check_logs()

    def _check_committed(self, peer: PeerId, raft: Raft) -> None:
        """The first peer that takes an entry for committed has counted copies of an entry of its
        own term: a newer leader may replace older ones, however many disks have them."""
        if raft.commit_index > len(self.held):
            term = raft.log.term_at(raft.commit_index)
            assert term == raft.term, f"{peer} concludes an entry of term {term} in {raft.term}"
        for entry in raft.log.entries:
            if entry.index > raft.commit_index:
                break
            if entry.index > len(self.held):
                assert entry.index == len(self.held) + 1, "no peer has the entries before"
                self.held.append(entry)
                self._check_majority(peer, raft, entry)
            held = self.held[entry.index - 1]
            assert held == entry, f"{peer} holds {entry}, but {held} was committed"

    def _check_majority(self, peer: PeerId, raft: Raft, entry: e.LogEntry) -> None:
        """A new commit is on the disks of more than half of the voters: of those of the log that
        shows it, or of those that an entry behind it made, if that took the decision."""
        have = {x for x, disk in self.circle.disks.items() if disk.holds(entry.index, entry.term)}
        voters: Voters = ()
        for before in self.held:
            voters = voters_after(voters, before.body)
        known = [raft.log.voters, voters]
        for later in raft.log.since(entry.index + 1):
            voters = voters_after(voters, later.body)
            known.append(voters)
        assert any(2 * len(have.intersection(some)) > len(some) for some in known), (
            f"{peer} takes {entry} for committed, which only {sorted(have)} have"
        )

    def _check_said(self, peer: PeerId, message: m.Control) -> None:
        """A message leaves a peer: what it says is on the peer's disk, is."""
        raft = self.circle.rafts[peer]
        if isinstance(message, m.Append) and message.term == raft.term:
            claim = f"{peer} says that its log is durable up to {message.durable_index}"
            self._check_disk(peer, message.durable_index, claim)
        elif isinstance(message, m.Appended) and message.matches and message.term == raft.term:
            claim = f"{peer} acknowledges the log up to {message.index}"
            self._check_disk(peer, message.index, claim)

    def _check_disk(self, peer: PeerId, last: int, claim: str) -> None:
        """The peer's disk has the peer's log up to `last`."""
        log, disk = self.circle.rafts[peer].log, self.circle.disks[peer]
        wrong = [x for x in range(log.base + 1, last + 1) if not disk.holds(x, log.term_at(x))]
        assert not wrong, f"{claim}, and its disk lacks {wrong}"

    def _check_logs(self) -> None:
        """Log matching: equal terms at an index mean equal logs up to it."""
        rafts = list(self.circle.rafts.values())
        for number, one in enumerate(rafts):
            for other in rafts[number + 1 :]:
                last = min(one.log.last_index, other.log.last_index)
                base = max(one.log.base, other.log.base)
                while last > base and one.log.term_at(last) != other.log.term_at(last):
                    last -= 1
                shared = max(0, last - base)
                ours, theirs = (x.log.entries[base - x.log.base :][:shared] for x in (one, other))
                assert ours == theirs, "logs differ before a match"

    def _last_term(self) -> int:
        return self.held[-1].term if self.held else 0

    # What happens ---------------------------------------------------------------------------

    def _deliver(self) -> None:
        wire = self.circle.wire
        if wire:
            late = self.random.random() < 0.1  # Mostly in order: else nothing would be achieved.
            self.circle.deliver(self.random.randrange(len(wire)) if late else 0)

    def _repeat(self) -> None:
        if self.circle.wire:
            self.circle.deliver(self.random.randrange(len(self.circle.wire)), again=True)

    def _lose(self) -> None:
        if self.circle.wire:
            self.circle.wire.pop(self.random.randrange(len(self.circle.wire)))

    def _write(self) -> None:
        stuck = self.circle.stuck
        busy = [peer for peer, writes in self.circle.writes.items() if writes and peer not in stuck]
        if busy:
            self.circle.write(self.random.choice(busy))

    def _slow(self) -> None:
        """A disk answers nothing for a while: others may be elected meanwhile, more than once."""
        self.circle.stuck.add(self._somebody())

    def _hasten(self) -> None:
        if self.circle.stuck:
            self.circle.stuck.remove(self.random.choice(sorted(self.circle.stuck)))

    def _fail(self) -> None:
        busy = [peer for peer, writes in self.circle.writes.items() if writes]
        if busy:
            self.circle.fail(self.random.choice(busy))

    def _time(self) -> None:
        self.circle.now += self.random.choice((0.1, 0.3, 1.0))
        self.circle.look(self._somebody())

    def _beat(self) -> None:
        self.circle.beat(self._somebody())

    def _append(self) -> None:
        for peer in self.circle.leaders():
            self.count += 1
            self.circle.append(peer, note(str(self.count)))

    def _vote(self) -> None:
        """One voter more, or one less; the leader itself included."""
        for peer in self.circle.leaders():
            raft, other = self.circle.rafts[peer], self.random.choice(list(self.circle.disks))
            yes = other not in raft.log.voters
            enough = yes or len(raft.log.voters) > VOTERS_MIN
            if raft.settled and not raft.reconfiguring and enough:
                self.circle.append(peer, votes(other, yes=yes))

    def _hand_over(self) -> None:
        for peer in self.circle.leaders():
            self.circle.rafts[peer].election.hand_over(but=())
            self.circle.collect(peer)

    def _part(self) -> None:
        self.circle.part(self._pair())

    def _meet(self) -> None:
        self.circle.meet(self._pair())

    def _crash(self) -> None:
        self.circle.crash(self._somebody())
        if len(self.circle.rafts) == 1:
            self._restart()

    def _restart(self) -> None:
        dead = sorted(self.circle.disks.keys() - self.circle.rafts.keys())
        if dead:
            self.circle.restart(self.random.choice(dead))

    def _compact(self) -> None:
        peer = self._somebody()
        raft = self.circle.rafts[peer]
        index = raft.commit_index - 2
        if index > raft.log.base:
            voters: Voters = ()
            for entry in self.held[:index]:
                voters = voters_after(voters, entry.body)
            self.circle.compact(peer, index, voters)

    def _somebody(self) -> PeerId:
        return self.random.choice(list(self.circle.rafts))

    def _pair(self) -> tuple[PeerId, PeerId]:
        one, two = self.random.sample(list(self.circle.disks), 2)
        return one, two
