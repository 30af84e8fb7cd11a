"""One peer's FragmentRounds and the log that it reads, for the tests of rounds.

Must NOT judge anything.
"""

from dataclasses import replace

from protocols.interface import commands as c
from protocols.interface.events import ContributionReady, ResultReceived, SliceBegun, SliceReceived
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.raft.log import Log
from protocols.rounds.contributions import PartResult
from protocols.rounds.fencing import Fence
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.state import transitions
from protocols.state.parts import replace_owners, undivided
from protocols.state.run_state import RunState
from protocols.types.ids import PeerId, Stamp, Version
from tests.protocols.scenes import (
    ELEMENTS,
    START,
    A,
    B,
    C,
    contributor,
    info,
    manifest,
    part_digest,
    result_digest,
    run,
    state_digest,
    view,
)


class Peer:
    """B, which owns part 1 of 3 in view 1; A leads and owns part 0, C owns part 2."""

    def __init__(self, *, outer_steps: int = 99, gossip: bool = False) -> None:
        """`gossip`: in place of the three parts there is one, which each sums for itself."""
        self.log, self.run_state = Log(), RunState()
        self.up = frozenset((A, C))
        self.now = 0.0
        self.reads(replace(run(outer_steps=outer_steps), gossip=gossip), e.Member(info(A)))
        self.rounds = FragmentRounds(B, Fence(self.run_state, 0), outer_steps)
        for slot, peer in enumerate((B, C), 1):
            version = Version(0, 0, START)
            self.reads(e.Cut(info(peer, slot), (A,), (version,)), e.Member(info(peer, slot)))
        begun = view(1, A, B, C)
        self.reads(replace(begun, parts=(undivided(ELEMENTS),)) if gossip else begun)
        self.rounds.version, self.rounds.state_digest = 0, START

    def reads(self, *bodies: e.Entry) -> None:
        for body in bodies:
            transitions.apply(self.run_state, self.log.append(body, term=1))

    def stamp(self, round_: int = 1, *, attempt: int = 0, number: int = 1) -> Stamp:
        return Stamp(1, self.run_state.lineage, number, 0, round_, attempt)

    def does(self) -> list[c.Command]:
        """Everything possible now."""
        leader = A if A in self.up else None
        return self.rounds.advance(self.now, self.up, leader)

    def trains(self) -> None:
        self.rounds.work.start_ranks(self.rounds.version, first=False)
        self.does()

    def made(self, tokens: int, steps: int, now: float | None = None) -> list[c.Command]:
        """The ranks contribute. The commands of that alone."""
        made, at = ContributionReady(0, tokens, steps), self.now if now is None else now
        return self.rounds.work.contribute(made, self.rounds.version, at)

    def receives(self, event: SliceBegun | SliceReceived | ResultReceived) -> bool:
        """A payload arrives. True if it is kept."""
        return self.rounds.exchange.received(event, self.rounds.version)

    def contributes(self, round_: int = 1) -> list[c.Command]:
        """The ranks contribute, and it is encoded. Commands after that."""
        made = self.made(100, 10)
        made += self.does()
        self.rounds.work.encoded(round_, manifest(B, round_))
        return made + self.does()

    def gets_slices(
        self, *senders: PeerId, round_: int = 1, part: int = 1, attempt: int = 0
    ) -> bool:
        stamp = self.stamp(round_, attempt=attempt)
        slices = [SliceReceived(s, stamp, part, contributor(s, round_)) for s in senders]
        return all(list(map(self.receives, slices)))

    def slice_begins(self, sender: PeerId, *, made_in: int = 1) -> bool:
        return self.receives(SliceBegun(sender, self.stamp(), 1, contributor(sender, made_in)))

    def gets_result(
        self, owner: PeerId, part: int, *terms: PeerId, stamp: Stamp | None = None
    ) -> bool:
        stamp = stamp or self.stamp()
        made = tuple(contributor(peer, stamp.round) for peer in terms)
        return self.receives(ResultReceived(owner, stamp, part, made, part_digest(part)))

    def gets_results(
        self, *terms: PeerId, round_: int = 1, attempt: int = 0, number: int = 1
    ) -> None:
        """All three parts: ours is summed here."""
        stamp = self.stamp(round_, attempt=attempt, number=number)
        plan = self.run_state.plan(0, round_)
        assert plan is not None
        for part, owner in enumerate(plan.parts.owners):
            made = tuple(contributor(peer, round_) for peer in terms)
            if owner == B:
                self.rounds.exchange.held.add_result(
                    stamp, part, PartResult(made, part_digest(part))
                )
            else:
                assert self.gets_result(owner, part, *terms, stamp=stamp)

    def leaves(self, *roster: PeerId) -> None:
        """Another attempt, in which only these take part."""
        plan = self.run_state.open_plan(0)
        assert plan is not None
        stamp, owners = plan.stamp, replace_owners(plan.parts, roster)
        attempt = stamp.attempt + 1
        self.reads(e.Attempt(stamp.view, 0, stamp.round, attempt, roster, owners, "fewer"))

    def commits(self, *roster: PeerId, state: str = "", held_by_all: bool = False) -> e.Commit:
        plan = self.run_state.open_plan(0)
        assert plan is not None
        stamp = plan.stamp
        terms = tuple(contributor(peer, stamp.round) for peer in roster)
        borders = plan.parts.borders
        digest = result_digest(terms, len(borders) - 1)
        body = e.Commit(stamp.view, 0, stamp.round, stamp.attempt, terms, borders, digest, state)
        body = replace(body, held_by_all=held_by_all)
        self.reads(body)
        return body

    def goes_through(self, *roster: PeerId) -> list[c.Command]:
        """A whole round without our doing. All that it does."""
        plan = self.run_state.open_plan(0)
        assert plan is not None
        round_ = plan.stamp.round
        if plan.roster != roster:
            self.leaves(*roster)
        self.gets_results(*roster, round_=round_, attempt=int(plan.roster != roster))
        made = self.does()
        self.commits(*roster)
        made += self.does()
        made += self.rounds.applied(round_, state_digest(round_))
        return made + self.does()


def only(kind: type[c.Command], commands: list[c.Command]) -> list[c.Command]:
    return [command for command in commands if isinstance(command, kind)]


def sent(kind: type[m.Control], commands: list[c.Command]) -> list[tuple[PeerId, m.Control]]:
    return [
        (command.peer, command.message)
        for command in commands
        if isinstance(command, c.Send) and isinstance(command.message, kind)
    ]


def training() -> Peer:
    peer = Peer()
    peer.trains()
    return peer
