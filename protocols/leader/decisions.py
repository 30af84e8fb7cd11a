"""The leader's decisions: the next entry of the log, and why.

They follow from the replicated state and the reports of peers. Must NOT send anything, and must not
remember a decision anywhere but in the log.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from protocols.acts.statements import author
from protocols.leader.joins import Joins
from protocols.leader.peer_accounts import Accounts
from protocols.leader.reports import OpenRound, Reports, RoundReports
from protocols.leader.sample_leases import SampleLeases
from protocols.leader.step_views import StepViews
from protocols.leader.voters import Voters
from protocols.messages import log_entries as e
from protocols.messages.peer import (
    CaughtUp,
    ContributionOffered,
    Control,
    CutRoots,
    Durable,
    Have,
    Hold,
    Join,
    Kept,
    Leave,
    NotReadyToTrain,
    ReadyToTrain,
    ReportsComplete,
    Stepped,
    StepsHalted,
    UnreachedMembers,
    WaitsForPeers,
    WantSamples,
    Witnessing,
    WrongResult,
)
from protocols.raft.node import Raft
from protocols.rounds.suspicions import least_trusted
from protocols.state.parts import replace_owners
from protocols.state.round_plan import RoundPlan
from protocols.state.run_state import RunState
from protocols.types.clock import NEVER
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import PeerId, RoundKey
from protocols.types.rules import ProtocolConfig
from protocols.types.sample_ranges import is_sound
from protocols.wire.codec import one_line


@dataclass(slots=True)
class RoundDecisions:
    """Decisions on the open rounds: commits, attempts, and the views in which rounds are made."""

    run_state: RunState
    """The state after the whole log, as in Leader."""
    reports: Reports
    raft: Raft
    accounts: Accounts

    @property
    def rules(self) -> ProtocolConfig:
        return self.raft.rules

    def next_commit(self, open_: Sequence[OpenRound], now: float) -> e.Entry | None:
        for fragment, plan, reports in open_:
            reports.start_clock(plan, now)
            if not (digest := self._agreed(plan, reports, now)):
                continue
            stamp = plan.stamp
            del self.reports.rounds[RoundKey(fragment, stamp.round)]
            return e.Commit(
                view=stamp.view,
                fragment=fragment,
                round=stamp.round,
                attempt=stamp.attempt,
                contributors=tuple(reports.ready[peer] for peer in plan.roster),
                borders=plan.parts.borders,
                result_digest=digest,
                previous_state_digest=self.reports.sure_digest(fragment, stamp.round - 1),
                samples=reports.covered(plan),
                held_by_all=reports.is_held_by(self.run_state.receivers, plan, digest),
            )
        return None

    def _agreed(self, plan: RoundPlan, reports: RoundReports, now: float) -> str:
        """The result digest that may be committed now; "" if there is none.

        Every live peer of the roster must hold the result; after the deadline a majority of the
        roster; never fewer than two live members, or one if the disk of only one works; and no
        contribution of a revoked peer may be in it. In a gossip run no other peer has a missing
        result, so every live peer must hold its own at any time.
        """
        live, revoked = self.run_state.members, self.run_state.revoked
        if not revoked.keys().isdisjoint(plan.roster):
            return ""  # Held or not: the next attempt excludes that contribution.
        held = {p: digest for p, digest in reports.holders(plan).items() if p in live}
        if not held or not reports.everybody_ready(plan) or reports.wrong_at(plan):
            return ""
        digest, _ = Counter(held.values()).most_common(1)[0]
        holding = {peer for peer, theirs in held.items() if theirs == digest}
        # Peers outside the roster count for the minimum of two only.
        roster = set(plan.roster)
        late = not plan.pairs and now >= reports.plan_since + self.rules.reduction_timeout_s
        enough = plan.counted <= holding or (late and 2 * len(holding & roster) > len(roster))
        # A peer with a failed disk gets few entries of the log, so it may not even know the plan.
        alone = len(holding) < 2 and not plan.pairs
        another = alone and any(p not in holding and not self.accounts.broken(p) for p in live)
        return digest if enough and not another else ""

    def next_attempt(self, open_: Sequence[OpenRound], now: float) -> e.Entry | None:
        for fragment, plan, reports in open_:
            if not reports.ready:
                continue
            roster, why = self._smaller_roster(plan, reports, now)
            if not why:
                continue
            return e.Attempt(
                view=plan.stamp.view,
                fragment=fragment,
                round=plan.stamp.round,
                attempt=plan.stamp.attempt + 1,
                roster=tuple(sorted(roster)),
                owners=replace_owners(plan.parts, self._owners(reports, roster)),
                why=one_line(why),  # The reason may name many peers.
            )
        return None

    def _owners(self, reports: RoundReports, roster: set[PeerId]) -> list[PeerId]:
        """The peers of the roster that may own parts: no complaint of this round is about them, if
        there are such peers."""
        doubted = set[PeerId]().union(*(each.peers for each in reports.wrong))
        doubted |= self.reports.suspicions.distrusted
        return sorted(roster - doubted) or sorted(roster)

    def _smaller_roster(
        self, plan: RoundPlan, reports: RoundReports, now: float
    ) -> tuple[set[PeerId], str]:
        """The peers that stay in the round, and why others do not, or why another attempt is needed
        with the same peers ("" if the plan may stand)."""
        live = self._alive(plan, reports)
        if not live:
            return live, ""  # No peer is left: `next_view` opens the round again.
        gone = set(plan.roster) - live
        if gone:
            return live, f"without {self._names(gone)}"
        fit, why = self.reports.fit(plan, reports, live)
        if why:
            return fit, f"without {self._names(live - fit)}: {why}"
        if reports.wrong_at(plan):
            return self._after_complaints(plan, reports, live)
        if now < self._patience(plan, reports, live):
            return live, ""
        missing = live - reports.ready.keys()
        if missing:
            return live - missing, f"{self._names(missing)} not ready within the grace window"
        slow = reports.blamed(plan, live, but=self.raft.me)
        if live == slow:
            reports.plan_since = now  # All peers are slow: excluding them would not help.
            return live, ""
        return live - slow, f"no result in time because of {self._names(slow)}"

    def _after_complaints(
        self, plan: RoundPlan, reports: RoundReports, live: set[PeerId]
    ) -> tuple[set[PeerId], str]:
        """As `_smaller_roster`, if results of this attempt are wrong: their parts get other owners.
        If that has not helped before, a peer is excluded too."""
        first = reports.wrong_at(plan)[0]
        said = f"{self._names(set(first.peers), ' or ')} is the reason"
        why = f"{self._names({first.reporter})} found a wrong result of part {first.part}: {said}"
        out = least_trusted(reports.wrong, live)
        if out is None or len(live) == 1:
            return live, why
        return live - {out}, f"without {self._names({out})}: {why}"

    def deadlines(self) -> list[float]:
        """The times until which the latest attempts of the open rounds may stand."""
        return [
            self._patience(plan, reports, self._alive(plan, reports))
            for _, plan, reports in self.reports.all_open()
        ]

    def _patience(self, plan: RoundPlan, reports: RoundReports, alive: set[PeerId]) -> float:
        """The time until which the latest attempt may stand."""
        if alive and reports.everybody_ready(plan):
            return reports.plan_since + self.rules.reduction_timeout_s
        # Only peers that can still be counted wait for the others.
        return reports.enough_at(alive, self.rules.quorum) + self.rules.round_grace_s

    def next_view(self, open_: Sequence[OpenRound], linked: set[PeerId]) -> e.Entry | None:
        """The next View: its roster is all peers that can contribute and are connected with each
        other; peers with a slow line own no part."""
        run = None if self.run_state.stepwise else self.run_state.run
        roster = tuple(sorted(linked))
        newest = self.run_state.views[-1] if self.run_state.views else None
        begun = newest is not None or self.run_state.restored is not None
        if run is None or not roster or (not begun and len(roster) < run.peers_min):
            return None
        parts = self.reports.parts(run, roster)
        if newest is not None and newest.roster == roster:
            same = all(self.run_state.counts(peer, newest.view) for peer in roster)
            # The round has a contribution, but no peer of its roster is left.
            dead = any(not self._alive(plan, reports) for _, plan, reports in open_)
            known = self.reports.link_speeds.owners(roster)  # Unknown at the beginning of a term.
            if same and not dead and (not known or parts == newest.parts):
                return None
        if self.run_state.is_over:
            return None
        return e.View(
            view=newest.view + 1 if newest else 1,
            roster=roster,
            parts=parts,
            first_round=tuple(map(self._next_first_round, range(self.run_state.fragments))),
        )

    def _next_first_round(self, fragment: int) -> int:
        """The first round of the next view: an open round with contributions goes on in the old
        view if it can."""
        plan, reports = self.reports.open_round(fragment)
        committed = self.run_state.committed(fragment)
        if plan is None or reports is None or not reports.ready:
            return committed + 1
        return committed + 2 if self._alive(plan, reports) else committed + 1

    def _alive(self, plan: RoundPlan, reports: RoundReports) -> set[PeerId]:
        """Peers of the roster that can still be counted: they have contributed, or can."""
        return {peer for peer in plan.counted if peer in self.reports.able or peer in reports.ready}

    def _names(self, peers: set[PeerId], between: str = ", ") -> str:
        infos = self.run_state.readers
        names = (infos[p].name if p in infos else p.rpartition(".")[0] for p in sorted(peers))
        return between.join(names)


@dataclass(slots=True)
class Removals:
    """Peers to remove from the log, and the decisions on them."""

    run_state: RunState
    """The state after the whole log, as in Leader."""
    raft: Raft
    joins: Joins
    gone: dict[PeerId, tuple[bool, str]] = field(default_factory=dict[PeerId, tuple[bool, str]])
    """The peers: (left by itself, why)."""
    leaves_since: dict[PeerId, float] = field(default_factory=dict[PeerId, float])
    """By peer of these, when it was first checked whether the run can do without it."""

    def forget(self, peer: PeerId) -> None:
        """The peer is back, or out."""
        self.gone.pop(peer, None)
        self.leaves_since.pop(peer, None)

    def wait_anew(self) -> None:
        """Peers that remain have to report again what they hold: wait for them from now on."""
        self.leaves_since.clear()

    def next_entry(self, now: float) -> e.Entry | None:
        for peer, (left, why) in list(self.gone.items()):
            since = self.leaves_since.setdefault(peer, now)
            rules = self.raft.rules
            patient = now < since + rules.transfer_timeout_s
            if left and self.joins.needs(peer, patient=patient):
                continue  # A result that other peers lack could be lost with this peer.
            log = self.raft.log
            if peer in log.voters:
                if self.raft.reconfiguring:
                    continue  # One voter at a time, or two majorities might not overlap.
                reached = self.raft.up | {self.raft.me}
                if left and not log.is_majority(reached, without=peer):
                    continue  # Its vote is needed to remove the unreachable voters first.
            self.forget(peer)
            self.joins.struck(peer)
            if peer in self.run_state.readers:
                return e.Left(peer, why) if left else e.Lost(peer, why)
        return None

    def deadlines(self) -> list[float]:
        """The times at which these peers are no longer waited for."""
        rules = self.raft.rules
        return [since + rules.transfer_timeout_s for since in self.leaves_since.values()]


@dataclass(slots=True)
class Leader:
    """The leader's knowledge beyond the log, and the rules of its decisions."""

    run_state: RunState
    """The state after the whole log, entries that are not committed yet included: a leader decides
    on top of its own decisions."""
    reports: Reports
    joins: Joins
    raft: Raft
    step_views: StepViews
    since: float = 0.0
    """When this peer was elected."""
    began_with: frozenset[PeerId] = frozenset()
    """Members and joiners at the election."""
    _looked_at: float = 0.0
    """When `next_entry` was called last."""
    sample_leases: SampleLeases = field(default_factory=SampleLeases)
    removals: Removals = field(init=False)
    vote_changes: Voters = field(init=False)
    round_decisions: RoundDecisions = field(init=False)

    def __post_init__(self) -> None:
        run_state, raft = self.run_state, self.raft
        self.removals = Removals(run_state, raft, self.joins)
        self.vote_changes = Voters(raft.me, run_state, raft, self.accounts, self.removals.gone)
        self.round_decisions = RoundDecisions(run_state, self.reports, raft, self.accounts)

    @property
    def has_of_gate(self) -> bool:
        """Are there admissions or revocations that the log does not hold yet?"""
        return bool(self.joins.spendings or self.vote_changes.asked)

    @property
    def unfit(self) -> set[PeerId]:
        """Peers that must not lead next: they leave, or lose their votes."""
        return {*self.removals.gone, *self.vote_changes.leaving}

    # Reports --------------------------------------------------------------------------------

    @property
    def accounts(self) -> Accounts:
        return self.joins.accounts

    @property
    def rules(self) -> ProtocolConfig:
        return self.raft.rules

    def handle_report(self, peer: PeerId, message: Control, now: float) -> str:
        """Remember a report. Returns how the peer's state differs from the majority's; "" if it
        does not.

        Raises RemoteProtocolError for a message that no peer may send to a leader.
        """
        here, able = self.run_state.lineage, self.reports.able
        match message:
            case Join(lineage=of) if of == here:
                self.joins.join(peer, message, now)
                able.discard(peer)
            case ReportsComplete(term=term):
                # Otherwise it was meant for an earlier leader, perhaps for us.
                if term == self.raft.term:
                    self.accounts.for_peer(peer).told = True
            case Kept() if peer in self.run_state.seats and is_sound(message.remaining):
                rollback = self.joins.rollback
                rollback.kept[peer] = message
            case Durable(works=works, why=why):
                self.accounts.for_peer(peer).broken = "" if works else why or "its disk fails"
            case Witnessing():
                self.joins.witnesses[peer] = message
            case CaughtUp(lineage=of) if of == here:
                self.joins.has_caught_up(peer, message)
            case Leave() if peer == self.raft.me:
                pass  # The leader hands over (peer/core.py), or leaves last (peer/shutdown.py).
            case Leave():
                self.lose(peer, message.why, left=True)
            case CutRoots():
                self.joins.root_agreement.add_roots(peer, message)
            case Have() if peer in self.run_state.receivers:
                return self.reports.has(peer, message)
            case Hold() if peer in self.run_state.receivers:
                self.reports.hold(peer, message)  # It counts once the peer is a member.
            case _ if peer not in self.run_state.members:
                pass  # The peer was removed meanwhile, and will read that in the log.
            case ReadyToTrain(lineage=of) if of == here:
                able.add(peer)
            case NotReadyToTrain(lineage=of) if of == here:
                able.discard(peer)
            case ContributionOffered():
                self.reports.ready(peer, message, now)
            case WaitsForPeers() if self.run_state.stepwise:
                self.step_views.waits(peer, message)
            case WaitsForPeers():
                self.reports.waits(peer, message)
            case WrongResult():
                for wrong in self.reports.wrong(peer, message):
                    self._caught(wrong)
            case UnreachedMembers():
                self.reports.missing_links.report(peer, message.peers)
            case WantSamples(lineage=of) if of == here:
                self.sample_leases.wanted(peer, message)
            case Stepped():
                return self.step_views.stepped(peer, message)
            case StepsHalted():
                self.step_views.stands(peer, message)
            case Join() | CaughtUp() | ReadyToTrain() | NotReadyToTrain() | WantSamples():
                pass  # A Restore made it void: the peer reports again once it has read that.
            case _:
                raise RemoteProtocolError(peer, f"sends {type(message).__name__} unasked")
        return ""

    def _caught(self, peer: PeerId) -> None:
        """Two peers have proved that this one gave wrong results, or other bytes to owners than to
        peers that check them. It may come back, and owns no part in this term. A leader does not
        remove itself: its parts get other owners."""
        if peer != self.raft.me and peer in self.run_state.members:
            self.lose(peer, "two peers found that it falsified results", left=False)

    def lose(self, peer: PeerId, why: str, *, left: bool) -> None:
        """The peer is gone, or wants to leave. A peer that wants to leave may still be needed: the
        leader must know what it holds, or that it lacks a state as all others do."""
        self.accounts.forget(peer)
        if left and peer in self.run_state.readers:
            self.accounts.for_peer(peer).going = True
        else:
            self.joins.gone(peer)
        self.step_views.forget(peer)
        self.reports.lost(peer)
        self.sample_leases.forget(peer)
        if peer in self.run_state.readers:
            self.removals.gone[peer] = (left, one_line(why))

    # Decisions ------------------------------------------------------------------------------

    def disconnected(self, peer: PeerId) -> None:
        """The connection ended: missed links may be back, and requests to the peer may be lost."""
        self.reports.missing_links.forget(peer)
        rounds = self.reports.rounds
        for reports in rounds.values():
            reports.hurried.discard(peer)

    def restarted(self, peer: PeerId) -> None:
        """The peer is back in a new incarnation, which holds nothing that the earlier one
        reported."""
        self.removals.forget(peer)
        self.sample_leases.forget(peer)
        self.reports.forget(peer)
        self.step_views.forget(peer)

    def next_entry(self, now: float) -> e.Entry | None:
        """The next entry for the log, or None. Call again after applying it."""
        self._looked_at, open_ = now, self.reports.all_open()
        self._remove_banned()
        body = self.removals.next_entry(now) or self.vote_changes.next_act()
        if body is None and (
            body := self.round_decisions.next_commit(open_, now) or self.step_views.next_commit()
        ):
            self.removals.wait_anew()  # No peer has had time to report this step.
        if body is None and self.informed(now):
            timeout_s = self.rules.reduction_timeout_s
            members = self.run_state.members
            linked = self.reports.linked(self.reports.able & members.keys())
            body = self.round_decisions.next_attempt(open_, now) or self.round_decisions.next_view(
                open_, linked
            )
            body = body or self.step_views.next_change(now, linked, timeout_s=timeout_s)
            # Removed peers (all, if a witness leads) may be returning now, with the state.
            readers = self.run_state.readers
            struck = self.began_with - readers.keys() or not members
            # Nor is any peer a member yet that holds the state to which the run has just gone back.
            waits = struck or (self.run_state.restored is not None and not self.run_state.views)
            patience_s = self.rules.silence_timeout_s if waits else 0.0
            rollback = self.joins.rollback
            if body is None and (body := rollback.restore(now, patience_s=patience_s)):
                self.removals.wait_anew()  # They have to report again what they hold.
        body = body or self.joins.next_entry(now) or self.vote_changes.next_voter()
        return body or self.sample_leases.next_entry(self.run_state)

    def hopeless(self, now: float) -> bool:
        """No peer has the run's state, and none will."""
        patience_s = self.rules.silence_timeout_s
        rollback = self.joins.rollback
        return rollback.run_is_lost(now, patience_s=patience_s) and self.informed(now)

    def informed(self, now: float) -> bool:
        """Have all connected peers repeated their reports in this term, or had the time to? What
        looks missing in a new term may only not be reported yet."""
        if now >= self.since + self.rules.election_timeout_s:
            return True
        members = self.run_state.members
        here = members.keys() & (self.raft.up | {self.raft.me})
        return all(map(self.accounts.told, here))

    def deadline(self) -> float:
        """The next time at which `next_entry` may decide something without a report."""
        rules, rollback = self.rules, self.joins.rollback
        times = [
            self.joins.deadline(),
            rollback.hopeless_since + rules.silence_timeout_s,
            self.since + rules.election_timeout_s,
            *self.removals.deadlines(),
            self.step_views.deadline(rules.reduction_timeout_s),
        ]
        times += self.round_decisions.deadlines()
        # What was due at the last call could not be decided then: something else must happen first.
        return min((time for time in times if time > self._looked_at), default=NEVER)

    def _remove_banned(self) -> None:
        """Peers with a revoked certificate, and those that a person removed, are lost."""
        revoked, readers = self.run_state.revoked, self.run_state.readers
        gone, me = self.removals.gone, self.raft.me
        for peer in sorted(revoked.keys() & readers.keys() - {me}):
            # A revoked peer that leaves need not stay until its state is not needed.
            if gone.get(peer, (True, ""))[0]:
                why = f"its certificate was revoked by {revoked[peer].by}"
                self.lose(peer, why, left=False)
        for peer in readers if self.run_state.orders.kicks else ():
            kick = self.run_state.kick_of(peer) if peer not in gone else None
            if kick is not None and peer != me:
                self.lose(peer, f"it was removed by {author(kick)}", left=False)
