"""What the leader decides: the next entry of the log, and why.

It looks at the membership that the log led to and at what peers reported in this term. Must NOT
send anything, and must not remember a decision anywhere but in the log.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from protocols import entries as e
from protocols.config import ProtocolConfig
from protocols.errors import RemoteProtocolError
from protocols.ids import Contributor, PeerId, PeerInfo, RoundKey, Stamp, Version
from protocols.membership import Membership, Plan
from protocols.messages import (
    Able,
    CaughtUp,
    Control,
    Have,
    Hold,
    Join,
    Leave,
    Ready,
    Unable,
    Waiting,
)
from protocols.reduction import cut_parts, replace_owners


@dataclass(slots=True)
class RoundReports:
    """What peers said about one open round."""

    ready: dict[PeerId, Contributor] = field(default_factory=dict[PeerId, Contributor])
    first_ready: float = 0.0
    plan: Stamp | None = None
    """The attempt that the clock below belongs to."""
    plan_since: float = 0.0
    holds: dict[PeerId, tuple[Stamp, str]] = field(default_factory=dict[PeerId, tuple[Stamp, str]])
    waiting: dict[PeerId, tuple[PeerId, ...]] = field(
        default_factory=dict[PeerId, tuple[PeerId, ...]]
    )


@dataclass(slots=True)
class Leader:
    """The sequencer's knowledge beyond the log, and its rules."""

    me: PeerId
    members: Membership
    rules: ProtocolConfig
    joins: dict[PeerId, Join] = field(default_factory=dict[PeerId, Join])
    caught_up: dict[PeerId, int] = field(default_factory=dict[PeerId, int])
    able: set[PeerId] = field(default_factory=set[PeerId])
    gone: dict[PeerId, tuple[bool, str]] = field(default_factory=dict[PeerId, tuple[bool, str]])
    """Peers to strike from the log: (left by itself, why)."""
    rounds: dict[RoundKey, RoundReports] = field(default_factory=dict[RoundKey, RoundReports])
    have: dict[tuple[int, int], dict[PeerId, str]] = field(
        default_factory=dict[tuple[int, int], dict[PeerId, str]]
    )
    """State digests by (fragment, round)."""

    # Reports --------------------------------------------------------------------------------

    def take(self, peer: PeerId, message: Control, now: float) -> str:
        """Remember a report; return how the peer differs from the majority, if it does.

        Raises RemoteProtocolError for what nobody may send to a leader.
        """
        match message:
            case Join():
                self.joins[peer] = message
                self.able.discard(peer)
            case CaughtUp():
                self.caught_up[peer] = message.index
            case Leave():
                self.lose(peer, message.why, left=True)
            case _ if peer not in self.members.members:
                pass  # Struck from the log meanwhile: it will learn that from the log.
            case Able():
                self.able.add(peer)
            case Unable():
                self.able.discard(peer)
            case Ready():
                self._ready(peer, message, now)
            case Hold():
                self._hold(peer, message)
            case Waiting():
                self._waits(peer, message)
            case Have():
                return self._has(peer, message)
            case _:
                raise RemoteProtocolError(peer, f"sends {type(message).__name__} unasked")
        return ""

    def lose(self, peer: PeerId, why: str, *, left: bool) -> None:
        """The peer is gone; whatever it asked for is void."""
        self.joins.pop(peer, None)
        self.caught_up.pop(peer, None)
        self.able.discard(peer)
        if peer in self.members.receivers:
            self.gone[peer] = (left, why)

    def _ready(self, peer: PeerId, message: Ready, now: float) -> None:
        if message.contributor.peer != peer:
            raise RemoteProtocolError(peer, "reports somebody else's contribution")
        reports = self._reports(message.stamp)
        if reports is not None:
            reports.first_ready = reports.first_ready if reports.ready else now
            reports.ready.setdefault(peer, message.contributor)  # As owners do: the first stays.

    def _hold(self, peer: PeerId, message: Hold) -> None:
        reports = self._reports(message.stamp)
        if reports is not None:
            reports.holds[peer] = (message.stamp, message.result_digest)

    def _waits(self, peer: PeerId, message: Waiting) -> None:
        reports = self._reports(message.stamp)
        if reports is not None:
            reports.waiting[peer] = message.peers

    def _has(self, peer: PeerId, message: Have) -> str:
        self.have.setdefault((message.fragment, message.round), {})[peer] = message.state_digest
        committed = self.members.committed(message.fragment)
        for key in [k for k in self.have if k[0] == message.fragment and k[1] < committed - 1]:
            del self.have[key]
        majority = self.majority_digest(message.fragment, message.round)
        return "" if majority in ("", message.state_digest) else f"differs at round {message.round}"

    # Decisions ------------------------------------------------------------------------------

    def next_entry(self, now: float) -> e.Entry | None:
        """The next thing to put into the log, or None. Call again after applying it."""
        return (
            self._strike()
            or self._next_commit(now)
            or self._next_attempt(now)
            or self._next_view()
            or self._next_member()
            or self._next_cut()
        )

    def deadline(self) -> float:
        """When `next_entry` may decide something that no report triggers."""
        times = [float("inf")]
        for fragment in range(self.members.fragments):
            plan, reports = self._open(fragment)
            if plan is None or reports is None or not reports.ready:
                continue
            if self._everybody_ready(plan, reports):
                times.append(reports.plan_since + self.rules.reduction_timeout_s)
            else:
                times.append(reports.first_ready + self.rules.round_grace_s)
        return min(times)

    def majority_digest(self, fragment: int, round_: int) -> str:
        """The state digest that most peers reported; our own decides a tie."""
        reported = self.have.get((fragment, round_), {})
        if not reported:
            return ""
        counts = Counter(reported.values())
        return max(counts, key=lambda digest: (counts[digest], digest == reported.get(self.me)))

    def _strike(self) -> e.Entry | None:
        for peer, (left, why) in list(self.gone.items()):
            del self.gone[peer]
            if peer in self.members.receivers:
                return e.Left(peer, why) if left else e.Lost(peer, why)
        return None

    def _next_commit(self, now: float) -> e.Entry | None:
        for fragment in range(self.members.fragments):
            plan, reports = self._open(fragment)
            if plan is None or reports is None:
                continue
            self._restart_clock(plan, reports, now)
            digest = self._agreed(plan, reports, now)
            if not digest:
                continue
            stamp = plan.stamp
            del self.rounds[RoundKey(fragment, stamp.group, stamp.round)]
            return e.Commit(
                view=stamp.view,
                fragment=fragment,
                group=stamp.group,
                round=stamp.round,
                attempt=stamp.attempt,
                contributors=tuple(reports.ready[peer] for peer in sorted(plan.roster)),
                borders=plan.parts.borders,
                result_digest=digest,
                previous_state_digest=self.majority_digest(fragment, stamp.round - 1),
            )
        return None

    def _agreed(self, plan: Plan, reports: RoundReports, now: float) -> str:
        """The result digest that may be committed now, or "".

        Every live roster member must hold it; after the deadline a majority of the roster; never
        fewer than two live members, or one if there is only one.
        """
        if not set(plan.roster) <= reports.ready.keys():
            return ""
        live = self.members.members.keys()
        holders = Counter(
            digest
            for peer, (stamp, digest) in reports.holds.items()
            if stamp == plan.stamp and peer in live
        )
        if not holders:
            return ""
        digest, _ = holders.most_common(1)[0]
        holding = {p for p, held in reports.holds.items() if held == (plan.stamp, digest)} & live
        live_roster = set(plan.roster) & live
        late = now >= reports.plan_since + self.rules.reduction_timeout_s
        enough = live_roster <= holding or (late and 2 * len(holding) > len(plan.roster))
        return digest if enough and len(holding) >= min(2, len(live)) else ""

    def _next_attempt(self, now: float) -> e.Entry | None:
        for fragment in range(self.members.fragments):
            plan, reports = self._open(fragment)
            if plan is None or reports is None or not reports.ready:
                continue
            roster, why = self._reduced_roster(plan, reports, self._alive(plan, reports), now)
            if not why:
                continue
            if not roster:
                continue  # Nobody left: `_next_view` opens the round anew.
            return e.Attempt(
                view=plan.stamp.view,
                fragment=fragment,
                group=plan.stamp.group,
                round=plan.stamp.round,
                attempt=plan.stamp.attempt + 1,
                roster=tuple(sorted(roster)),
                owners=replace_owners(plan.parts, sorted(roster)),
                why=why,
            )
        return None

    def _reduced_roster(
        self, plan: Plan, reports: RoundReports, live: set[PeerId], now: float
    ) -> tuple[set[PeerId], str]:
        """Who stays in the round, and why somebody does not ("": the plan may stand)."""
        gone = set(plan.roster) - live
        if gone:
            return live, f"without {self._names(gone)}"
        missing = live - reports.ready.keys()
        if missing:
            if now < reports.first_ready + self.rules.round_grace_s:
                return live, ""
            return live - missing, f"{self._names(missing)} not ready within the grace window"
        if now < reports.plan_since + self.rules.reduction_timeout_s:
            return live, ""
        silent = self._blamed(plan, reports, live)
        return live - silent, f"no result in time because of {self._names(silent)}"

    def _blamed(self, plan: Plan, reports: RoundReports, live: set[PeerId]) -> set[PeerId]:
        """Whom most of the others wait for; never everybody."""
        blame = Counter(p for peers in reports.waiting.values() for p in peers if p in live)
        holding = {p for p, (stamp, _) in reports.holds.items() if stamp == plan.stamp}
        suspects = sorted(live - holding - {self.me}) or sorted(live - {self.me})
        if not suspects:
            return set()
        return {max(suspects, key=lambda peer: (blame[peer], peer))}

    def _next_view(self) -> e.Entry | None:
        """The roster is everybody who said it can contribute."""
        run = self.members.run
        roster = tuple(sorted(self.able & self.members.members.keys()))
        newest = self.members.views[-1] if self.members.views else None
        if run is None or not roster or (newest is None and len(roster) < run.peers_min):
            return None
        if newest is not None and newest.roster == roster:
            return None
        if all(self.members.committed(f) >= run.outer_steps for f in range(self.members.fragments)):
            return None  # The run is finished.
        return e.View(
            view=newest.view + 1 if newest else 1,
            roster=roster,
            parts=tuple(cut_parts(n, roster, grain=run.grain) for n in run.fragment_elements),
            first_round=tuple(map(self._next_first_round, range(self.members.fragments))),
        )

    def _next_first_round(self, fragment: int) -> int:
        """A round that somebody already contributed to goes on as it is, if it can."""
        plan, reports = self._open(fragment)
        committed = self.members.committed(fragment)
        if plan is None or reports is None or not reports.ready:
            return committed + 1
        return committed + 2 if self._alive(plan, reports) else committed + 1

    def _next_member(self) -> e.Entry | None:
        for peer, index in list(self.caught_up.items()):
            del self.caught_up[peer]
            cut = self.members.cuts.get(peer)
            if cut is not None and cut[0] == index and peer in self.members.joiners:
                return e.Member(cut[1].info)
        return None

    def _next_cut(self) -> e.Entry | None:
        for peer, join in list(self.joins.items()):
            versions = self._versions()
            donor = self._donor(peer, versions)
            if donor is None:
                return None  # Nobody reported the newest state yet; the next Have asks again.
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
        return tuple(Version(f, r, self.majority_digest(f, r)) for f, r in enumerate(rounds))

    def _donor(self, joiner: PeerId, versions: tuple[Version, ...]) -> PeerId | None:
        """A live member that holds exactly these versions, not the leader if there is another."""
        if not versions:
            return None
        candidates = set(self.members.members) - {joiner}
        for version in versions:
            reported: Mapping[PeerId, str] = self.have.get((version.fragment, version.round), {})
            candidates &= {p for p, digest in reported.items() if digest == version.state_digest}
        return min(candidates, key=lambda peer: (peer == self.me, peer), default=None)

    def _open(self, fragment: int) -> tuple[Plan | None, RoundReports | None]:
        plan = self.members.plan(fragment, self.members.committed(fragment) + 1)
        if plan is None:
            return None, None
        return plan, self.rounds.get(RoundKey(fragment, plan.stamp.group, plan.stamp.round))

    def _reports(self, stamp: Stamp) -> RoundReports | None:
        if stamp.fragment >= self.members.fragments:
            return None
        if stamp.round <= self.members.committed(stamp.fragment):
            return None  # Already decided.
        key = RoundKey(stamp.fragment, stamp.group, stamp.round)
        return self.rounds.setdefault(key, RoundReports())

    def _alive(self, plan: Plan, reports: RoundReports) -> set[PeerId]:
        """Who of the roster can still be counted: contributed, or is able to."""
        return set(plan.roster) & self.members.members.keys() & (self.able | reports.ready.keys())

    def _everybody_ready(self, plan: Plan, reports: RoundReports) -> bool:
        return set(plan.roster) <= reports.ready.keys()

    def _restart_clock(self, plan: Plan, reports: RoundReports, now: float) -> None:
        """A reduction's time runs from when its last contribution was ready, per attempt."""
        if not self._everybody_ready(plan, reports):
            return
        if reports.plan != plan.stamp:
            reports.plan, reports.plan_since = plan.stamp, now
            reports.waiting.clear()

    def _names(self, peers: set[PeerId]) -> str:
        infos = self.members.receivers
        names = (infos[p].name if p in infos else p.rpartition(".")[0] for p in sorted(peers))
        return ", ".join(names)
