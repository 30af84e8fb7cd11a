"""The reports of peers to the leader that its next decision may need.

Their number is bounded by members and open rounds. Must NOT decide (decisions.py).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from protocols.leader.line_speeds import LinkSpeeds
from protocols.links.missing_links import MissingLinks, described
from protocols.messages.log_entries import Run
from protocols.messages.peer import ContributionOffered, Have, Hold, WaitsForPeers, WrongResult
from protocols.rounds.contributions import check_contributor
from protocols.rounds.suspicions import Complaint, Suspicions
from protocols.state.parts import divide
from protocols.state.round_plan import RoundPlan
from protocols.state.run_state import RunState
from protocols.types.clock import NEVER
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import Contributor, FragmentParts, PeerId, RoundKey, Stamp, Version
from protocols.types.sample_ranges import Samples, well_formed


@dataclass(slots=True)
class RoundReports:
    """The reports about one open round."""

    ready: dict[PeerId, Contributor] = field(default_factory=dict[PeerId, Contributor])
    ready_at: dict[PeerId, float] = field(default_factory=dict[PeerId, float])
    samples: dict[PeerId, Samples] = field(default_factory=dict[PeerId, Samples])
    """Samples of each contribution."""
    plan: Stamp | None = None
    """The attempt to which `plan_since` belongs."""
    plan_since: float = 0.0
    """When the attempt's last contribution was ready."""
    holds: dict[PeerId, tuple[Stamp, str]] = field(default_factory=dict[PeerId, tuple[Stamp, str]])
    waiting: dict[PeerId, tuple[Stamp, frozenset[PeerId]]] = field(
        default_factory=dict[PeerId, tuple[Stamp, frozenset[PeerId]]]
    )

    void: dict[PeerId, tuple[Stamp, frozenset[PeerId]]] = field(
        default_factory=dict[PeerId, tuple[Stamp, frozenset[PeerId]]]
    )
    """By owner, the peers with contributions that it cannot average."""

    wrong: set[Complaint] = field(default_factory=set[Complaint])
    """Reports about wrong results, of all attempts."""
    doubted: dict[Stamp, RoundPlan] = field(default_factory=dict[Stamp, RoundPlan])
    """The plans of attempts with such reports. The first one ends the attempt, and others about it
    may come later."""

    hurried: set[PeerId] = field(default_factory=set[PeerId])
    """Stragglers that were asked to contribute."""

    def everybody_ready(self, plan: RoundPlan) -> bool:
        return set(plan.roster) <= self.ready.keys()

    def enough_at(self, alive: Set[PeerId], quorum: int) -> float:
        """When `quorum` of these peers, or all of them, were ready; NEVER if they are not."""
        ready = sorted(at for peer, at in self.ready_at.items() if peer in alive)
        needed = min(quorum, len(alive))
        return ready[needed - 1] if 0 < needed <= len(ready) else NEVER

    def start_clock(self, plan: RoundPlan, now: float) -> None:
        """The time of a reduction runs from its last contribution, for each attempt."""
        if self.everybody_ready(plan) and self.plan != plan.stamp:
            self.plan, self.plan_since = plan.stamp, now
            self.waiting.clear()  # Those reports were about missing contributions.

    def holders(self, plan: RoundPlan) -> dict[PeerId, str]:
        """By peer that holds the result of this attempt, its digest."""
        return {p: digest for p, (stamp, digest) in self.holds.items() if stamp == plan.stamp}

    def is_held_by(self, peers: Iterable[PeerId], plan: RoundPlan, digest: str) -> bool:
        """Do all of these peers hold this result? In pairs no peer needs another one's."""
        holders = self.holders(plan)
        return bool(plan.pairs) or all(holders.get(peer) == digest for peer in peers)

    def voided(self, plan: RoundPlan) -> set[PeerId]:
        """Peers with contributions that cannot be averaged, as the owners of this attempt
        report."""
        said = ((peer, *self.void[peer]) for peer in plan.summing if peer in self.void)
        found = (set(x) & set(plan.summed_by(peer)) for peer, at, x in said if at == plan.stamp)
        return set[PeerId]().union(*found)

    def wrong_at(self, plan: RoundPlan) -> list[Complaint]:
        """The reports about wrong results of this attempt, which cannot be committed then."""
        found = [each for each in self.wrong if each.stamp == plan.stamp]
        return sorted(found, key=lambda each: (each.part, each.reporter))

    def covered(self, plan: RoundPlan) -> tuple[Samples, ...]:
        """Samples of each peer of the roster; () if there are none, or another fragment counts
        them."""
        samples = tuple(self.samples[peer] for peer in plan.roster)
        return samples if plan.stamp.fragment == 0 and any(samples) else ()

    def complaints(self, plan: RoundPlan) -> Counter[PeerId]:
        """By peer, how many others wait for it in this attempt."""
        return Counter(
            blamed
            for stamp, peers in self.waiting.values()
            for blamed in peers
            if stamp == plan.stamp
        )

    def blamed(self, plan: RoundPlan, live: Set[PeerId], *, but: PeerId) -> set[PeerId]:
        """The peer of `live` for which most others wait; all of `live` if there is none but the
        leader `but`."""
        complaints, others = self.complaints(plan), live - {but}
        suspects = sorted(others - self.holders(plan).keys()) or sorted(others)
        if not suspects:
            return set(live)
        return {max(suspects, key=lambda peer: (complaints[peer], peer))}


OpenRound = tuple[int, RoundPlan, RoundReports]
"""(fragment, plan, reports) of an open round."""


@dataclass(slots=True)
class LineageReports:
    """The reports about rounds and states of one lineage. A Restore opens another lineage, and all
    of this is dropped, since rounds and fragments have the same numbers in both."""

    lineage: int
    """The lineage, as in stamps."""
    rounds: dict[RoundKey, RoundReports] = field(default_factory=dict[RoundKey, RoundReports])
    """Reports about open rounds; the leader removes a round when it commits it."""
    have: dict[tuple[int, int], dict[PeerId, str]] = field(
        default_factory=dict[tuple[int, int], dict[PeerId, str]]
    )
    """State digests by (fragment, round), for the last two rounds of each fragment."""
    newest: dict[PeerId, dict[int, Version]] = field(
        default_factory=dict[PeerId, dict[int, Version]]
    )
    """By peer and fragment, the last reported state, however old."""
    able: set[PeerId] = field(default_factory=set[PeerId])
    """Peers that reported that their ranks can contribute."""


@dataclass(slots=True)
class Reports:
    """The reports about all open rounds, and about the states of peers."""

    me: PeerId
    run_state: RunState
    _said: LineageReports = field(default_factory=lambda: LineageReports(0))
    """The reports of the lineage at the last access."""
    missing_links: MissingLinks = field(default_factory=MissingLinks)
    link_speeds: LinkSpeeds = field(default_factory=LinkSpeeds)
    suspicions: Suspicions = field(default_factory=Suspicions)
    divided: tuple[tuple[PeerId, ...], tuple[FragmentParts, ...]] = ((), ())
    """Cache: the owners and parts of the last considered view."""

    @property
    def said(self) -> LineageReports:
        """The reports of the present lineage; empty if a Restore has just opened it."""
        if self._said.lineage != self.run_state.lineage:
            self._said = LineageReports(self.run_state.lineage)
        return self._said

    @property
    def rounds(self) -> dict[RoundKey, RoundReports]:
        """The open rounds of the present lineage with reports."""
        return self.said.rounds

    @property
    def able(self) -> set[PeerId]:
        """Peers that reported in the present lineage that they can contribute."""
        return self.said.able

    def lost(self, peer: PeerId) -> None:
        """The peer is gone: neither its links nor its line nor its ranks count."""
        self.missing_links.forget(peer)
        self.link_speeds.forget(peer)
        self.able.discard(peer)

    def linked(self, peers: Set[PeerId]) -> set[PeerId]:
        """As many of these peers as can be in one roster, i.e. are all connected with each
        other."""
        seats = self.run_state.members
        return set(peers) - self.missing_links.without(peers, but=self.me, seats=seats)

    def fit(
        self, plan: RoundPlan, reports: RoundReports, live: Set[PeerId]
    ) -> tuple[set[PeerId], str]:
        """The peers of `live` that can be in one sum, and why the others cannot ("" if all can)."""
        linked = self.linked(live)
        if linked != live:
            return linked, self.apart(live)
        sound = set(live) - reports.voided(plan)
        # If no contribution can be averaged, peers are excluded for another reason.
        if sound and sound != live:
            return sound, "what it contributed cannot be averaged"
        return set(live), ""

    def cut_off(self) -> str:
        """The missing links among members and the excluded peers, as a text; "" if there are
        none."""
        here = set(self.run_state.members) if self.missing_links.missed else set[PeerId]()
        why, seats = self.apart(here), self.run_state.seats
        names = ", ".join(sorted(seats[peer].name for peer in here - self.linked(here)))
        return f"{why}: {names} cannot take part until there is one" if why else ""

    def apart(self, peers: Set[PeerId]) -> str:
        """The missing links among these peers, as a text; "" if there are none."""
        gaps = self.missing_links.among(peers, but=self.me)
        if not gaps:
            return ""  # The usual case.
        seats = self.run_state.seats
        return described(gaps, {peer: info.name for peer, info in seats.items()})

    def parts(self, run: Run, roster: tuple[PeerId, ...]) -> tuple[FragmentParts, ...]:
        """The parts of a view with this roster: peers with a slow line own none, nor do those that
        gave wrong results."""
        owners = self.link_speeds.owners(roster) or roster
        trusted = tuple(peer for peer in owners if peer not in self.suspicions.distrusted)
        owners = trusted or owners
        if self.divided[0] != owners:
            self.divided = owners, divide(run, owners)
        return self.divided[1]

    def ready(self, peer: PeerId, message: ContributionOffered, now: float) -> None:
        contributor = message.contributor
        check_contributor(contributor, peer)
        self.link_speeds.told(peer, message.line)
        reports = _noted_at(self, message.stamp)
        if not self.run_state.counts(peer, message.stamp.view):
            return  # It is of a view that knew an earlier incarnation.
        samples, ledger = message.samples, self.run_state.ledger
        if not (well_formed(samples) and ledger.may_count(peer, samples)):
            return  # Another peer may have trained these samples: the round goes on without it.
        if reports is not None and peer not in reports.ready:  # The first one stays, as at owners.
            reports.ready[peer], reports.ready_at[peer] = contributor, now
            reports.samples[peer] = samples

    def hold(self, peer: PeerId, message: Hold) -> None:
        reports = _noted_at(self, message.stamp)
        if reports is not None:
            reports.holds[peer] = (message.stamp, message.result_digest)

    def waits(self, peer: PeerId, message: WaitsForPeers) -> None:
        reports = _noted_at(self, message.stamp)
        if reports is not None:
            table = reports.void if message.void else reports.waiting
            table[peer] = (message.stamp, frozenset(message.peers))

    def wrong(self, peer: PeerId, message: WrongResult) -> list[PeerId]:
        """A peer of the roster complains about a result. Returns the peers that are proved to be at
        fault by now."""
        stamp, reports = message.stamp, _noted_at(self, message.stamp)
        plan = self.run_state.open_plan(stamp.fragment) if reports is not None else None
        if reports is None or plan is None:
            return []
        doubted = plan if plan.stamp == stamp else reports.doubted.get(stamp)
        complaint = Complaint(peer, stamp, message.part, frozenset(message.peers))
        if doubted is None or not complaint.fits(doubted):
            return []
        reports.doubted[stamp] = doubted
        reports.wrong.add(complaint)
        return self.suspicions.add(complaint)

    def has(self, peer: PeerId, message: Have) -> str:
        """Remember a state. Returns how it differs from the majority's; "" if it does not."""
        fragment, round_ = message.fragment, message.round
        if message.lineage != self.run_state.lineage:
            return ""  # A Restore took that state back.
        if fragment >= self.run_state.fragments or round_ > self.run_state.committed(fragment):
            raise RemoteProtocolError(peer, "reports a state that was never committed")
        have, newest = self.said.have, self.said.newest
        have.setdefault((fragment, round_), {})[peer] = message.state_digest
        version = Version(fragment, round_, message.state_digest)
        newest.setdefault(peer, {})[fragment] = version
        if not message.state_digest:
            del have[fragment, round_][peer]  # A stepwise run: it lacks the steps after.
            return ""
        needed = self.run_state.cut_round(fragment)
        for key in [k for k in have if k[0] == fragment and k[1] < needed - 1]:
            del have[key]
        majority = self.sure_digest(fragment, round_)
        return "" if majority in ("", message.state_digest) else f"differs at round {round_}"

    def forget(self, peer: PeerId) -> None:
        """Contributions of an earlier incarnation of this peer do not count any more."""
        for reports in self.rounds.values():
            for table in (reports.ready, reports.ready_at, reports.holds, reports.samples):
                table.pop(peer, None)
            for said in (reports.waiting, reports.void):
                said.pop(peer, None)
        self.lost(peer)
        self.forget_states(peer)

    def keep(self, peers: Set[PeerId]) -> None:
        """Drop the states of all other peers: they cannot be donors."""
        said = self.said
        for states in (said.newest, *said.have.values()):
            for peer in states.keys() - peers:
                del states[peer]

    def late(self, here: Set[PeerId], quorum: int) -> list[tuple[PeerId, Stamp]]:
        """Connected stragglers that contribute early if asked, with the round: peers that no round
        has counted yet, and with Run.asks all peers, once `quorum` have contributed. Each is named
        once per connection and round."""
        found: list[tuple[PeerId, Stamp]] = []
        for fragment, plan, reports in self.all_open():
            if reports.everybody_ready(plan) or not reports.ready:
                continue
            roster = set(plan.roster)
            late = (here & roster) - reports.ready.keys() - reports.hurried
            if not late:
                continue  # The usual case: they were asked.
            if not self.run_state.asks or reports.enough_at(roster, quorum) == NEVER:
                late -= _counted(self.run_state, fragment, plan)
            reports.hurried |= late
            found += [(peer, plan.stamp) for peer in sorted(late)]
        return found

    def forget_states(self, peer: PeerId) -> None:
        """The peer does not hold the states that it reported."""
        said = self.said
        for states in said.have.values():
            states.pop(peer, None)
        said.newest.pop(peer, None)

    def newest_of(self, peer: PeerId) -> tuple[Version, ...]:
        """The versions that the peer reported last."""
        newest = self.said.newest
        known = newest.get(peer, {})
        return tuple(known[fragment] for fragment in sorted(known))

    def all_open(self) -> list[OpenRound]:
        """The open rounds with reports."""
        found: list[OpenRound] = []
        for fragment in range(self.run_state.fragments) if self.said.rounds else ():
            plan, reports = self.open_round(fragment)
            if plan is not None and reports is not None:
                found.append((fragment, plan, reports))
        return found

    def open_round(self, fragment: int) -> tuple[RoundPlan | None, RoundReports | None]:
        """The open round of a fragment with its reports, if there are any."""
        plan = self.run_state.open_plan(fragment)
        if plan is None:
            return None, None
        return plan, self.rounds.get(RoundKey(fragment, plan.stamp.round))

    def states(self, fragment: int, round_: int) -> Mapping[PeerId, str]:
        have = self.said.have
        return have.get((fragment, round_), {})

    def majority_digest(self, fragment: int, round_: int) -> str:
        """The state digest that most peers reported; of equally many our own decides. "" without
        reports."""
        states = self.states(fragment, round_)
        if len(found := set(states.values())) < 2:
            return found.pop() if found else ""
        counts, mine = Counter(states.values()), states.get(self.me)
        return max(sorted(counts), key=lambda digest: (counts[digest], digest == mine), default="")

    def sure_digest(self, fragment: int, round_: int) -> str:
        """The state digest of more than half of the members; "" if there is none (yet)."""
        states, members = self.states(fragment, round_), self.run_state.members
        digest = self.majority_digest(fragment, round_)
        votes = sum(states.get(peer) == digest for peer in members)
        return digest if 2 * votes > len(members) else ""

    def is_split(self, fragment: int, asking: Set[PeerId]) -> bool:
        """Are all members that do not ask for a state at the last committed round, without a
        majority for any state?"""
        round_, run = self.run_state.cut_round(fragment), self.run_state.run
        assert run is not None
        if round_ >= run.outer_steps:
            return False  # The ranks are done, and other peers may have left with the right state.
        states = self.states(fragment, round_)
        if len(set(states.values())) < 2:
            return False  # The usual case.
        members = self.run_state.members
        holders = members.keys() - asking
        if not holders or not holders <= states.keys():
            return False
        counts = Counter(states[peer] for peer in holders)
        return 2 * max(counts.values()) <= len(holders)


def _noted_at(reports: Reports, stamp: Stamp) -> RoundReports | None:
    """Where to note a report; None if its round is decided, or not begun (no peer can be ahead of
    the leader's log)."""
    run_state = reports.run_state
    if stamp.fragment >= run_state.fragments:
        return None
    if stamp.lineage != run_state.lineage:
        return None  # A Restore took that round back.
    if stamp.round != run_state.committed(stamp.fragment) + 1:
        return None
    key, rounds = RoundKey(stamp.fragment, stamp.round), reports.rounds
    if (found := rounds.get(key)) is None:
        found = rounds[key] = RoundReports()
    return found


def _counted(run_state: RunState, fragment: int, plan: RoundPlan) -> set[PeerId]:
    """Peers that the last round of the fragment counted. In a first round all are new and began
    together."""
    commits = run_state.commits.get(fragment)
    return {term.peer for term in commits[-1].contributors} if commits else set(plan.roster)
