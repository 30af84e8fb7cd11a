"""Admission and revocation: a node gets a certificate if the log can still spend its token.

Any peer takes a request and passes it to the leader. The leader's shell makes the certificate, the
log spends the token, and only then the certificate is handed out. Each voter gets the authority's
key, so that any leader can admit nodes. Must NOT look at that key, nor check a token's seal or time
(peers/security/certificate_issuer.py).
"""

from dataclasses import dataclass, replace

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.leader.term import LeadershipTerm
from protocols.links.connections import Connections
from protocols.links.handshake import other_version
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.state.entry_validation import cannot_revoke, refusal
from protocols.state.run_state import RunState
from protocols.state.tokens import revocation, subject
from protocols.types.clock import NEVER
from protocols.types.ids import PROTOCOL_VERSION, PeerId
from protocols.wire.codec import one_line

ANSWER_S = 10.0
"""Seconds for an answer of the leader and the log; an election fits in."""
KEY_RETRY_S = 2.0
"""Seconds until a voter without the key asks again."""
ASKING_MAX = 256
"""Open requests, here and at the leader: unauthenticated nodes cost bounded memory."""
NOT_NOW = "no peer that leads the run can be reached"
ABOUT_CERTIFICATES = (m.HandOn, m.Decided, m.AskKey, m.AuthorityKey, m.Revoke, m.NotRevoked)
"""Messages that `heard` handles."""

Asker = tuple[PeerId, int]
"""(the peer that was asked, its number of the request)."""


@dataclass(frozen=True, slots=True)
class PendingCertificate:
    """A certificate that waits for the log."""

    entry: e.TokenSpent
    certificate: bytes
    until: float
    earlier: PeerId
    """The earlier peer that showed its certificate in place of a token; "" if it was a token."""


class Certificates:
    """Admissions and revocations of one peer. In a run that is not encrypted there are no
    requests."""

    def __init__(self, me: PeerId, run_state: RunState, links: Connections) -> None:
        self.secure = self.has_key = False
        self._me = me
        self._run_state = run_state
        self._links = links
        self._handed_on: dict[int, float] = {}
        """By number of a request that was made here, until when it waits for the leader."""
        self._made: dict[Asker, PendingCertificate] = {}
        self.refused: dict[str, str] = {}
        """By subject, why the leader refused a revocation that a person asked for here."""
        self.revoking: dict[str, m.Revoke] = {}
        """By subject, revocations that are not in the log yet: asked for here, or at any peer while
        this one leads."""
        self._asked_of: PeerId | None = None
        """The leader that got the revocations last: no other peer may refuse them."""
        self._revokes_at = 0.0
        """When the revocations are sent to the leader again."""
        self._asks_at = 0.0
        """When to ask for the key again, if it is needed."""
        self._asked = 0

    @property
    def deadline(self) -> float:
        waits = (made.until for made in self._made.values())
        asks_at = self._asks_at if self._lacks_key else NEVER
        revokes_at = self._revokes_at if self.revoking else NEVER
        return min(asks_at, revokes_at, *waits, *self._handed_on.values(), NEVER)

    @property
    def _lacks_key(self) -> bool:
        return self.secure and not self.has_key and self._me in self._run_state.voters

    # Events ---------------------------------------------------------------------------------

    def take(
        self,
        event: v.GateEvent,
        leader: PeerId | None,
        now: float,
    ) -> list[c.Command]:
        """Handle an event. `leader`: the followed leader, or this peer itself."""
        match event:
            case v.Secured(has_key=has_key):
                self.secure, self.has_key = True, has_key
                return []
            case v.AdmitAsked(number=number, admit=admit):
                if admit.protocol != PROTOCOL_VERSION:
                    why = other_version(admit.peer, admit.protocol)
                    return [c.Answer(number, b"", why, final=True)]
                if leader == self._me:
                    return [c.Sign(self._me, number, admit)]
                if leader not in self._links.up or len(self._handed_on) >= ASKING_MAX:
                    return [c.Answer(number, b"", NOT_NOW, final=False)]
                assert leader is not None, "a connected leader is a peer"
                self._handed_on[number] = now + ANSWER_S
                return [c.Send(leader, m.HandOn(number, admit))]
            case v.Signed(asker=asker, number=number):
                if len(self._made) >= ASKING_MAX:
                    return [self._answer((asker, number), why="too many nodes ask at once")]
                made = PendingCertificate(
                    event.entry, event.certificate, now + ANSWER_S, event.earlier
                )
                self._made[asker, number] = made
                return []
            case v.NotSigned(asker=asker, number=number, why=why, final=final):
                return [self._answer((asker, number), why=why, final=final)]
            case v.RevokeAsked(entry=entry, force=force):
                return self._revoke(m.Revoke(entry, force))
            case v.Barred(peer=peer, why=why):
                return self._links.barred_by(peer, why)

    def heard(
        self,
        peer: PeerId,
        message: m.HandOn | m.Decided | m.AskKey | m.AuthorityKey | m.Revoke | m.NotRevoked,
        *,
        leads: bool,
    ) -> list[c.Command]:
        if not self.secure:
            return []  # No request of this number is open.
        match message:
            case m.HandOn(number=number, admit=admit):
                # Only a member may ask for others.
                if leads and peer in self._run_state.readers:
                    return [c.Sign(peer, number, admit)]
                return [self._answer((peer, number), why=NOT_NOW)]
            case m.Decided(number=number):
                if self._handed_on.pop(number, None) is None:
                    return []  # It came too late: the node was told to try again.
                return [c.Answer(number, message.certificate, message.why, message.final)]
            case m.AskKey():
                # A peer without a vote admits no node.
                allowed = self.has_key and peer in self._run_state.voters
                return [c.GiveKey(peer)] if allowed else []
            case m.Revoke(entry=entry):
                # Only a member may ask; and a former leader does not pass it on.
                known = leads and peer in self._run_state.readers
                asked = replace(message, entry=replace(entry, by=peer))
                return self._revoke(asked) if known else []
            case m.NotRevoked(subject=name, why=why):
                asked = self.revoking.get(name) if peer == self._asked_of else None
                return self._refuse(asked, why) if asked is not None else []
            case m.AuthorityKey(key=key):
                return [c.TakeKey(key)] if self._lacks_key else []

    def advance(
        self, led_term: LeadershipTerm | None, leader: PeerId | None, now: float
    ) -> list[c.Command]:
        """Answer open requests. `led_term`: the leader's state, None unless this peer leads."""
        commands = [self._decided(asker, led_term, now) for asker in list(self._made)]
        commands += self._revocations(led_term, leader, now)
        for number in [n for n, until in self._handed_on.items() if now >= until]:
            del self._handed_on[number]
            commands.append(c.Answer(number, b"", NOT_NOW, final=False))
        if self._lacks_key and now >= self._asks_at:
            self._asks_at = now + KEY_RETRY_S
            commands += [c.Send(peer, m.AskKey()) for peer in self._next_asked()]
        return [command for command in commands if command is not None]

    def _next_asked(self) -> list[PeerId]:
        """The peers to ask for the key next: one voter at a time, and from the second time on all
        members without a vote too. A peer that lost its vote keeps the key, and may be the only one
        that has it."""
        up, run_state = self._links.up, self._run_state
        voters = sorted(up.intersection(run_state.voters))
        self._asked += 1
        asked = [voters[self._asked % len(voters)]] if voters else []
        if self._asked > 1:
            asked += sorted(up.intersection(run_state.readers).difference(voters))
        return asked

    # Revocations ----------------------------------------------------------------------------

    def _revoke(self, asked: m.Revoke) -> list[c.Command]:
        name = subject(asked.entry)
        self.refused.pop(name, None)
        known = self.revoking.get(name)
        new = len(self.revoking) < ASKING_MAX if known is None else asked.force > known.force
        if new:
            self.revoking[name] = asked
            self._revokes_at = 0.0
        return []

    def _refuse(self, asked: m.Revoke, why: str) -> list[c.Command]:
        """Drop a revocation, and tell the peer that asked for it why."""
        name, by = subject(asked.entry), asked.entry.by
        del self.revoking[name]
        if by != self._me:
            return [c.Send(by, m.NotRevoked(name, why))] if by in self._links.up else []
        if len(self.refused) < ASKING_MAX:
            self.refused[name] = why
        return []

    def _revocations(
        self, led_term: LeadershipTerm | None, leader: PeerId | None, now: float
    ) -> list[c.Command]:
        """Send open revocations to the leader until the log has them, cannot, or the leader
        refuses."""
        for name, asked in list(self.revoking.items()):
            if cannot_revoke(self._run_state, asked.entry):
                del self.revoking[name]
        refused: list[tuple[m.Revoke, str]] = []
        if led_term is not None:
            vote_changes = led_term.leader.vote_changes
            refused = vote_changes.take(self.revoking, now, has_key=self.has_key)
        commands = [x for asked, why in refused for x in self._refuse(asked, one_line(why))]
        hears = leader if leader in self._links.up else None
        if now >= self._revokes_at or hears != self._asked_of:
            self._asked_of, self._revokes_at = hears, now + KEY_RETRY_S
            asks = self.revoking.values() if hears is not None else ()
            commands += [c.Send(hears or self._me, asked) for asked in asks]
        return commands

    # One request ----------------------------------------------------------------------------

    def _decided(
        self, asker: Asker, led_term: LeadershipTerm | None, now: float
    ) -> c.Command | None:
        """The answer to a request; None until the log has its entry, which is handed to the
        leader."""
        made, why, final = self._made[asker], "", False
        revoked, spent = self._run_state.revoked, self._run_state.spendings
        if spent.has(made.entry):
            del self._made[asker]
            return self._answer(asker, certificate=made.certificate)
        if made.earlier in revoked:
            why, final = revocation(revoked[made.earlier]), True
        elif led_term is None or now >= made.until:
            why = NOT_NOW
        elif not led_term.has_spent(made.entry):
            why = refusal(led_term.head, made.entry)
            final = bool(why)
        if why:
            del self._made[asker]
            return self._answer(asker, why=why, final=final)
        assert led_term is not None, "without one there was a reason"
        led_term.spend(made.entry)
        return None

    def _answer(
        self, asker: Asker, *, certificate: bytes = b"", why: str = "", final: bool = False
    ) -> c.Command:
        peer, number = asker
        if peer == self._me:
            return c.Answer(number, certificate, why, final)
        return c.Send(peer, m.Decided(number, certificate, why, final))
