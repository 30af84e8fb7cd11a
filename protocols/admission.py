"""Who gets into the run, and from whom it gets its state: the leader's decisions on joining.

A member whose state is missing or wrong asks in the same way. Must NOT send anything, and must not
remember a decision anywhere but in the log.
"""

from dataclasses import dataclass, field

from protocols import entries as e
from protocols.ids import PeerId, PeerInfo, Version
from protocols.membership import Membership
from protocols.messages import Join
from protocols.reports import Reports


@dataclass(slots=True)
class Admission:
    """Open requests."""

    me: PeerId
    members: Membership
    reports: Reports
    joins: dict[PeerId, Join] = field(default_factory=dict[PeerId, Join])
    caught_up: dict[PeerId, int] = field(default_factory=dict[PeerId, int])
    """Log index of the cut whose state a peer holds."""

    def join(self, peer: PeerId, join: Join) -> None:
        """The peer wants a state."""
        seat = self.members.seats.get(peer)
        if seat is not None and seat.incarnation < join.incarnation:
            # Its round may still be open: what its earlier life sent must not be listed as
            # contributed when this life contributes other bytes.
            self.reports.forget(peer)
        self.joins[peer] = join

    def gone(self, peer: PeerId) -> None:
        """Whatever it asked for is void."""
        self.joins.pop(peer, None)
        self.caught_up.pop(peer, None)

    def next_entry(self) -> e.Entry | None:
        """The next thing to put into the log, or None. Call again after applying it."""
        return self._next_member() or self._next_cut()

    def needs(self, peer: PeerId) -> bool:
        """It holds a committed state that we still lack."""
        states = [self.reports.states(v.fragment, v.round) for v in self._versions()]
        return any(peer in reported and self.me not in reported for reported in states)

    @property
    def lost_state(self) -> bool:
        """Every member asks for a state and none has one to give: nobody can go on."""
        members = self.members.members.keys()
        if not members or not members <= self.joins.keys():
            return False
        return all(self._donor(peer, self._versions()) is None for peer in members)

    def _next_member(self) -> e.Entry | None:
        for peer, index in list(self.caught_up.items()):
            del self.caught_up[peer]
            cut = self.members.cuts.get(peer)
            if cut is not None and cut[0] == index and peer in self.members.joiners:
                return e.Member(cut[1].info)
        return None

    def _next_cut(self) -> e.Entry | None:
        versions = self._versions()
        for peer, join in list(self.joins.items()):
            donor = self._donor(peer, versions)
            if donor is None:
                continue  # Nobody reported the newest state yet; the next Have asks again.
            del self.joins[peer]
            info = PeerInfo(
                peer=peer,
                name=join.name,
                incarnation=join.incarnation,
                address=join.address,
                slot=self.members.slot_of(peer),
            )
            return e.Cut(info, donor, versions)
        return None

    def _versions(self) -> tuple[Version, ...]:
        rounds = [self.members.committed(f) for f in range(self.members.fragments)]
        return tuple(
            Version(f, r, self.reports.majority_digest(f, r)) for f, r in enumerate(rounds)
        )

    def _donor(self, joiner: PeerId, versions: tuple[Version, ...]) -> PeerId | None:
        """A live member that holds exactly these versions, as another one confirms.

        Not the one that failed the joiner last time; the leader only in its turn, as the last.
        """
        donors = self.members.members.keys() - {joiner}
        silent = donors - self.joins.keys()
        for version in versions:
            states = self.reports.states(version.fragment, version.round)
            equal = {peer for peer, digest in states.items() if digest == version.state_digest}
            if len(equal) < 2 and silent - states.keys():
                return None  # One report may be wrong; a second one, or all, are under way.
            donors = donors & equal
        order = sorted(donors, key=lambda peer: (peer == self.me, peer))
        last = self.members.cuts.get(joiner)
        # Go round, starting after the one that failed: several of them may be bad.
        tried = order.index(last[1].donor) + 1 if last and last[1].donor in donors else 0
        return order[tried % len(order)] if order else None
