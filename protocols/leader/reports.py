"""What peers told the leader, as far as its next decision may need it.

Everything here is bounded by the members and the open rounds. Must NOT decide (decisions.py).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from protocols.leader.line_speeds import Lines
from protocols.links.missing_links import Gaps, described
from protocols.messages.log_entries import Run
from protocols.messages.peer import Have, Hold, Ready, Waiting
from protocols.rounds.contributions import check_contributor
from protocols.state.parts import divide
from protocols.state.round_plan import Plan
from protocols.state.run_state import Membership
from protocols.types.clock import NEVER
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import Contributor, FragmentParts, PeerId, RoundKey, Stamp, Version
from protocols.types.sample_ranges import Samples, well_formed


@dataclass(slots=True)
class RoundReports:
    """What peers said about one open round."""

    ready: dict[PeerId, Contributor] = field(default_factory=dict[PeerId, Contributor])
    ready_at: dict[PeerId, float] = field(default_factory=dict[PeerId, float])
    samples: dict[PeerId, Samples] = field(default_factory=dict[PeerId, Samples])
    """What each contribution covers."""
    plan: Stamp | None = None
    """The attempt that the clock below belongs to."""
    plan_since: float = 0.0
    """When its last contribution was ready."""
    holds: dict[PeerId, tuple[Stamp, str]] = field(default_factory=dict[PeerId, tuple[Stamp, str]])
    waiting: dict[PeerId, tuple[Stamp, frozenset[PeerId]]] = field(
        default_factory=dict[PeerId, tuple[Stamp, frozenset[PeerId]]]
    )

    void: dict[PeerId, tuple[Stamp, frozenset[PeerId]]] = field(
        default_factory=dict[PeerId, tuple[Stamp, frozenset[PeerId]]]
    )
    """Whose contributions each peer cannot average."""

    hurried: set[PeerId] = field(default_factory=set[PeerId])
    """Who was told that others wait."""

    def everybody_ready(self, plan: Plan) -> bool:
        return set(plan.roster) <= self.ready.keys()

    def enough_at(self, alive: Set[PeerId], quorum: int) -> float:
        """When so many of these were ready, or all of them; NEVER if they are not."""
        ready = sorted(at for peer, at in self.ready_at.items() if peer in alive)
        needed = min(quorum, len(alive))
        return ready[needed - 1] if 0 < needed <= len(ready) else NEVER

    def start_clock(self, plan: Plan, now: float) -> None:
        """A reduction's time runs from when its last contribution was ready, per attempt."""
        if self.everybody_ready(plan) and self.plan != plan.stamp:
            self.plan, self.plan_since = plan.stamp, now
            self.waiting.clear()  # That was for who had not contributed yet.

    def holders(self, plan: Plan) -> dict[PeerId, str]:
        """Who holds the result of this attempt, and with which digest."""
        return {p: digest for p, (stamp, digest) in self.holds.items() if stamp == plan.stamp}

    def is_held_by(self, peers: Iterable[PeerId], plan: Plan, digest: str) -> bool:
        """All of them hold this result of this attempt; of pairs nobody needs another's."""
        holders = self.holders(plan)
        return bool(plan.pairs) or all(holders.get(peer) == digest for peer in peers)

    def voided(self, plan: Plan) -> set[PeerId]:
        """Whose contributions cannot be averaged, as those say who sum them in this attempt."""
        said = ((peer, *self.void[peer]) for peer in plan.summing if peer in self.void)
        found = (set(x) & set(plan.summed_by(who)) for who, at, x in said if at == plan.stamp)
        return set[PeerId]().union(*found)

    def covered(self, plan: Plan) -> tuple[Samples, ...]:
        """What each of the roster saw; () if nobody saw anything, or another fragment counts it."""
        samples = tuple(self.samples[peer] for peer in plan.roster)
        return samples if plan.stamp.fragment == 0 and any(samples) else ()

    def complaints(self, plan: Plan) -> Counter[PeerId]:
        """How many wait for a peer in this attempt."""
        return Counter(
            blamed
            for stamp, peers in self.waiting.values()
            for blamed in peers
            if stamp == plan.stamp
        )

    def blamed(self, plan: Plan, live: Set[PeerId], *, but: PeerId) -> set[PeerId]:
        """The one of `live` for whom most of the others wait; all of them if there is none beside
        `but`, who leads."""
        complaints, others = self.complaints(plan), live - {but}
        suspects = sorted(others - self.holders(plan).keys()) or sorted(others)
        if not suspects:
            return set(live)
        return {max(suspects, key=lambda peer: (complaints[peer], peer))}


OpenRound = tuple[int, Plan, RoundReports]
"""(fragment, its plan, what peers said about it)."""


@dataclass(slots=True)
class LineageReports:
    """What peers said of the rounds and states of one lineage. A Restore opens another lineage, and
    nothing of this is looked at any more: rounds and fragments have the same numbers in both."""

    lineage: int
    """As stamps have it."""
    rounds: dict[RoundKey, RoundReports] = field(default_factory=dict[RoundKey, RoundReports])
    """Of open rounds; the leader takes a round out when it commits it."""
    have: dict[tuple[int, int], dict[PeerId, str]] = field(
        default_factory=dict[tuple[int, int], dict[PeerId, str]]
    )
    """State digests by (fragment, round), of the last two rounds of each fragment."""
    newest: dict[PeerId, dict[int, Version]] = field(
        default_factory=dict[PeerId, dict[int, Version]]
    )
    """By peer and fragment: the last state that each reported, however old."""
    able: set[PeerId] = field(default_factory=set[PeerId])
    """Whose ranks can contribute, as each peer said last."""


@dataclass(slots=True)
class Reports:
    """All rounds' reports, and who arrived at which state."""

    me: PeerId
    members: Membership
    _said: LineageReports = field(default_factory=lambda: LineageReports(0))
    """Of the lineage that the log was in when anybody looked last."""
    gaps: Gaps = field(default_factory=Gaps)
    lines: Lines = field(default_factory=Lines)
    divided: tuple[tuple[PeerId, ...], tuple[FragmentParts, ...]] = ((), ())
    """Among whom the parts of the latest view that was thought of were divided, and how."""

    @property
    def said(self) -> LineageReports:
        """Of the present lineage, nothing where a Restore has just opened it."""
        if self._said.lineage != self.members.lineage:
            self._said = LineageReports(self.members.lineage)
        return self._said

    @property
    def rounds(self) -> dict[RoundKey, RoundReports]:
        """The open rounds of the present lineage of which somebody spoke."""
        return self.said.rounds

    def linked(self, peers: Set[PeerId]) -> set[PeerId]:
        """Of these, as many as can be in one roster: all are connected with each other."""
        seats = self.members.members
        return set(peers) - self.gaps.without(peers, but=self.me, seats=seats)

    def fit(self, plan: Plan, reports: RoundReports, live: Set[PeerId]) -> tuple[set[PeerId], str]:
        """Of these, those that can be in one sum, and why the others cannot ("": all can)."""
        linked = self.linked(live)
        if linked != live:
            return linked, self.apart(live)
        sound = set(live) - reports.voided(plan)
        # If nobody's can be averaged, somebody has to be left out for another reason.
        if sound and sound != live:
            return sound, "what it contributed cannot be averaged"
        return set(live), ""

    def cut_off(self) -> str:
        """Which links are missing among the members, and who is left out for it, for people; "":
        none."""
        here = set(self.members.members) if self.gaps.missed else set[PeerId]()
        why, seats = self.apart(here), self.members.seats
        names = ", ".join(sorted(seats[peer].name for peer in here - self.linked(here)))
        return f"{why}: {names} cannot take part until there is one" if why else ""

    def apart(self, peers: Set[PeerId]) -> str:
        """Which links are missing among these, for people; "": none."""
        gaps = self.gaps.among(peers, but=self.me)
        names = {peer: info.name for peer, info in self.members.seats.items()} if gaps else {}
        return described(gaps, names) if gaps else ""

    def parts(self, run: Run, roster: tuple[PeerId, ...]) -> tuple[FragmentParts, ...]:
        """Of a view with this roster: whose line is slow owns none."""
        owners = self.lines.owners(roster) or roster
        if self.divided[0] != owners:
            self.divided = owners, divide(run, owners)
        return self.divided[1]

    def ready(self, peer: PeerId, message: Ready, now: float) -> None:
        contributor = message.contributor
        check_contributor(contributor, peer)
        self.lines.told(peer, message.line)
        reports = self._of(message.stamp)
        if not self.members.counts(peer, message.stamp.view):
            return  # Of a view that knew an earlier life of it.
        samples = message.samples
        if not (well_formed(samples) and self.members.ledger.may_count(peer, samples)):
            return  # Somebody else may have trained them: the round goes on without it.
        if reports is not None and peer not in reports.ready:  # As owners do: the first stays.
            reports.ready[peer], reports.ready_at[peer] = contributor, now
            reports.samples[peer] = samples

    def hold(self, peer: PeerId, message: Hold) -> None:
        reports = self._of(message.stamp)
        if reports is not None:
            reports.holds[peer] = (message.stamp, message.result_digest)

    def waits(self, peer: PeerId, message: Waiting) -> None:
        reports = self._of(message.stamp)
        if reports is not None:
            table = reports.void if message.void else reports.waiting
            table[peer] = (message.stamp, frozenset(message.peers))

    def has(self, peer: PeerId, message: Have) -> str:
        """Remember a state; return how it differs from the majority's, if it does."""
        fragment, round_ = message.fragment, message.round
        if message.lineage != self.members.lineage:
            return ""  # Of a state that a Restore took back.
        if fragment >= self.members.fragments or round_ > self.members.committed(fragment):
            raise RemoteProtocolError(peer, "reports a state that was never committed")
        have, newest = self.said.have, self.said.newest
        have.setdefault((fragment, round_), {})[peer] = message.state_digest
        version = Version(fragment, round_, message.state_digest)
        newest.setdefault(peer, {})[fragment] = version
        if not message.state_digest:
            del have[fragment, round_][peer]  # A stepwise run: it lacks what comes after.
            return ""
        needed = self.members.cut_round(fragment)
        for key in [k for k in have if k[0] == fragment and k[1] < needed - 1]:
            del have[key]
        majority = self.sure_digest(fragment, round_)
        return "" if majority in ("", message.state_digest) else f"differs at round {round_}"

    def forget(self, peer: PeerId) -> None:
        """What an earlier life of this peer contributed counts no more."""
        for reports in self.rounds.values():
            for table in (reports.ready, reports.ready_at, reports.holds, reports.samples):
                table.pop(peer, None)
            for said in (reports.waiting, reports.void):
                said.pop(peer, None)
        self.gaps.forget(peer)
        self.lines.forget(peer)
        self.forget_states(peer)

    def keep(self, peers: Set[PeerId]) -> None:
        """Forget which states any other peer has: it can give them to nobody."""
        said = self.said
        for states in (said.newest, *said.have.values()):
            for peer in states.keys() - peers:
                del states[peer]

    def late(self, here: Set[PeerId], quorum: int) -> list[tuple[PeerId, Stamp]]:
        """Those `here` for whom somebody waits, and who contribute early if they are asked: whom no
        round has counted yet, and where a run asks, all of them, once `quorum` have contributed.
        Each is named once per connection and round."""
        found: list[tuple[PeerId, Stamp]] = []
        for fragment, plan, reports in self.all_open():
            if reports.everybody_ready(plan) or not reports.ready:
                continue
            roster = set(plan.roster)
            late = (here & roster) - reports.ready.keys() - reports.hurried
            if not late:
                continue  # As nearly always: they were told.
            if not self.members.asks or reports.enough_at(roster, quorum) == NEVER:
                late -= self._counted(fragment, plan)
            reports.hurried |= late
            found += [(peer, plan.stamp) for peer in sorted(late)]
        return found

    def _counted(self, fragment: int, plan: Plan) -> set[PeerId]:
        """By the last round of the fragment. In a first one all are new, and began together."""
        commits = self.members.commits.get(fragment)
        return {term.peer for term in commits[-1].contributors} if commits else set(plan.roster)

    def forget_states(self, peer: PeerId) -> None:
        """It does not hold what it said."""
        for states in self.said.have.values():
            states.pop(peer, None)
        self.said.newest.pop(peer, None)

    def newest_of(self, peer: PeerId) -> tuple[Version, ...]:
        """What it reported last, of the fragments that it spoke of."""
        known = self.said.newest.get(peer, {})
        return tuple(known[fragment] for fragment in sorted(known))

    def all_open(self) -> list[OpenRound]:
        """The rounds that wait for a decision and of which somebody spoke."""
        found: list[OpenRound] = []
        for fragment in range(self.members.fragments) if self.said.rounds else ():
            plan, reports = self.open(fragment)
            if plan is not None and reports is not None:
                found.append((fragment, plan, reports))
        return found

    def open(self, fragment: int) -> tuple[Plan | None, RoundReports | None]:
        """The round that waits for a decision, if somebody spoke of it."""
        plan = self.members.open_plan(fragment)
        if plan is None:
            return None, None
        return plan, self.rounds.get(RoundKey(fragment, plan.stamp.round))

    def states(self, fragment: int, round_: int) -> Mapping[PeerId, str]:
        return self.said.have.get((fragment, round_), {})

    def majority_digest(self, fragment: int, round_: int) -> str:
        """The state digest that most peers reported; our own decides a tie, if it is in it. ""
        without reports."""
        states = self.states(fragment, round_)
        if len(found := set(states.values())) < 2:
            return found.pop() if found else ""
        counts, mine = Counter(states.values()), states.get(self.me)
        return max(sorted(counts), key=lambda digest: (counts[digest], digest == mine), default="")

    def sure_digest(self, fragment: int, round_: int) -> str:
        """The digest of more than half of the members; "" when there is none (yet)."""
        states, members = self.states(fragment, round_), self.members.members
        digest = self.majority_digest(fragment, round_)
        votes = sum(states.get(peer) == digest for peer in members)
        return digest if 2 * votes > len(members) else ""

    def is_split(self, fragment: int, asking: Set[PeerId]) -> bool:
        """All members are at the last committed round, but for those that ask for a state, and no
        state is that of a majority."""
        round_ = self.members.cut_round(fragment)
        assert self.members.run is not None
        if round_ >= self.members.run.outer_steps:
            return False  # The ranks are done, and others may have gone with the right state.
        states = self.states(fragment, round_)
        if len(set(states.values())) < 2:
            return False  # As nearly always.
        holders = self.members.members.keys() - asking
        if not holders or not holders <= states.keys():
            return False
        counts = Counter(states[peer] for peer in holders)
        return 2 * max(counts.values()) <= len(holders)

    def _of(self, stamp: Stamp) -> RoundReports | None:
        """Where to note a report; None: its round is decided, or not begun (our log is the
        newest, so nobody can be further)."""
        if stamp.fragment >= self.members.fragments:
            return None
        if stamp.lineage != self.members.lineage:
            return None  # Of a round that a Restore took back.
        if stamp.round != self.members.committed(stamp.fragment) + 1:
            return None
        key, rounds = RoundKey(stamp.fragment, stamp.round), self.said.rounds
        if (reports := rounds.get(key)) is None:
            reports = rounds[key] = RoundReports()
        return reports
