"""The leader's decisions on joining: which peer gets in, and which donors give it the state.

A member with a missing or wrong state asks in the same way. If no peer has the state any more, the
run goes back to the best checkpoint. Must NOT send anything, and must not remember a decision
anywhere but in the log.
"""

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from protocols.leader import recovery
from protocols.leader.peer_accounts import Accounts, keep_only
from protocols.leader.reports import Reports
from protocols.messages import log_entries as e
from protocols.messages.peer import CaughtUp, Join, Kept, Witnessing
from protocols.state.participants import has_room
from protocols.state.run_state import RunState
from protocols.state.tokens import refusal
from protocols.transfer.state_roots import WORDS_NEEDED, RootAgreement
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, PeerInfo, Version
from protocols.types.limits import DONORS_MAX

HOLD_DOWN_S = 2.0
"""Seconds that a peer waits after its second loss before it gets in again; doubled with each
further loss. A peer that flaps costs the others an attempt each time."""
HOLD_DOWN_MAX_S = 120.0
COPIES_MAX = 2
"""Copies that a donor makes and hashes at a time."""
ACCUSERS = 2
"""So many peers that got a wrong state from a donor are believed; a single one may lie."""


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
    kept: dict[PeerId, Kept] = field(default_factory=dict[PeerId, Kept])
    """By peer, its newest checkpoint."""
    accused: dict[PeerId, set[PeerId]] = field(default_factory=dict[PeerId, set[PeerId]])
    """By donor that gave another state than it had reported, the peers that say so."""
    witnesses: dict[PeerId, Witnessing] = field(default_factory=dict[PeerId, Witnessing])
    """Witnesses that ask to get in."""
    spendings: dict[PeerId, e.TokenSpent] = field(default_factory=dict[PeerId, e.TokenSpent])
    """Admissions that wait for the log (peer/certificates.py)."""
    hopeless_since: float = NEVER
    """Since when no peer can give a state, or none can tell which state is right."""
    root_agreement: RootAgreement = field(init=False)

    def __post_init__(self) -> None:
        self.root_agreement = RootAgreement(self.me, self.run_state)

    def join(self, peer: PeerId, join: Join, now: float) -> None:
        """The peer asks for a state."""
        seat = self.run_state.seats.get(peer)
        if seat is not None and seat.incarnation < join.incarnation:
            # Its round may still be open: a contribution of its earlier incarnation must not be
            # listed if this one contributes other bytes.
            self.reports.forget(peer)
        elif self._is_out(peer, join):
            return
        self.joins[peer] = join
        self.asked_at.setdefault(peer, now)
        if join.against:
            self._accuse(PeerId(join.against), peer)

    def has_caught_up(self, peer: PeerId, report: CaughtUp) -> None:
        """The peer has the state of a Cut, or of the Restore, and asks for none any more."""
        self.caught_up[peer] = report
        self.joins.pop(peer, None)
        self.asked_at.pop(peer, None)

    def _goes(self, peer: PeerId, word: Join | CaughtUp) -> bool:
        """Does this incarnation want to leave?"""
        return self.accounts.goes(peer, word.incarnation)

    def _is_out(self, peer: PeerId, word: Join | CaughtUp) -> bool:
        """Is the peer out of the run as it wanted, and has only not read that yet?"""
        return self._goes(peer, word) and peer not in self.run_state.readers

    def _accuse(self, donor: PeerId, peer: PeerId) -> None:
        """A peer accuses a donor. If ACCUSERS do, the donor counts as having no state."""
        if donor == peer:
            # The donor found the damage itself, and no longer reports that state.
            self.reports.forget_states(donor)
            return
        accusers = self.accused.setdefault(donor, set())
        if len(accusers) < ACCUSERS:
            accusers.add(peer)
        if self.run_state.is_over:
            return  # No peer can make this state again: all donors are tried again.
        if len(accusers) == ACCUSERS or self.run_state.receivers.keys() <= {donor, peer}:
            self.reports.forget_states(donor)

    def gone(self, peer: PeerId) -> None:
        """The peer is gone: its requests are void."""
        self.accused.pop(peer, None)
        for table in self._tables:
            table.pop(peer, None)

    @property
    def _tables(self) -> tuple[dict[PeerId, Any], ...]:
        """The tables of open requests."""
        return self.joins, self.asked_at, self.caught_up, self.kept, self.witnesses

    def struck(self, peer: PeerId) -> None:
        """The peer was removed. After the last round no other state is made, so the remaining peers
        decide: otherwise a peer could wait for ever for a state that the others took along."""
        self.gone(peer)
        if self.run_state.is_over:
            self.reports.forget_states(peer)

    def keep(self, peers: Set[PeerId]) -> None:
        """Forget the requests of all other peers, and accusations of them."""
        keep_only(peers, *self._tables, self.accused)
        for accusers in self.accused.values():
            if len(accusers) < ACCUSERS:  # With ACCUSERS accusers a donor counts as wrong for good.
                accusers.intersection_update(peers)

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
        receivers = self.run_state.receivers.keys()
        takers = {self.me} if self.me in receivers else receivers - {peer}
        states = [self.reports.states(v.fragment, v.round) for v in self._versions()]
        # A joiner that has all of its cut becomes a member with the next entry: it makes the steps
        # since then as members do.
        said = self.caught_up.get(peer)
        comes = said is not None and self._let_in(peer, said) is not None
        joins = peer in self.run_state.joiners and not comes
        if joins and not all(peer in reported for reported in states):
            return False  # A joiner has only a part of the state: no peer can go on from it.
        for reported in states:
            givers = reported.keys() & self.run_state.members.keys()
            stay = givers - {peer, *self.accounts.going} if self.me not in takers else set[PeerId]()
            if takers <= givers or stay:
                continue
            # No possible donor has reported the last step yet, or the state with which a new term
            # began: this peer may be the only holder.
            maybe = patient and not givers and (comes or peer in self.run_state.members)
            if peer in reported or maybe:
                return True
        return False

    def restore(self, now: float, *, patience_s: float) -> e.Restore | None:
        """A rollback to the kept versions with the most committed tokens, once no peer can give a
        state, or it cannot be told which state is right (of two peers that differ, for example).

        `patience_s`: a peer that has the state may be returning. If members differ, a returning
        peer cannot decide, since it would get its state from one of them.
        """
        split = self._is_split
        if not split and not self._nobody_has_state():
            self.hopeless_since = NEVER
            return None
        self.hopeless_since = min(self.hopeless_since, now)
        usable = self._usable()
        if not usable or not (split or now >= self.hopeless_since + patience_s):
            return None
        self.accused.clear()
        # A peer that lacks these versions asks again when it has read the Restore.
        self.joins.clear()
        self.hopeless_since = NEVER
        return recovery.best(usable)

    def over(self, now: float, *, patience_s: float) -> bool:
        """As `restore`, but there is no checkpoint, so the run is lost. Not while a witness keeps
        the log for peers that trained and are all out: they may return."""
        late = now >= self.hopeless_since + patience_s
        return late and bool(self.run_state.receivers) and not self._usable()

    @property
    def _is_split(self) -> bool:
        """Have all members reported their states, without a majority for any?"""
        asking = self.joins.keys()
        return any(self.reports.is_split(f, asking) for f in range(self.run_state.fragments))

    def _usable(self) -> list[e.Restore]:
        return recovery.usable(self.run_state, self.reports, self.kept.values(), self._versions())

    def _nobody_has_state(self) -> bool:
        """Does every member ask for a state, so that none can give one? Or does a witness lead,
        with all peers that trained out?"""
        if not (self.joins or self.accused):
            return False  # The usual case.
        receivers = self.run_state.receivers.keys()
        if not receivers <= self.joins.keys() | self.accused.keys():
            return False
        if any(map(self._makes_a_step, receivers - self.joins.keys())):
            return False  # Accused or not: no peer has had time to report a new round.
        versions, members = self._versions(), self.run_state.members.keys()
        states = [self.reports.states(v.fragment, v.round).keys() & members for v in versions]
        if self.run_state.is_over and all(states):
            # A peer has the final state, and its ranks have ended: no round is repeated.
            return False
        return not any(self._donors(peer, versions) for peer in receivers)

    def _makes_a_step(self, peer: PeerId) -> bool:
        """Is its last report believed, and not of the last committed round?"""
        said = self.reports.newest_of(peer)
        return any(v.state_digest and v.round < self.run_state.cut_round(v.fragment) for v in said)

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
            if self.run_state.witnesses.get(peer) != info and peer not in self.run_state.receivers:
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
        cut = self.run_state.cuts.get(peer)
        if cut is not None and cut[0] == report.index and peer in self.run_state.joiners:
            return e.Member(cut[1].info)
        member = self.run_state.members.get(peer)
        newer = member is None or member.incarnation < report.incarnation
        here = report.index == self.run_state.restored_index and peer in self.run_state.seats
        if newer and here and has_room(self.run_state, peer):
            return e.Member(self._info(peer, report))
        return None

    def _next_cut(self, now: float) -> e.Entry | None:
        if not self.joins or (self._is_split and not self.run_state.agreed_digest):
            return None  # A copy would give a majority to one of the peers that differ.
        versions, busy = self._versions(), self._busy()
        for peer, join in list(self.joins.items()):
            able = self._donors(peer, versions) if not self._goes(peer, join) else ()
            donors = [donor for donor in able if donor not in busy]
            if len(donors) < min(WORDS_NEEDED, len(able)):
                continue  # It waits for its turn: if all joined at once, none would be in time.
            if not donors or now < self._admitted_at(peer):
                continue  # No peer has reported the newest state yet; the next Have calls again.
            if not has_room(self.run_state, peer):
                continue  # There was room at its hello: now it waits until a peer leaves.
            del self.joins[peer]
            self.asked_at.pop(peer, None)
            # In a gossip run no two states are equal: there is one donor.
            most = 1 if self.run_state.gossip else DONORS_MAX
            return e.Cut(self._info(peer, join), tuple(donors[:most]), versions)
        return None

    def _busy(self) -> set[PeerId]:
        """Donors that are making and hashing COPIES_MAX copies. A donor that has finished them only
        sends, as fast as a joiner's line allows."""
        waiting, cuts = self.run_state.joiners.keys() - self.joins, self.run_state.cuts
        open_ = [cuts[peer][1] for peer in waiting if peer in cuts and not cuts[peer][1].roots]
        copies = Counter(donor for cut in open_ for donor in cut.donors)
        return {donor for donor, number in copies.items() if number >= COPIES_MAX}

    def _admitted_at(self, peer: PeerId) -> float:
        """The time from which the peer may get in: a peer that flaps waits longer each time."""
        losses = self.run_state.losses.get(peer, 0)
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

    def _versions(self) -> tuple[Version, ...]:
        rounds = [self.run_state.cut_round(f) for f in range(self.run_state.fragments)]
        agreed = self.run_state.agreed_digest
        return tuple(
            Version(f, r, agreed or self.reports.majority_digest(f, r))
            for f, r in enumerate(rounds)
        )

    def _donors(self, joiner: PeerId, versions: tuple[Version, ...]) -> tuple[PeerId, ...]:
        """Live members that hold exactly these versions, confirmed by another member.

        The donor that failed the joiner last time comes last; the leader has no preference.
        """
        donors = self.run_state.members.keys() - {joiner}
        # Nor is a donor waited for that ACCUSERS have found wrong: its report is not believed.
        wrong = {peer for peer, accusers in self.accused.items() if len(accusers) == ACCUSERS}
        silent = donors - self.joins.keys() - wrong
        for version in versions:
            states = self.reports.states(version.fragment, version.round)
            equal = {peer for peer, digest in states.items() if digest == version.state_digest}
            sure = equal - self.joins.keys()  # A peer that asks for a state has none.
            if not sure and len(equal) < 2:
                return ()  # There is one holder, and its own copy differs from the reported state.
            few = 2 * len(sure & silent) <= len(silent)
            if not self.run_state.agreed_digest and few and silent - states.keys():
                return ()  # Half of them may be wrong; the reports of the others are under way.
            donors = donors & equal
        order = sorted(donors, key=lambda peer: (peer == self.me, peer))
        last = self.run_state.cuts.get(joiner)
        # In turn, starting after the donor that failed: several may be bad.
        tried = order.index(last[1].donors[0]) + 1 if last and last[1].donors[0] in donors else 0
        return (*order[tried:], *order[:tried])
