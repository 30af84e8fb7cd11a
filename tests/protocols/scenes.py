"""Peers, entries and cores for the tests of protocols/: what every scenario starts from.

A scene feeds one real core with events and hands out its commands; its disk is quick. Must NOT
judge anything.
"""

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from protocols.acts.statements import act_statement
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links.handshake import Identity
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.messages.persisted import Saved
from protocols.peer.core import PeerCore
from protocols.raft.log import Log
from protocols.state import transitions
from protocols.state.entry_validation import name_of_state
from protocols.state.run_state import RunState
from protocols.types.ids import (
    Contributor,
    FragmentParts,
    PeerId,
    PeerInfo,
    Stamp,
    Version,
    digest_text,
)
from protocols.types.rules import ProtocolConfig
from tests.protocols.carried import carried

A, B, C, D = (PeerId(f"{name}.0000000{i}") for i, name in enumerate("abcd"))
STRANGER = PeerId("mallory.6666666f")
ELEMENTS = 3 << 18
"""Three parts of 1 MiB."""
BORDERS = (0, 1 << 18, 2 << 18, 3 << 18)
RULES = ProtocolConfig(
    heartbeat_interval_s=1.0,
    election_timeout_s=3.0,
    silence_timeout_s=10.0,
    reconnect_grace_s=2.0,
    round_grace_s=20.0,
    reduction_timeout_s=40.0,
    transfer_timeout_s=60.0,
    check_owners=False,
)
START = digest_text("the initial state")

ABOUT_A_LINEAGE = (m.Join, m.CaughtUp, m.ReadyToTrain, m.NotReadyToTrain, m.WantSamples)

Command = TypeVar("Command", bound=c.Command)
Message = TypeVar("Message", bound=m.Control)


def identity(peer: PeerId, *, incarnation: int = 1) -> Identity:
    name = peer.split(".")[0]
    return Identity(peer=peer, name=name, incarnation=incarnation, address=f"{name}:1")


def info(peer: PeerId, slot: int = 0, *, incarnation: int = 1) -> PeerInfo:
    return identity(peer, incarnation=incarnation).info(slot)


def caught_up(peer: PeerId, index: int, *, incarnation: int = 1) -> m.CaughtUp:
    me = info(peer, incarnation=incarnation)
    return m.CaughtUp(index, me.name, me.incarnation, me.address)


def run(
    *, peers_min: int = 1, outer_steps: int = 9, fragments: int = 1, founder: PeerId = A
) -> e.Run:
    elements = (ELEMENTS,) * fragments
    return e.Run(1, "{}", "", peers_min, outer_steps, 1, b"", elements, founder)


def join(peer: PeerId, why: str = "new", *, incarnation: int = 1, against: str = "") -> m.Join:
    """The peer asks for a state."""
    me = identity(peer, incarnation=incarnation)
    return m.Join(me.name, incarnation, me.address, why, against)


def manifest(peer: PeerId, round_: int) -> str:
    return digest_text(f"{peer} {round_}")


def contributor(peer: PeerId, round_: int = 1, *, tokens: int = 100) -> Contributor:
    return Contributor(peer, tokens, 10, manifest(peer, round_))


def view(
    number: int, *roster: PeerId, first_round: int = 1, owners: Sequence[PeerId] = ()
) -> e.View:
    """Of one fragment, with three parts or as many as there are owners."""
    owners = owners or (roster * 3)[:3]
    parts = FragmentParts(tuple(owners), (*BORDERS[: len(owners)], ELEMENTS))
    return e.View(number, roster, (parts,), (first_round,))


def log_of(*bodies: e.Entry) -> Log:
    log = Log()
    for body in bodies:
        log.append(body, term=1)
    return log


def members_of(log: Log) -> RunState:
    """What the log says."""
    run_state = RunState(signatures=SEALS)
    for entry in log.entries:
        transitions.apply(run_state, entry)
    return run_state


def plain(message: Message) -> Message:
    """As it would be before the run is known."""
    return replace(message, lineage=0) if isinstance(message, ABOUT_A_LINEAGE) else message


def told_in(lineage: int, message: m.Control) -> m.Control:
    """As a peer in this lineage says it, if it names none."""
    unsaid = isinstance(message, ABOUT_A_LINEAGE) and not message.lineage
    return replace(message, lineage=lineage) if unsaid else message


class Seals:
    """Signatures of keys that are equal in both halves."""

    def sign(self, statement: bytes) -> bytes:
        return b""

    def verify(self, key_hex: str, statement: bytes, signature: bytes) -> bool:
        return signature == sealed(key_hex, statement)


SEALS = Seals()


def sealed(key_hex: str, statement: bytes) -> bytes:
    return hashlib.sha512(key_hex.encode() + statement).digest()


Order = TypeVar("Order", bound=e.SignedAct)


def ordered(entry: Order, key: str = "", *, of: str | None = None) -> Order:
    """The act with an operator's signature; `of`: the root key, if the operator has another key."""
    if of is not None:
        entry = replace(entry, key=key)
    return replace(entry, signature=sealed(key, act_statement(key if of is None else of, entry)))


def steered(
    what: str,
    subject: str = "",
    value: str = "",
    *,
    number: int = 1,
    lineage: int = 0,
    why: str = "",
    by: PeerId = A,
) -> e.Steered:
    """An act that a person asked for at `by`."""
    return e.Steered(what, subject, value, number, lineage, by, why)


class Scene:
    """A core that lives from event to event; time stands still unless a test moves it."""

    def __init__(
        self,
        me: PeerId,
        *,
        join: bool,
        incarnation: int = 1,
        saved: Saved | None = None,
        kept: m.Kept | None = None,
        hidden: bool = False,
    ) -> None:
        """`hidden`: nobody can dial us."""
        myself = identity(me, incarnation=incarnation)
        if hidden:
            myself = replace(myself, address="")
        self.core = PeerCore(myself, join=join, saved=saved, kept=kept, signatures=SEALS)
        self.now = 100.0
        self.said: list[c.Command] = []
        """In answer to the last event; what the disk was given is in it only if that is slow."""
        self.slow_disk = False

    def on(self, event: v.Event, *, after_s: float = 0.0) -> list[c.Command]:
        self.now += after_s
        self.said = self._give(event)
        for command in self.said:
            if isinstance(command, c.Send):
                carried(command.message)
        return self.said

    def hears(self, sender: PeerId, message: m.Control) -> list[c.Command]:
        """A report that names no lineage is of the present one."""
        if self.core.led_term is not None:
            message = told_in(self.core.led_term.head.lineage, message)
        return self.on(v.MessageReceived(sender, carried(message)))

    def meets(self, peer: PeerId, *, leader: str = "a:1", incarnation: int = 1) -> list[c.Command]:
        name = peer.split(".")[0]
        return self.on(v.PeerConnected(peer, incarnation, f"{name}:1", leader))

    def waits(self, seconds: float) -> list[c.Command]:
        """Nothing happens but the core's own deadlines, for so long. All that it said."""
        end, said = self.now + seconds, list[c.Command]()
        while self.core.deadline <= end and not self.core.stopped:
            self.now = max(self.now, self.core.deadline)
            said += self._give(v.DeadlineReached())
            assert self.core.stopped or self.core.deadline > self.now, "a busy loop"
        self.now, self.said = end, said
        return said

    def _give(self, event: v.Event) -> list[c.Command]:
        """Everything that it says, and then again when its disk has answered."""
        said, queue = list[c.Command](), deque([event])
        while queue:
            for command in self.core.handle(queue.popleft(), self.now):
                if isinstance(command, c.Persist) and not self.slow_disk:
                    queue.append(v.Persisted(command.write_number))
                else:
                    said.append(command)
        return said

    def all(self, kind: type[Command]) -> list[Command]:
        """Commands of a kind in the last answer."""
        return [command for command in self.said if isinstance(command, kind)]

    def one(self, kind: type[Command]) -> Command:
        (found,) = self.all(kind)
        return found

    def sent(self, kind: type[Message]) -> list[tuple[PeerId, Message]]:
        """Messages of a kind in the last answer, each with its receiver; of the lineage that a
        report names, nothing."""
        found = [(x.peer, x.message) for x in self.all(c.Send) if isinstance(x.message, kind)]
        return [(peer, plain(message)) for peer, message in found]

    def notes(self, kind: str) -> list[str]:
        return [note.text for note in self.all(c.Observation) if note.kind == kind]

    def stamp(self, round_: int, *, attempt: int = 0, number: int = 1) -> Stamp:
        run_state = self.core.run_state
        assert run_state.run is not None
        return Stamp(run_state.run.run, run_state.lineage, number, 0, round_, attempt)

    # As a member ----------------------------------------------------------------------------

    def encode(self, round_: int, *, tokens: int = 100) -> list[c.Command]:
        """Our ranks contribute, and the shell encodes it."""
        me = self.core.me.peer
        first = self.on(v.ContributionReady(0, tokens, 10))
        self.said = first + self.on(v.Encoded(0, round_, manifest(me, round_)))
        return self.said

    def slices(self, stamp: Stamp, *senders: PeerId, parts: Sequence[int]) -> list[c.Command]:
        """Slices of other contributions arrive. All that it said."""
        said: list[c.Command] = []
        for sender in senders:
            for part in parts:
                event = v.SliceReceived(sender, stamp, part, contributor(sender, stamp.round))
                said += self.on(event)
        self.said = said
        return said

    def result(self, stamp: Stamp, part: int, owner: PeerId, *terms: PeerId) -> list[c.Command]:
        """The owner's result of a part arrives."""
        made = tuple(contributor(peer, stamp.round) for peer in terms)
        return self.on(v.ResultReceived(owner, stamp, part, made, part_digest(part)))

    def reduced(self, stamp: Stamp, *parts: int) -> list[c.Command]:
        """The shell summed what we own. All that it said."""
        said: list[c.Command] = []
        for part in parts:
            said += self.on(v.PartReduced(stamp, part, part_digest(part)))
        self.said = said
        return said

    def applied(self, round_: int, state: str = "") -> list[c.Command]:
        stamp = self.core.rounds[0].applying
        assert stamp is not None
        assert stamp.round == round_
        return self.on(v.RoundApplied(stamp, state or state_digest(round_)))


def part_digest(part: int) -> str:
    return digest_text(f"part {part}")


def state_digest(round_: int) -> str:
    return digest_text(f"state {round_}") if round_ else START


class Follower(Scene):
    """A core that follows A, with A's log in hand."""

    def caught_up(self, index: int, *digests: str) -> m.CaughtUp:
        """The report that the state of an entry is here, with its roots or digests."""
        report = caught_up(self.core.me.peer, index, incarnation=self.core.me.incarnation)
        return replace(report, state=name_of_state(digests))

    def __init__(
        self,
        me: PeerId,
        *,
        incarnation: int = 1,
        saved: Saved | None = None,
        kept: m.Kept | None = None,
    ) -> None:
        super().__init__(me, join=True, incarnation=incarnation, saved=saved, kept=kept)
        self.log = Log()

    def reads(self, *bodies: e.Entry) -> list[c.Command]:
        """A appends these, and they are committed."""
        index, term = self.log.last_index, self.log.last_term
        entries = tuple(self.log.append(body, term=1) for body in bodies)
        return self.hears(A, m.Append(1, 1, index, term, entries, self.log.last_index))

    def beat(self) -> list[c.Command]:
        """A's heartbeat."""
        index, term = self.log.last_index, self.log.last_term
        return self.hears(A, m.Append(1, 1, index, term, (), index))

    def begins(self, *, fragments: int = 1, outer_steps: int = 9) -> None:
        """It meets A, reads Run and A's membership, and is accepted by its shell."""
        self.meets(A)
        begun = run(fragments=fragments, outer_steps=outer_steps)
        self.reads(begun, e.Member(info(A)), e.Elected(A))
        self.on(v.RunAccepted(RULES))

    def gets_cut(self, round_: int = 0, *, donor: PeerId = A, slot: int = 1) -> int:
        """A cut stands in the log; returns its index."""
        me, version = self.core.me, Version(0, round_, state_digest(round_))
        self.reads(e.Cut(me.info(slot), (donor,), (version,)))
        return self.log.last_index

    def gets_state(self, round_: int = 0, *, digest: str = "") -> list[c.Command]:
        index = self.core.run_state.cuts[self.core.me.peer][0]
        digest = digest or state_digest(round_)
        return self.on(v.StateReceived(index, 0, round_, digest))


def follower(me: PeerId, *others: PeerId, owners: Sequence[PeerId] = ()) -> Follower:
    """A member of a run led by A, in the roster of view 1 with A and the others, connected with
    all, its ranks training towards round 1."""
    scene = Follower(me)
    scene.begins()
    slot = 1
    for other in others:
        scene.reads(
            e.Cut(info(other, slot), (A,), (Version(0, 0, START),)), e.Member(info(other, slot))
        )
        scene.meets(other)
        slot += 1
    scene.gets_cut(slot=slot)
    scene.gets_state()
    scene.reads(e.Member(info(me, slot)))
    scene.on(v.TrainersReady())
    scene.reads(view(1, *sorted((A, me, *others)), owners=owners))
    return scene


def commit(
    scene: Scene, round_: int, *roster: PeerId, attempt: int = 0, state: str = ""
) -> e.Commit:
    """The Commit that the leader would write when all parts are as `part_digest` says."""
    run_state = scene.core.run_state
    plan = run_state.open_plan(0)
    assert plan is not None
    terms = tuple(contributor(peer, round_) for peer in sorted(roster))
    return e.Commit(
        view=plan.stamp.view,
        fragment=0,
        round=round_,
        attempt=attempt,
        contributors=terms,
        borders=plan.parts.borders,
        result_digest=result_digest(terms, len(plan.parts.owners)),
        previous_state_digest=state,
    )


def result_digest(terms: Sequence[Contributor], parts: int) -> str:
    """As every holder computes it."""
    lines = [f"{t.peer} {t.tokens} {t.steps} {t.manifest}" for t in terms]
    return digest_text("\n".join([*lines, *(part_digest(part) for part in range(parts))]))


DULL = (m.Heartbeat, m.Have, m.Appended, m.ReportsComplete)


def told(scene: Follower) -> list[m.Control]:
    """What A hears of it, in the last answer."""
    sends = [x for x in scene.all(c.Send) if x.peer == A and not isinstance(x.message, DULL)]
    return [plain(send.message) for send in sends]
