"""A room of peers that have certificates, and refuse a revoked one as shells do.

`revoke` asks at one peer, as a person does. Must NOT judge anything, but `checked` looks at the one
rule that every log has to keep.
"""

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links.handshake import refusal
from protocols.messages import log_entries as e
from protocols.messages.peer import Hello
from protocols.raft.log import Voters, voters_after
from protocols.types.ids import PROTOCOL_VERSION, PeerId
from protocols.types.rules import ProtocolConfig
from tests.protocols.room import RULES, Room


class SecureRoom(Room):
    """All of them are admitted."""

    def __init__(self, names: str, *, rules: ProtocolConfig = RULES, outer_steps: int = 30) -> None:
        super().__init__(names, rules=rules, outer_steps=outer_steps)
        for name in names:
            self.feed(name, v.Secured())

    def add(self, name: str, *, witness: bool = False) -> PeerId:
        peer = super().add(name, witness=witness)
        self.feed(name, v.Secured())
        return peer

    def returns(self, name: str, *, incarnation: int = 2) -> None:
        """A dead one is started again, with what its disk has."""
        self.restart(name, incarnation=incarnation)
        self.feed(name, v.Secured())

    def revoke(self, at: str, *names: str, force: bool = False) -> None:
        """Several are asked for before anything is answered."""
        events = [v.ActAsked(e.Revoked(self.ids[name], self.ids[at], ""), force) for name in names]
        self.together(*((at, event) for event in events))

    def release_newest(self) -> None:
        """Of what was held back only the newest of each sender arrives: it says all."""
        held, self.held = self.held, []
        self.hold = lambda name, event: False
        newest = {
            (to, event.peer): event for to, event in held if isinstance(event, v.MessageReceived)
        }
        self.together(*((to, event) for (to, _), event in newest.items()))

    def together(self, *events: tuple[str, v.Event]) -> None:
        """All these are given before anything that follows from one of them arrives."""
        self._queue.extend(events)
        self._drain()

    def sender(self, event: v.Event) -> str:
        """The name of the one whose message this is."""
        return self.name_of(event.peer) if isinstance(event, v.MessageReceived) else ""

    def voters(self, name: str) -> str:
        """By name, as this one's whole log has them."""
        return "".join(sorted(self.name_of(p) for p in self.peers[name].raft.log.voters))

    def refused(self, name: str, about: str) -> str:
        """What the one that was asked there tells a person."""
        return self.peers[name].certificates.refused.get(self.ids[about], "")

    def outcome(self, name: str) -> str:
        return next((x.outcome for x in self.given[name] if isinstance(x, c.Stop)), "")

    def checked(self, name: str) -> list[str]:
        """Names of the revoked, in the order of this one's log; none of them voted then."""
        voters: Voters = ()
        revoked: list[str] = []
        for body in self.bodies(name):
            voters = voters_after(voters, body)
            if isinstance(body, e.Revoked):
                assert body.peer not in voters, f"{body.peer} is revoked and still votes"
                revoked.append(self.name_of(body.peer))
        gone = {self.ids[name] for name in revoked}
        assert not gone & set(voters)
        assert not gone & self.peers[name].run_state.readers.keys()
        return revoked

    def _do(self, name: str, command: c.Command) -> None:
        """What is under way on a connection is lost with it."""
        if isinstance(command, c.Disconnect):
            me, other = self.ids[name], self.name_of(command.peer)
            lost = {(name, command.peer), (other, me)}
            queued = list(self._queue)
            self._queue.clear()
            self._queue.extend(
                (to, event)
                for to, event in queued
                if not (isinstance(event, v.MessageReceived) and (to, event.peer) in lost)
            )
        super()._do(name, command)

    def _meet_later(self, one: str, two: str) -> None:
        for asks, other in ((one, two), (two, one)):
            me, core = self.peers[asks].me, self.peers[other]
            run_state, life = core.run_state, core.links.life(me.peer, 0)
            hello = Hello(PROTOCOL_VERSION, 0, me.peer, me.name, me.incarnation, me.address, "")
            why = refusal(hello, me=core.me, run=0, run_state=run_state, life=life)
            if why and me.peer in run_state.spendings.revoked:
                self.down.discard(frozenset((one, two)))
                self._queue.append((asks, v.Barred(core.me.peer, why)))
                return
        super()._meet_later(one, two)
