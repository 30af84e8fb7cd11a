"""One peer's part in the rounds of one fragment.

Level-triggered: every input only changes what is known, then `advance` does whatever can be done
now and was not done yet. So a message that comes early, twice or after a reconnect needs no case
of its own. Must NOT decide what is committed (leader.py) nor touch bytes.
"""

from dataclasses import dataclass, field
from typing import Literal

from protocols.commands import (
    ApplyRound,
    Command,
    DropSlices,
    Encode,
    ReducePart,
    ReleaseRound,
    Resume,
    Send,
    SendResult,
    SendSlice,
)
from protocols.entries import Commit
from protocols.ids import Contributor, PeerId, Stamp, digest_text
from protocols.membership import Membership, Plan
from protocols.messages import Fetch, Have, Hold, Ready, Waiting

KEEP_ROUNDS = 2
"""Results stay this many rounds after their commit, for whoever still lacks them."""
PARKED_ROUNDS = 2
"""Payloads are kept for this many rounds beyond the last commit; a faster peer needs one."""
STALENESS_ROUNDS_MAX = 4
"""Work that began more rounds ago is given up: its gradient belongs to another model."""
FETCH_RETRY_S = 1.0
FETCHES_MAX = 6
"""After asking this often for a result, ask for a transfer of the whole state."""


@dataclass(slots=True)
class Own:
    """The contribution that our ranks wait for a result of."""

    round: int
    tokens: int
    steps: int
    encoding: bool = False
    manifest: str = ""
    """Empty until it is encoded."""

    def contributor(self, me: PeerId) -> Contributor:
        return Contributor(me, self.tokens, self.steps, self.manifest)


@dataclass(frozen=True, slots=True)
class PartResult:
    """What an owner made of one part: the sum's terms, and the digest of its bytes."""

    contributors: tuple[Contributor, ...]
    digest: str


SliceKey = tuple[int, int, int]
"""(round, view, part), and not the attempt: a new attempt sums again from bytes already here."""


@dataclass(slots=True)
class FragmentRounds:
    """What this peer knows and did about one fragment (group 0)."""

    me: PeerId
    fragment: int
    members: Membership
    outer_steps: int
    version: int = -1
    """Last applied round; -1: no state yet."""
    state_digest: str = ""
    base: int = -1
    """The version that the ranks' parameters started from; -1: no ranks are training."""
    own: Own | None = None
    offered: int = 0
    """The last round that a contribution of ours went to."""
    applying: bool = False
    slices: dict[SliceKey, dict[PeerId, Contributor]] = field(
        default_factory=dict[SliceKey, dict[PeerId, Contributor]]
    )
    results: dict[Stamp, dict[int, PartResult]] = field(
        default_factory=dict[Stamp, dict[int, PartResult]]
    )
    done: dict[int, set[tuple[object, ...]]] = field(
        default_factory=dict[int, set[tuple[object, ...]]]
    )
    """By round: what was started or sent already; a key that ends in a peer is undone when the
    connection with that peer is new."""
    ready: dict[int, set[PeerId]] = field(default_factory=dict[int, set[PeerId]])
    """Peers known to have contributed, by round."""
    stall_after_s: float = 30.0
    """Tell the leader whom we wait for when a reduction takes this long."""
    stall: tuple[Stamp, float] | None = None
    """The attempt we take part in, and when it begins to be slow."""
    fetches: int = 0
    fetch_at: float = float("inf")

    # Inputs ---------------------------------------------------------------------------------

    def contribute(self, *, tokens: int, steps: int) -> list[Command]:
        """The ranks are at their boundary and wait."""
        assert self.own is None, "the ranks contributed twice without a result"
        if self.base < 0:
            return []  # Of ranks that are gone.
        # Ranks that crashed may have contributed to this round already: never twice to one.
        round_ = max(self._open_round(), self.offered + 1)
        self.own = Own(round=round_, tokens=tokens, steps=steps)
        if self.finished or self.version - self.base > STALENESS_ROUNDS_MAX:
            return self._resume("full")
        return []

    def encoded(self, round_: int, manifest: str) -> None:
        """Our contribution is bytes now, the same ones for every attempt."""
        if self.own is not None and self.own.round == round_:
            self.own.manifest = manifest

    def slice_received(self, stamp: Stamp, part: int, contributor: Contributor) -> bool:
        """True if the bytes are worth keeping."""
        if not self._is_open(stamp):
            return False  # Of a finished round: counting it would average two models.
        held = self.slices.setdefault((stamp.round, stamp.view, part), {})
        # A restarted peer's recomputed slice must not be mixed with its first one.
        return held.setdefault(contributor.peer, contributor) == contributor

    def result_received(self, stamp: Stamp, part: int, result: PartResult) -> bool:
        """True if the bytes are worth keeping."""
        if stamp.round <= self.version or not self._in_run(stamp):
            return False
        commit = self.members.commit(self.fragment, stamp.round)
        if commit is None and not self._is_open(stamp):
            return False
        if commit is not None and (commit.view, commit.attempt) != (stamp.view, stamp.attempt):
            return False  # Another attempt was committed.
        return self.results.setdefault(stamp, {}).setdefault(part, result) == result

    def part_reduced(self, stamp: Stamp, part: int, digest: str) -> None:
        """Our own sum is ready, if the plan is still the one it was made for."""
        plan = self.members.plan(self.fragment, stamp.round)
        if plan is None or plan.stamp != stamp:
            return
        held = self.slices[(stamp.round, stamp.view, part)]
        contributors = tuple(held[peer] for peer in sorted(plan.roster))
        self.results.setdefault(stamp, {})[part] = PartResult(contributors, digest)

    def peer_ready(self, stamp: Stamp, peer: PeerId) -> None:
        """Somebody contributed to a round."""
        if self._is_open(stamp):
            self.ready.setdefault(stamp.round, set()).add(peer)

    def applied(self, round_: int, digest: str) -> list[Command]:
        """The outer step is made: let the ranks go on if they wait for it."""
        self.applying = False
        self.version, self.state_digest = round_, digest
        self.fetches, self.fetch_at = 0, float("inf")
        self._prune()
        commands: list[Command] = [ReleaseRound(self.fragment, round_ - KEEP_ROUNDS)]
        if self.own is not None and (self.own.round <= round_ or self.finished):
            commands += self._resume("full" if self._counted(round_) else "delta")
        return commands

    def state_received(self, round_: int, digest: str) -> list[Command]:
        """A transfer replaced our state; ranks that wait are moved along with it."""
        skipped = range(self.version + 1, round_ + 1)
        self.applying = False
        self.version, self.state_digest = round_, digest
        self.fetches, self.fetch_at = 0, float("inf")
        self._prune()
        if self.own is None:
            return []
        # Work that a skipped round counted is in the new state already; other work stays local.
        return self._resume("full" if any(map(self._counted, skipped)) else "delta")

    def start(self, *, first: bool) -> list[Command]:
        """Give freshly attached ranks their first parameters."""
        self.own = None
        return self._resume("full", first=first)

    def trainers_lost(self) -> None:
        """What they had not contributed is gone; the outer state is not."""
        self.own, self.base = None, -1

    def forget(self, peer: PeerId) -> None:
        """The connection with this peer is new: what it needs is sent again."""
        for round_, keys in self.done.items():
            self.done[round_] = {key for key in keys if key[-1] != peer}

    # Questions ------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self.version >= self.outer_steps

    @property
    def others_wait(self) -> bool:
        """Somebody contributed to the open round, and we are in its roster."""
        round_ = self._open_round()
        plan = self.members.plan(self.fragment, round_)
        return bool(plan and self.me in plan.roster and self.ready.get(round_))

    @property
    def behind(self) -> bool:
        """The results we lack cannot be had any more: only a transfer helps."""
        if self.version < 0:
            return False
        committed = self.members.committed(self.fragment)
        gone = committed > self.version and not self.members.commit(self.fragment, self.version + 1)
        return gone or self.fetches > FETCHES_MAX

    @property
    def deadline(self) -> float:
        """When something happens here without any event."""
        return min(self.fetch_at, self.stall[1] if self.stall else float("inf"))

    def missing(self) -> tuple[PeerId, ...]:
        """Whom the open round waits for, as seen from here."""
        plan = self.members.plan(self.fragment, self._open_round())
        if plan is None:
            return ()
        lacking: set[PeerId] = set()
        for part in plan.owned_by(self.me):
            held = self.slices.get((plan.stamp.round, plan.stamp.view, part), {})
            lacking |= set(plan.roster) - held.keys()
        if not lacking:
            have = self.results.get(plan.stamp, {})
            lacking = {o for i, o in enumerate(plan.parts.owners) if i not in have}
        return tuple(sorted(lacking - {self.me}))

    # What can be done now -------------------------------------------------------------------

    def advance(
        self, now: float, connected: frozenset[PeerId], leader: PeerId | None
    ) -> list[Command]:
        """Everything that is possible and not done yet."""
        if self.version < 0:
            return []
        commands = self._apply(now, connected)
        plan = self.members.plan(self.fragment, self._open_round())
        if plan is not None and not self.finished:
            commands += self._offer(plan, connected)
            commands += self._reduce(plan)
            commands += self._share(plan, connected)
            commands += self._hold(plan, leader)
        commands += self._complain(plan, now, leader)
        if leader is not None and self._once(self.version, "have", leader):
            commands.append(Send(leader, Have(self.fragment, self.version, self.state_digest)))
        return commands

    def _offer(self, plan: Plan, connected: frozenset[PeerId]) -> list[Command]:
        """Encode our contribution once, and bring each slice to its owner."""
        own = self.own
        if own is None or own.round != plan.stamp.round or self.me not in plan.roster:
            return []
        if not own.manifest:
            if own.encoding:
                return []
            own.encoding = True
            return [Encode(self.fragment, own.round)]
        self.offered = own.round
        me = own.contributor(self.me)
        self.ready.setdefault(own.round, set()).add(self.me)
        everyone = (connected & self.members.receivers.keys()) | {self.me}
        commands: list[Command] = [
            Send(peer, Ready(plan.stamp, me))
            for peer in sorted(everyone)
            if self._once(own.round, "ready", plan.stamp, peer)
        ]
        view, borders = plan.stamp.view, plan.parts.borders
        for part, owner in enumerate(plan.parts.owners):
            start, stop = borders[part : part + 2]
            if owner == self.me:
                self.slices.setdefault((own.round, view, part), {})[self.me] = me
            elif owner in connected and self._once(own.round, "slice", view, part, owner):
                commands.append(SendSlice(owner, plan.stamp, part, start, stop, me))
        return commands

    def _reduce(self, plan: Plan) -> list[Command]:
        commands: list[Command] = []
        for part in plan.owned_by(self.me):
            held = self.slices.get((plan.stamp.round, plan.stamp.view, part), {})
            if not set(plan.roster) <= held.keys():
                continue
            if self._once(plan.stamp.round, "reduce", plan.stamp, part):
                # Always from the slices, never from a sum that a lost peer is in.
                contributors = tuple(held[peer] for peer in sorted(plan.roster))
                start, stop = plan.parts.borders[part : part + 2]
                commands.append(ReducePart(plan.stamp, part, start, stop, contributors))
        return commands

    def _share(self, plan: Plan, connected: frozenset[PeerId]) -> list[Command]:
        have = self.results.get(plan.stamp, {})
        receivers = sorted(connected & self.members.receivers.keys())
        return [
            SendResult(peer, plan.stamp, part, have[part].contributors, have[part].digest)
            for part in plan.owned_by(self.me)
            if part in have
            for peer in receivers
            if self._once(plan.stamp.round, "result", plan.stamp, part, peer)
        ]

    def _hold(self, plan: Plan, leader: PeerId | None) -> list[Command]:
        if leader is None or self.version != plan.stamp.round - 1:
            return []  # Holding means: could take the step, so no earlier round is missing.
        digest = self.result_digest(plan.stamp, len(plan.parts.owners))
        if digest and self._once(plan.stamp.round, "hold", plan.stamp, leader):
            return [Send(leader, Hold(plan.stamp, digest))]
        return []

    def _complain(self, plan: Plan | None, now: float, leader: PeerId | None) -> list[Command]:
        """Say whom we wait for, so that the leader leaves out the right one."""
        if plan is None or leader is None or self.offered != plan.stamp.round or self.finished:
            self.stall = None
            return []
        if self.stall is None or self.stall[0] != plan.stamp:
            self.stall = (plan.stamp, now + self.stall_after_s)
        if now < self.stall[1]:
            return []
        self.stall = (plan.stamp, float("inf"))
        return [Send(leader, Waiting(plan.stamp, self.missing()))]

    def _apply(self, now: float, connected: frozenset[PeerId]) -> list[Command]:
        commit = self.members.commit(self.fragment, self.version + 1)
        if commit is None or self.applying:
            self.fetch_at = float("inf")
            return []
        stamp = self._stamp_of(commit)
        if self.result_digest(stamp, len(commit.borders) - 1) != commit.result_digest:
            return self._fetch(now, commit, stamp, connected)
        self.applying = True
        for key in [key for key in self.slices if key[0] <= commit.round]:
            del self.slices[key]
        return [
            DropSlices(self.fragment, commit.round),
            ApplyRound(stamp, commit.borders, self._counted(commit.round)),
        ]

    def _fetch(
        self, now: float, commit: Commit, stamp: Stamp, connected: frozenset[PeerId]
    ) -> list[Command]:
        """The result is on its way; if it does not come, ask one holder after the other."""
        if self.fetch_at == float("inf"):
            self.fetch_at = now + FETCH_RETRY_S
        if now < self.fetch_at:
            return []
        self.fetch_at = now + FETCH_RETRY_S
        self.fetches += 1
        holders = sorted(connected & self.members.members.keys())
        if not holders:
            return []
        holder = holders[self.fetches % len(holders)]
        have = self.results.get(stamp, {})
        if len(have) == len(commit.borders) - 1:
            have.clear()  # Complete, and yet not what was committed: trust none of it.
        return [
            Send(holder, Fetch(stamp, part))
            for part in range(len(commit.borders) - 1)
            if part not in have
        ]

    def fetched(self, peer: PeerId, stamp: Stamp, part: int) -> list[Command]:
        """Serve a result that somebody lacks, if we still have it."""
        result = self.results.get(stamp, {}).get(part)
        if result is None:
            return []
        return [SendResult(peer, stamp, part, result.contributors, result.digest)]

    def result_digest(self, stamp: Stamp, parts: int) -> str:
        """One digest over all parts and what was summed in them; "" unless all are here."""
        have = self.results.get(stamp, {})
        if len(have) < parts or len({have[i].contributors for i in range(parts)}) != 1:
            return ""
        terms = [f"{c.peer} {c.tokens} {c.manifest}" for c in have[0].contributors]
        return digest_text("\n".join([*terms, *(have[i].digest for i in range(parts))]))

    def _resume(self, kind: Literal["full", "delta"], *, first: bool = False) -> list[Command]:
        self.own, self.base = None, self.version
        return [Resume(self.fragment, self.version, kind, first, self.finished)]

    def _counted(self, round_: int) -> bool:
        commit = self.members.commit(self.fragment, round_)
        if commit is None or self.own is None or not self.own.manifest:
            return False
        return self.own.contributor(self.me) in commit.contributors

    def _once(self, round_: int, *key: object) -> bool:
        keys = self.done.setdefault(round_, set())
        if key in keys:
            return False
        keys.add(key)
        return True

    def _prune(self) -> None:
        for stamp in [s for s in self.results if s.round <= self.version - KEEP_ROUNDS]:
            del self.results[stamp]
        for key in [k for k in self.slices if k[0] <= self.version]:
            del self.slices[key]
        for table in (self.ready, self.done):
            for round_ in [r for r in table if r < self.version]:
                del table[round_]

    def _open_round(self) -> int:
        return self.members.committed(self.fragment) + 1

    def _in_run(self, stamp: Stamp) -> bool:
        run = self.members.run
        return run is not None and stamp.run == run.run and stamp.lineage == self.members.lineage

    def _is_open(self, stamp: Stamp) -> bool:
        first = self._open_round()
        return self._in_run(stamp) and first <= stamp.round < first + PARKED_ROUNDS

    def _stamp_of(self, commit: Commit) -> Stamp:
        assert self.members.run is not None
        return Stamp(
            run=self.members.run.run,
            lineage=self.members.lineage,
            view=commit.view,
            fragment=commit.fragment,
            group=commit.group,
            round=commit.round,
            attempt=commit.attempt,
        )
