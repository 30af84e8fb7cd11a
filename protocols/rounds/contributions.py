"""The payloads that one peer holds of the rounds of one fragment: its contribution, slices,
results.

These are names and digests; the shell has the bytes. Must NOT decide which rounds are open
(fragment_rounds.py) nor what is committed (leader/decisions.py).
"""

from dataclasses import dataclass, field

from protocols.interface.events import (
    ContributionReady,
    PartReduced,
    ResultReceived,
    SliceBegun,
    SliceReceived,
)
from protocols.state.round_plan import RoundPlan
from protocols.types.errors import RemoteProtocolError
from protocols.types.frozen import record
from protocols.types.ids import Contributor, PeerId, Stamp, digest_text
from protocols.types.limits import CONTRIBUTION_STEPS_MAX, CONTRIBUTION_TOKENS_MAX
from protocols.types.sample_ranges import Samples


@dataclass(slots=True)
class OwnContribution:
    """A contribution of this peer's ranks."""

    round: int
    tokens: int
    steps: int
    since: float
    """When the ranks handed it over."""
    manifest: str = ""
    """Its name; empty until it is encoded."""
    samples: Samples = ()
    """Samples of its inner steps."""
    line: int = 0
    """Bytes a second of this peer's line (see ContributionReady)."""

    @classmethod
    def from_event(
        cls, made: ContributionReady, round_: int, samples: Samples, now: float
    ) -> "OwnContribution":
        """`samples`: those of its steps and of earlier work that no round has counted."""
        return cls(round_, made.tokens, made.steps, now, samples=samples, line=made.line)

    def contributor(self, me: PeerId) -> Contributor:
        return Contributor(me, self.tokens, self.steps, self.manifest)


OURS = PeerId("")
"""The sender of results that this peer made itself."""


@record
class PartResult:
    """The result of one part: its contributors, and the digest of its bytes."""

    contributors: tuple[Contributor, ...]
    digest: str
    sender: PeerId = OURS
    """The peer that sent it."""

    @classmethod
    def from_event(cls, event: ResultReceived) -> "PartResult":
        return cls(event.contributors, event.digest, event.sender)


def check_contributor(contributor: Contributor, sender: PeerId) -> None:
    """Raises RemoteProtocolError unless the contributor is the sender, with a name and counts
    within the limits."""
    if contributor.peer != sender:
        raise RemoteProtocolError(sender, "names another peer's contribution as its own")
    if contributor.tokens < 1 or not contributor.manifest:
        raise RemoteProtocolError(sender, "names an empty contribution")
    steps, tokens = contributor.steps, contributor.tokens
    if tokens > CONTRIBUTION_TOKENS_MAX or steps > CONTRIBUTION_STEPS_MAX:
        raise RemoteProtocolError(sender, f"names {tokens} tokens of {steps} steps, too many")


SliceKey = tuple[int, int, int]
"""(round, view, part) without the attempt: a new attempt uses the slices that are here already."""


@dataclass(slots=True)
class Holdings:
    """Payloads of other peers, and this peer's own sums, by round."""

    gossip: bool = False
    """In a gossip run each pair has a result of its own."""
    slices: dict[SliceKey, dict[PeerId, Contributor]] = field(
        default_factory=dict[SliceKey, dict[PeerId, Contributor]]
    )
    begun: dict[SliceKey, dict[PeerId, Contributor]] = field(
        default_factory=dict[SliceKey, dict[PeerId, Contributor]]
    )
    """Slices of which some pieces are here. If the connection ends, the others come by the next
    one, or another attempt excludes the sender."""
    sums: dict[tuple[Stamp, int], tuple[Contributor, ...]] = field(
        default_factory=dict[tuple[Stamp, int], tuple[Contributor, ...]]
    )
    """Contributors of our own sums, begun or done, by (attempt, part)."""
    void: dict[Stamp, frozenset[PeerId]] = field(default_factory=dict[Stamp, frozenset[PeerId]])
    """By attempt, peers with slices in our parts that cannot be averaged."""
    results: dict[Stamp, dict[int, PartResult]] = field(
        default_factory=dict[Stamp, dict[int, PartResult]]
    )
    usurped: Stamp | None = None
    """The last attempt of which we held a result that its sender does not own; the owner's result
    was refused meanwhile."""

    def add_begun(self, stamp: Stamp, part: int, contributor: Contributor) -> bool:
        """A slice has begun to arrive. False if another contribution of the same peer is here or
        arriving."""
        key, peer = (stamp.round, stamp.view, part), contributor.peer
        if self.slices.get(key, {}).get(peer, contributor) != contributor:
            return False
        return self.begun.setdefault(key, {}).setdefault(peer, contributor) == contributor

    def add_slice(self, stamp: Stamp, part: int, contributor: Contributor) -> bool:
        """A slice has arrived. False if another contribution of the same peer is here: the first
        one stays. Slices of a restarted peer must not be mixed with those that its earlier
        incarnation sent."""
        held = self.slices.setdefault((stamp.round, stamp.view, part), {})
        return held.setdefault(contributor.peer, contributor) == contributor

    def add_result(self, stamp: Stamp, part: int, result: PartResult) -> bool:
        """A result has arrived. False if another result of this part is here: the first one
        stays."""
        return self.results.setdefault(stamp, {}).setdefault(part, result) == result

    def wakes(
        self, event: SliceBegun | SliceReceived | ResultReceived, plan: RoundPlan | None, me: PeerId
    ) -> bool:
        """Can the core act on these bytes, which were just added? `plan`: the open one."""
        stamp, part = event.stamp, event.part
        if plan is None or plan.stamp != stamp:
            return True  # It is of a committed round, or of another attempt.
        if not isinstance(event, ResultReceived):
            return (stamp, part) not in self.sums and bool(self.terms(plan, part, me))
        whole = not self.missing_parts(stamp, plan.num_parts)
        return whole or event.sender != plan.owner_of(part)

    def drop_usurped(self, plan: RoundPlan) -> list[int]:
        """Drop results that came from peers that do not own the parts, before the log told us the
        owners. Returns the parts."""
        held = self.results.get(plan.stamp, {})
        wrong = [x for x in held if held[x].sender not in (OURS, plan.owner_of(x))]
        for part in wrong:
            del held[part]
        if wrong:
            self.usurped = plan.stamp
        return wrong

    def reduced(self, event: PartReduced) -> None:
        """Our own sum of a part is ready, or impossible with some of the contributions."""
        stamp, part = event.stamp, event.part
        if event.void:
            self.void[stamp] = self.void.get(stamp, frozenset()) | set(event.void)
        else:
            self.add_result(stamp, part, PartResult(self.sums[stamp, part], event.digest))

    def terms(self, plan: RoundPlan, part: int, me: PeerId) -> tuple[Contributor, ...]:
        """The contributors of our sum of a part, in order; () unless all of their slices are here
        or arriving."""
        key = (plan.stamp.round, plan.stamp.view, part)
        held = self.begun.get(key, {}) | self.slices.get(key, {})
        peers = plan.summed_by(me)
        if not set(peers) <= held.keys():
            return ()
        return tuple(held[peer] for peer in peers)

    def absent(self, plan: RoundPlan, part: int, me: PeerId) -> set[PeerId]:
        """The peers with missing slices for our sum of a part."""
        held = self.slices.get((plan.stamp.round, plan.stamp.view, part), {})
        return set(plan.summed_by(me)) - held.keys()

    def awaited(self, plan: RoundPlan, me: PeerId) -> tuple[PeerId, ...]:
        """The peers with missing slices for our sums; if there are none, those with missing
        results."""
        absent = set[PeerId]().union(*(self.absent(plan, x, me) for x in plan.owned_by(me)))
        if not absent and not plan.pairs:
            owners = plan.parts.owners
            absent = {owners[i] for i in self.missing_parts(plan.stamp, len(owners))}
        return tuple(sorted(absent - {me}))

    def result(self, stamp: Stamp, part: int) -> PartResult | None:
        return self.results.get(stamp, {}).get(part)

    def missing_parts(self, stamp: Stamp, parts: int) -> list[int]:
        have = self.results.get(stamp, {})
        return [part for part in range(parts) if part not in have]

    def digest(self, stamp: Stamp, parts: int) -> str:
        """The digest over all parts and their contributors; "" unless all parts are here with equal
        contributors. In a gossip run it only names the attempt."""
        if self.missing_parts(stamp, parts):
            return ""
        if self.gossip:
            return digest_text(repr(stamp))
        have = self.results[stamp]
        if any(have[part].contributors != have[0].contributors for part in range(parts)):
            return ""
        terms = [f"{x.peer} {x.tokens} {x.steps} {x.manifest}" for x in have[0].contributors]
        return digest_text("\n".join([*terms, *(have[part].digest for part in range(parts))]))

    def drop_slices(self, round_: int) -> None:
        """Drop the slices of this round and all earlier ones."""
        for slices in (self.slices, self.begun):
            for key in [key for key in slices if key[0] <= round_]:
                del slices[key]
        for stamp in [stamp for stamp in self.void if stamp.round <= round_]:
            del self.void[stamp]

    def drop_results(self, round_: int) -> bool:
        """Drop the results of this round and all earlier ones; True if there were any."""
        found = [stamp for stamp in self.results if stamp.round <= round_]
        for stamp in found:
            del self.results[stamp]
        for stamp, part in [key for key in self.sums if key[0].round <= round_]:
            del self.sums[stamp, part]
        return bool(found)
