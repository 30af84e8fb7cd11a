"""Who gets into the run, and from whom it gets its state: the leader's decisions on joining.

A member whose state is missing or wrong asks in the same way; when nobody has the state any more,
the run goes back to the best checkpoint. Must NOT send anything, and must not remember a decision
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
from protocols.state.run_state import Membership
from protocols.state.tokens import refusal
from protocols.transfer.state_roots import WORDS_NEEDED, Rooting
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId, PeerInfo, Version
from protocols.types.limits import DONORS_MAX

HOLD_DOWN_S = 2.0
"""A peer that was lost twice waits this long before it gets in again, then twice as long each
time: who comes and goes costs the others an attempt each time."""
HOLD_DOWN_MAX_S = 120.0
COPIES_MAX = 2
"""That a donor makes and hashes at a time."""
ACCUSERS = 2
"""So many peers that got a wrong state from a donor are believed; one alone may lie."""


@dataclass(slots=True)
class Admission:
    """Open requests."""

    me: PeerId
    members: Membership
    reports: Reports
    accounts: Accounts = field(default_factory=Accounts)
    joins: dict[PeerId, Join] = field(default_factory=dict[PeerId, Join])
    asked_at: dict[PeerId, float] = field(default_factory=dict[PeerId, float])
    """When each of `joins` asked."""
    caught_up: dict[PeerId, CaughtUp] = field(default_factory=dict[PeerId, CaughtUp])
    """Who holds the state of which cut (or Restore)."""
    kept: dict[PeerId, Kept] = field(default_factory=dict[PeerId, Kept])
    """What is in the newest checkpoint of those who ask."""
    accused: dict[PeerId, set[PeerId]] = field(default_factory=dict[PeerId, set[PeerId]])
    """Donors whose state was not what they had reported, and who says so."""
    witnesses: dict[PeerId, Witnessing] = field(default_factory=dict[PeerId, Witnessing])
    """Who wants to vote, and nothing else."""
    spendings: dict[PeerId, e.TokenSpent] = field(default_factory=dict[PeerId, e.TokenSpent])
    """Whose certificates wait for the log (peer/certificates.py)."""
    hopeless_since: float = NEVER
    """Since when nobody can give a state, or say whose is right."""
    rooting: Rooting = field(init=False)

    def __post_init__(self) -> None:
        self.rooting = Rooting(self.me, self.members)

    def join(self, peer: PeerId, join: Join, now: float) -> None:
        """The peer wants a state."""
        seat = self.members.seats.get(peer)
        if seat is not None and seat.incarnation < join.incarnation:
            # Its round may still be open: what its earlier life sent must not be listed as
            # contributed when this life contributes other bytes.
            self.reports.forget(peer)
        elif self._is_out(peer, join):
            return
        self.joins[peer] = join
        self.asked_at.setdefault(peer, now)
        if join.against:
            self._accuse(PeerId(join.against), peer)

    def has_caught_up(self, peer: PeerId, report: CaughtUp) -> None:
        """The peer has the state of a cut, or of the Restore: it wants none any more."""
        self.caught_up[peer] = report
        self.joins.pop(peer, None)
        self.asked_at.pop(peer, None)

    def _goes(self, peer: PeerId, word: Join | CaughtUp) -> bool:
        """The life that says this wants to leave."""
        return self.accounts.goes(peer, word.incarnation)

    def _is_out(self, peer: PeerId, word: Join | CaughtUp) -> bool:
        """It wanted to leave, is out, and only has not read that yet."""
        return self._goes(peer, word) and peer not in self.members.readers

    def _accuse(self, donor: PeerId, peer: PeerId) -> None:
        """Two say that a state is not what its holder reported: it is as if nobody had it."""
        if donor == peer:
            self.reports.forget_states(donor)  # It has found out by itself, and says no more of it.
            return
        accusers = self.accused.setdefault(donor, set())
        if len(accusers) < ACCUSERS:
            accusers.add(peer)
        if self.members.is_over:
            return  # Nobody can make this state again: whoever came so far is tried again.
        if len(accusers) == ACCUSERS or self.members.receivers.keys() <= {donor, peer}:
            self.reports.forget_states(donor)

    def gone(self, peer: PeerId) -> None:
        """Whatever it asked for is void."""
        self.accused.pop(peer, None)
        for table in self._tables:
            table.pop(peer, None)

    @property
    def _tables(self) -> tuple[dict[PeerId, Any], ...]:
        """What peers asked for."""
        return self.joins, self.asked_at, self.caught_up, self.kept, self.witnesses

    def struck(self, peer: PeerId) -> None:
        """It is out. Nobody makes another state after the last one: of that, those who are still
        in decide, or whoever waits for the one that the others took along waits for ever."""
        self.gone(peer)
        if self.members.is_over:
            self.reports.forget_states(peer)

    def keep(self, peers: Set[PeerId]) -> None:
        """Forget what any other peer asked for, or was asked about."""
        keep_only(peers, *self._tables, self.accused)
        for accusers in self.accused.values():
            if len(accusers) < ACCUSERS:  # Else it is found wrong for good.
                accusers.intersection_update(peers)

    def next_entry(self, now: float) -> e.Entry | None:
        """The next thing to put into the log, or None. Call again after applying it."""
        first = self._next_spending() or self._next_witness() or self._next_member()
        return first or self.rooting.next_entry(self.joins.keys()) or self._next_cut(now)

    def deadline(self) -> float:
        """When somebody's hold-down is over."""
        ends = [self._admitted_at(peer) for peer in self.joins]
        return min((end for end in ends if end > 0), default=NEVER)

    def needs(self, peer: PeerId, *, patient: bool) -> bool:
        """It holds a committed state that we still lack, or may do so. A witness lacks none: while
        one leads, that is for those who stay, unless one of them can give it.

        What joiners hold is no help before they are members, nor what we hold as one of them:
        nobody is given it.
        """
        receivers = self.members.receivers.keys()
        takers = {self.me} if self.me in receivers else receivers - {peer}
        states = [self.reports.states(v.fragment, v.round) for v in self._versions()]
        # A joiner that has all of its cut is a member as soon as that is written down: it makes
        # the steps since then as members do.
        said = self.caught_up.get(peer)
        comes = said is not None and self._let_in(peer, said) is not None
        joins = peer in self.members.joiners and not comes
        if joins and not all(peer in reported for reported in states):
            return False  # It got a part of the state and no more: nobody can go on from that.
        for reported in states:
            givers = reported.keys() & self.members.members.keys()
            stay = givers - {peer, *self.accounts.going} if self.me not in takers else set[PeerId]()
            if takers <= givers or stay:
                continue
            # Nobody who could give it has said yet that it made the last step, or that it holds
            # what a new term began with: it may be this one.
            maybe = patient and not givers and (comes or peer in self.members.members)
            if peer in reported or maybe:
                return True
        return False

    def restore(self, now: float, *, patience_s: float) -> e.Restore | None:
        """Go back to the kept cut with most committed tokens, once nobody can give a state, or
        nobody can say whose state is right (two peers that differ, say).

        `patience_s`: somebody who has it may be coming back just now. Between members that differ
        nobody who comes can decide: it would get its state from one of them.
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
        self.joins.clear()  # Who does not hold just that asks again when it has read this.
        self.hopeless_since = NEVER
        return recovery.best(usable)

    def over(self, now: float, *, patience_s: float) -> bool:
        """As `restore`, and there is no checkpoint to go back to: this is the end. Not while a
        witness keeps the log for those who trained, and are all out: they may come back."""
        late = now >= self.hopeless_since + patience_s
        return late and bool(self.members.receivers) and not self._usable()

    @property
    def _is_split(self) -> bool:
        """All members said what they have, and it is not for the leader to choose."""
        asking = self.joins.keys()
        return any(self.reports.is_split(f, asking) for f in range(self.members.fragments))

    def _usable(self) -> list[e.Restore]:
        return recovery.usable(self.members, self.reports, self.kept.values(), self._versions())

    def _nobody_has_state(self) -> bool:
        """Every member asks for a state and none has one to give; or a witness leads, and all who
        trained are out."""
        if not (self.joins or self.accused):
            return False  # As nearly always.
        receivers = self.members.receivers.keys()
        if not receivers <= self.joins.keys() | self.accused.keys():
            return False
        if any(map(self._makes_a_step, receivers - self.joins.keys())):
            return False  # Accused or not: of a new round nobody has had time to say anything.
        versions, members = self._versions(), self.members.members.keys()
        states = [self.reports.states(v.fragment, v.round).keys() & members for v in versions]
        if self.members.is_over and all(states):
            return False  # Somebody came to the end, and its ranks are gone: nothing to repeat.
        return not any(self._donors(peer, versions) for peer in receivers)

    def _makes_a_step(self, peer: PeerId) -> bool:
        """What it reported last is believed, and not of the last committed round."""
        said = self.reports.newest_of(peer)
        return any(v.state_digest and v.round < self.members.cut_round(v.fragment) for v in said)

    def _next_spending(self) -> e.TokenSpent | None:
        while self.spendings:
            spent = self.spendings.pop(next(iter(self.spendings)))
            if not refusal(self.members, spent):
                return spent
        return None

    def _next_witness(self) -> e.Entry | None:
        for peer, word in list(self.witnesses.items()):
            del self.witnesses[peer]
            info = PeerInfo(peer, word.name, word.incarnation, word.address, slot=0)
            if self.members.witnesses.get(peer) != info and peer not in self.members.receivers:
                return e.Witness(info)
        return None

    def _next_member(self) -> e.Entry | None:
        for peer, report in list(self.caught_up.items()):
            del self.caught_up[peer]
            if (member := self._let_in(peer, report)) is not None:
                return member
        return None

    def _let_in(self, peer: PeerId, report: CaughtUp) -> e.Member | None:
        """The entry that makes a member of who holds what it says; None: not what counts now."""
        if self._is_out(peer, report):
            return None
        cut = self.members.cuts.get(peer)
        if cut is not None and cut[0] == report.index and peer in self.members.joiners:
            return e.Member(cut[1].info)
        member = self.members.members.get(peer)
        newer = member is None or member.incarnation < report.incarnation
        here = report.index == self.members.restored_index and peer in self.members.seats
        if newer and here and has_room(self.members, peer):
            return e.Member(self._info(peer, report))
        return None

    def _next_cut(self, now: float) -> e.Entry | None:
        if not self.joins or (self._is_split and not self.members.agreed_digest):
            return None  # A copy would give a majority to any one of those who differ.
        versions, busy = self._versions(), self._busy()
        for peer, join in list(self.joins.items()):
            able = self._donors(peer, versions) if not self._goes(peer, join) else ()
            donors = [donor for donor in able if donor not in busy]
            if len(donors) < min(WORDS_NEEDED, len(able)):
                continue  # It waits for its turn: if all came at once, none would be in time.
            if not donors or now < self._admitted_at(peer):
                continue  # Nobody reported the newest state yet; the next Have asks again.
            if not has_room(self.members, peer):
                continue  # It said hello when there was: now it waits until somebody goes.
            del self.joins[peer]
            self.asked_at.pop(peer, None)
            # In a gossip run no two have the same state: one of them alone gives it.
            most = 1 if self.members.gossip else DONORS_MAX
            return e.Cut(self._info(peer, join), tuple(donors[:most]), versions)
        return None

    def _busy(self) -> set[PeerId]:
        """Who copies and hashes its state for as many as it does at a time. Who has done that only
        sends, as fast as a joiner's line takes it."""
        waiting, cuts = self.members.joiners.keys() - self.joins, self.members.cuts
        open_ = [cuts[peer][1] for peer in waiting if peer in cuts and not cuts[peer][1].roots]
        copies = Counter(donor for cut in open_ for donor in cut.donors)
        return {donor for donor, number in copies.items() if number >= COPIES_MAX}

    def _admitted_at(self, peer: PeerId) -> float:
        """A peer that flaps waits longer each time."""
        losses = self.members.losses.get(peer, 0)
        if losses < 2 or peer in self.members.receivers:
            return 0.0
        hold_down_s = min(HOLD_DOWN_S * 2 ** (losses - 2), HOLD_DOWN_MAX_S)
        return self.asked_at.get(peer, 0.0) + hold_down_s

    def _info(self, peer: PeerId, join: Join | CaughtUp) -> PeerInfo:
        return PeerInfo(
            peer=peer,
            name=join.name,
            incarnation=join.incarnation,
            address=join.address,
            slot=self.members.slot_of(peer),
        )

    def _versions(self) -> tuple[Version, ...]:
        rounds = [self.members.cut_round(f) for f in range(self.members.fragments)]
        agreed = self.members.agreed_digest
        return tuple(
            Version(f, r, agreed or self.reports.majority_digest(f, r))
            for f, r in enumerate(rounds)
        )

    def _donors(self, joiner: PeerId, versions: tuple[Version, ...]) -> tuple[PeerId, ...]:
        """Live members that hold exactly these versions, as another one confirms.

        The one that failed the joiner last time comes last; the leader only in its turn.
        """
        donors = self.members.members.keys() - {joiner}
        # Nor does the word of one come that two have found wrong: nobody believes it.
        wrong = {peer for peer, accusers in self.accused.items() if len(accusers) == ACCUSERS}
        silent = donors - self.joins.keys() - wrong
        for version in versions:
            states = self.reports.states(version.fragment, version.round)
            equal = {peer for peer, digest in states.items() if digest == version.state_digest}
            sure = equal - self.joins.keys()  # Who asks for a state knows that its own is none.
            if not sure and len(equal) < 2:
                return ()  # The only one: what it copies is not what it said it has.
            few = 2 * len(sure & silent) <= len(silent)
            if not self.members.agreed_digest and few and silent - states.keys():
                return ()  # Half of them may be wrong; what the others say is under way.
            donors = donors & equal
        order = sorted(donors, key=lambda peer: (peer == self.me, peer))
        last = self.members.cuts.get(joiner)
        # Go round, starting after the one that failed: several of them may be bad.
        tried = order.index(last[1].donors[0]) + 1 if last and last[1].donors[0] in donors else 0
        return (*order[tried:], *order[:tried])
