"""The leader's decisions on joining: which peer gets in, and which donors give it the state.

A member with a missing or wrong state asks in the same way. Which peers can give the state, and
what happens if none can, is in recovery.py. Must NOT send anything, and must not remember a
decision anywhere but in the log.
"""

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from protocols.leader.peer_accounts import Accounts, keep_only
from protocols.leader.recovery import Donors, Rollback
from protocols.leader.reports import Reports
from protocols.messages import log_entries as e
from protocols.messages.peer import CaughtUp, Join, Witnessing
from protocols.state.entry_validation import refusal, unproved_state, wrong_role
from protocols.state.run_state import RunState
from protocols.transfer.state_roots import WORDS_NEEDED, RootAgreement
from protocols.types.clock import NEVER
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import PeerId, PeerInfo
from protocols.types.limits import DONORS_MAX

HOLD_DOWN_S = 2.0
"""Seconds that a peer waits after its second loss before it gets in again; doubled with each
further loss. A peer that flaps costs the others an attempt each time."""
HOLD_DOWN_MAX_S = 120.0


@dataclass(slots=True)
class Joins:
    """Open requests of peers, and the decisions on them."""

    me: PeerId
    run_state: RunState
    reports: Reports
    accounts: Accounts = field(default_factory=Accounts)
    joins: dict[PeerId, Join] = field(default_factory=dict[PeerId, Join])
    asked_at: dict[PeerId, float] = field(default_factory=dict[PeerId, float])
    """When each peer of `joins` asked."""
    caught_up: dict[PeerId, CaughtUp] = field(default_factory=dict[PeerId, CaughtUp])
    """By peer, its report that it holds the state of a Cut (or Restore)."""
    witnesses: dict[PeerId, Witnessing] = field(default_factory=dict[PeerId, Witnessing])
    """Witnesses that ask to get in."""
    spendings: dict[PeerId, e.TokenSpent] = field(default_factory=dict[PeerId, e.TokenSpent])
    """Admissions that wait for the log (peer/certificates.py)."""
    root_agreement: RootAgreement = field(init=False)
    donors: Donors = field(init=False)
    rollback: Rollback = field(init=False)

    def __post_init__(self) -> None:
        self.root_agreement = RootAgreement(self.me, self.run_state)
        self.donors = Donors(self.me, self.run_state, self.reports, self.joins)
        self.rollback = Rollback(self.run_state, self.reports, self.donors, self.joins)

    def join(self, peer: PeerId, join: Join, now: float) -> None:
        """The peer asks for a state. Raises RemoteProtocolError if it may not be a member."""
        if why := wrong_role(self.run_state, peer, witness=False):
            raise RemoteProtocolError(peer, f"asks to train, which {why}")
        seats = self.run_state.seats
        seat = seats.get(peer)
        if seat is not None and seat.incarnation < join.incarnation:
            # Its round may still be open: a contribution of its earlier incarnation must not be
            # listed if this one contributes other bytes.
            self.reports.forget(peer)
        elif self._is_out(peer, join):
            return
        self.joins[peer] = join
        self.asked_at.setdefault(peer, now)
        if join.against:
            self.donors.accuse(PeerId(join.against), peer)

    def has_caught_up(self, peer: PeerId, report: CaughtUp) -> None:
        """The peer has the state of a Cut, or of the Restore, and asks for none any more. Raises
        RemoteProtocolError if it names another state."""
        counts = self._let_in(peer, report) is not None
        if counts and (why := unproved_state(self.run_state, peer, report.state)):
            raise RemoteProtocolError(peer, f"says that it has its state, and {why}")
        self.caught_up[peer] = report
        self.joins.pop(peer, None)
        self.asked_at.pop(peer, None)

    def _goes(self, peer: PeerId, word: Join | CaughtUp) -> bool:
        """Does this incarnation want to leave?"""
        return self.accounts.goes(peer, word.incarnation)

    def _is_out(self, peer: PeerId, word: Join | CaughtUp) -> bool:
        """Is the peer out of the run as it wanted, and has only not read that yet?"""
        return self._goes(peer, word) and peer not in self.run_state.readers

    def gone(self, peer: PeerId) -> None:
        """The peer is gone: its requests are void."""
        self.donors.acquit(peer)
        for table in self._tables:
            table.pop(peer, None)

    def forget_checkpoint(self, peer: PeerId) -> None:
        """The peer is out: no peer can use its checkpoint."""
        kept = self.rollback.kept
        kept.pop(peer, None)

    @property
    def _tables(self) -> tuple[dict[PeerId, Any], ...]:
        """The tables of open requests."""
        return self.joins, self.asked_at, self.caught_up, self.rollback.kept, self.witnesses

    def struck(self, peer: PeerId) -> None:
        """The peer was removed. After the last round no other state is made, so the remaining peers
        decide: otherwise a peer could wait for ever for a state that the others took along."""
        self.gone(peer)
        if self.run_state.is_over:
            self.reports.forget_states(peer)

    def keep(self, peers: Set[PeerId]) -> None:
        """Forget the requests of all other peers, and accusations of them."""
        keep_only(peers, *self._tables)
        self.donors.keep(peers)

    def next_entry(self, now: float) -> e.Entry | None:
        """The next entry for the log, or None. Call again after applying it."""
        first = self._next_spending() or self._next_witness() or self._next_member()
        return first or self.root_agreement.next_entry(self.joins.keys()) or self._next_cut(now)

    def deadline(self) -> float:
        """The next end of a hold-down."""
        ends = [self._admitted_at(peer) for peer in self.joins]
        return min((end for end in ends if end > 0), default=NEVER)

    def needs(self, peer: PeerId, *, patient: bool) -> bool:
        """Does the peer hold a committed state that we lack, or might it? A witness lacks no state;
        while one leads, the remaining peers must have the state.

        States of joiners do not count before they are members, nor ours while we are one: they are
        given to no peer.
        """
        members, receivers = self.run_state.members, self.run_state.receivers
        takers = {self.me} if self.me in receivers else receivers.keys() - {peer}
        states = [self.reports.states(v.fragment, v.round) for v in self.donors.versions()]
        # A joiner that has all of its cut becomes a member with the next entry: it makes the steps
        # since then as members do.
        said = self.caught_up.get(peer)
        comes = said is not None and self._let_in(peer, said) is not None
        joins = peer in self.run_state.joiners and not comes
        if joins and not all(peer in reported for reported in states):
            return False  # A joiner has only a part of the state: no peer can go on from it.
        for reported in states:
            givers = reported.keys() & members.keys()
            stay = givers - {peer, *self.accounts.going} if self.me not in takers else set[PeerId]()
            if takers <= givers or stay:
                continue
            # No possible donor has reported the last step yet, or the state with which a new term
            # began: this peer may be the only holder.
            maybe = patient and not givers and (comes or peer in members)
            if peer in reported or maybe:
                return True
        return False

    def _next_spending(self) -> e.TokenSpent | None:
        while self.spendings:
            spent = self.spendings.pop(next(iter(self.spendings)))
            if not refusal(self.run_state, spent):
                return spent
        return None

    def _next_witness(self) -> e.Entry | None:
        for peer, word in list(self.witnesses.items()):
            del self.witnesses[peer]
            info = PeerInfo(peer, word.name, word.incarnation, word.address, slot=0)
            if wrong_role(self.run_state, peer, witness=True):
                continue
            known = self.run_state.witnesses
            if known.get(peer) != info and peer not in self.run_state.receivers:
                return e.Witness(info)
        return None

    def _next_member(self) -> e.Entry | None:
        for peer, report in list(self.caught_up.items()):
            del self.caught_up[peer]
            if (member := self._let_in(peer, report)) is not None:
                return member
        return None

    def _let_in(self, peer: PeerId, report: CaughtUp) -> e.Member | None:
        """The Member entry for a peer that holds the reported state; None if it does not count
        now."""
        if self._is_out(peer, report):
            return None
        index, cut = self.run_state.cut_of(peer)
        if cut is not None and index == report.index and peer in self.run_state.joiners:
            return e.Member(cut.info, report.state)
        here = report.index == self.run_state.restored_index
        if here and self.run_state.may_return(peer, report.incarnation):
            return e.Member(self._info(peer, report), report.state)
        return None

    def _next_cut(self, now: float) -> e.Entry | None:
        if not self.joins or (self.rollback.is_split and not self.run_state.agreed_digest):
            return None  # A copy would give a majority to one of the peers that differ.
        versions, busy = self.donors.versions(), self.donors.busy()
        for peer, join in list(self.joins.items()):
            able = self.donors.with_versions(peer, versions) if not self._goes(peer, join) else ()
            donors = [donor for donor in able if donor not in busy]
            if len(donors) < min(WORDS_NEEDED, len(able)):
                continue  # It waits for its turn: if all joined at once, none would be in time.
            if not donors or now < self._admitted_at(peer):
                continue  # No peer has reported the newest state yet; the next Have calls again.
            if not self.run_state.has_room(peer):
                continue  # There was room at its hello: now it waits until a peer leaves.
            del self.joins[peer]
            self.asked_at.pop(peer, None)
            # In a gossip run no two states are equal: there is one donor.
            most = 1 if self.run_state.gossip else DONORS_MAX
            return e.Cut(self._info(peer, join), tuple(donors[:most]), versions)
        return None

    def _admitted_at(self, peer: PeerId) -> float:
        """The time from which the peer may get in: a peer that flaps waits longer each time."""
        counts = self.run_state.losses
        losses = counts.get(peer, 0)
        if losses < 2 or peer in self.run_state.receivers:
            return 0.0
        hold_down_s = min(HOLD_DOWN_S * 2 ** (losses - 2), HOLD_DOWN_MAX_S)
        return self.asked_at.get(peer, 0.0) + hold_down_s

    def _info(self, peer: PeerId, join: Join | CaughtUp) -> PeerInfo:
        return PeerInfo(
            peer=peer,
            name=join.name,
            incarnation=join.incarnation,
            address=join.address,
            slot=self.run_state.slot_of(peer),
        )
