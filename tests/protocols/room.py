"""Several cores in one room: messages arrive at once and in order, arithmetic is done at once.

For scenarios on whole rounds. A test may hold back what goes to a peer (`hold`), answer encodings
late, or look at every command that a core gave (`given`).
"""

from collections import deque
from collections.abc import Callable

from protocols import commands as c
from protocols import entries as e
from protocols import events as v
from protocols import messages as m
from protocols.config import ProtocolConfig
from protocols.core import PeerCore
from protocols.hellos import Identity
from protocols.ids import PeerId, digest_text

RULES = ProtocolConfig(round_grace_s=30.0, reduction_timeout_s=60.0)
PART = 1 << 18
"""Elements of the smallest part."""


class Room:
    """`room.peers["a"]` leads; the others join. `now` is set by the test."""

    def __init__(self, names: str, *, outer_steps: int = 10, parts: int = 3) -> None:
        self.now = 0.0
        self.ids = {name: PeerId(f"{name}.00000001") for name in names}
        self.peers: dict[str, PeerCore] = {}
        for name, peer in self.ids.items():
            me = Identity(peer=peer, name=name, incarnation=1, address=f"{name}:1")
            self.peers[name] = PeerCore(me, join=name != names[0])
        self.given: dict[str, list[c.Command]] = {name: [] for name in names}
        self.hold: Callable[[str, v.Event], bool] = lambda name, event: False
        self.held: list[tuple[str, v.Event]] = []
        self._queue: deque[tuple[str, v.Event]] = deque()
        first = names[0]
        run = e.Run(1, "{}", "", len(names), outer_steps, 1, (), (parts * PART,))
        self.feed(first, v.RunAccepted(RULES))
        self.feed(first, v.Bootstrap(run, None, (digest_text("0"),)))
        for name in names[1:]:
            self.meet(first, name)
        for name in names:
            self.feed(name, v.TrainersReady())

    def add(self, name: str) -> PeerId:
        """A new peer dials the first one, and its ranks attach."""
        self.ids[name] = PeerId(f"{name}.00000001")
        me = Identity(peer=self.ids[name], name=name, incarnation=1, address=f"{name}:1")
        self.peers[name] = PeerCore(me, join=True)
        self.given[name] = []
        self.meet(next(iter(self.peers)), name)
        self.feed(name, v.TrainersReady())
        return self.ids[name]

    def feed(self, name: str, event: v.Event) -> None:
        """Give an event, and deliver everything that follows from it."""
        self._queue.append((name, event))
        self._drain()

    def _drain(self) -> None:
        while self._queue:
            to, what = self._queue.popleft()
            if to not in self.peers:
                continue  # It is dead.
            if self.hold(to, what):
                self.held.append((to, what))
                continue
            for command in self.peers[to].handle(what, self.now):
                self.given[to].append(command)
                self._do(to, command)

    def release(self) -> None:
        """Deliver what was held back."""
        held, self.held = self.held, []
        self.hold = lambda name, event: False
        for name, event in held:
            self.feed(name, event)

    def meet(self, one: str, two: str) -> None:
        self.meet_later(one, two)
        self._drain()

    def part(self, one: str, two: str) -> None:
        self.feed(one, v.PeerDisconnected(self.ids[two], "end of stream"))
        self.feed(two, v.PeerDisconnected(self.ids[one], "end of stream"))

    def wait(self, seconds: float) -> None:
        """Time passes; everybody looks at the clock, and nobody falls silent."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            for name in self.peers:
                self.feed(name, v.DeadlineReached())

    def contribute(self, name: str, *, tokens: int = 100) -> None:
        self.feed(name, v.ContributionReady(0, tokens, 10))

    def all_contribute(self) -> None:
        for name in self.peers:
            self.contribute(name)

    def log(self, kind: type, *, of: str | None = None) -> list[e.Entry]:
        """The entries of one kind, as a peer has them (the first one's, if none is named)."""
        core = self.peers[of or next(iter(self.peers))]
        return [x.body for x in core.log.entries if isinstance(x.body, kind)]

    def last(self, name: str, kind: type) -> c.Command:
        return [x for x in self.given[name] if isinstance(x, kind)][-1]

    def _do(self, name: str, command: c.Command) -> None:
        me = self.ids[name]
        names = {peer: other for other, peer in self.ids.items()}
        answer: v.Event | None = None
        match command:
            case c.Send(peer=to, message=message):
                self._queue.append((names[to], v.MessageReceived(me, message)))
            case c.Connect(peer=to) if to:
                self.meet_later(name, names[to])
            case c.Disconnect(peer=to):
                self._queue.append((names[to], v.PeerDisconnected(me, "end of stream")))
            case c.SendSlice(peer=to, stamp=stamp, part=part, contributor=who):
                self._queue.append((names[to], v.SliceReceived(me, stamp, part, who)))
            case c.SendResult(peer=to, stamp=stamp, part=part):
                event = v.ResultReceived(me, stamp, part, command.contributors, command.digest)
                self._queue.append((names[to], event))
            case c.ServeState(peer=to, cut_index=index, versions=versions):
                for version in versions:
                    state = v.StateReceived(
                        me, index, version.fragment, version.round, version.state_digest
                    )
                    self._queue.append((names[to], state))
            case c.CheckRun():
                answer = v.RunAccepted(RULES)
            case c.Encode(fragment=fragment, round=round_):
                answer = v.Encoded(fragment, round_, digest_text(f"{name} {round_} {self.now}"))
            case c.ReducePart(stamp=stamp, part=part, contributors=terms):
                text = " ".join(f"{x.peer} {x.tokens} {x.manifest}" for x in terms)
                answer = v.PartReduced(stamp, part, digest_text(f"{part} {text}"))
            case c.ApplyRound(stamp=stamp):
                core = self.peers[name]
                commit = core.members.commit(stamp.fragment, stamp.round)
                assert commit is not None
                digest = digest_text(core.rounds[0].state_digest + commit.result_digest)
                answer = v.RoundApplied(stamp.fragment, stamp.round, digest)
            case _:
                pass
        if answer is not None:
            self._queue.append((name, answer))

    def meet_later(self, one: str, two: str) -> None:
        for name, other in ((one, two), (two, one)):
            core = self.peers[other]
            event = v.PeerConnected(self.ids[other], 1, core.me.address, core.leader_address())
            self._queue.append((name, event))


def is_message(event: v.Event, kind: type[m.Message]) -> bool:
    return isinstance(event, v.MessageReceived) and isinstance(event.message, kind)
