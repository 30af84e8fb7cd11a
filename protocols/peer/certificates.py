"""Admission, revocation and tokens: a node is admitted if the log can still spend its token.

Any peer takes a request and passes it to the leader. The leader's shell checks the signatures, the
log spends the token, and only then the node is answered: from then on all peers trust the
certificate that the entry holds. Must NOT check a signature or a time
(peers/security/admission_shell.py).
"""

from dataclasses import dataclass, replace

from protocols.acts.statements import subject
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.leader.term import LeadershipTerm
from protocols.links.connections import Connections
from protocols.links.handshake import other_version
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.state.entry_validation import cannot_act, may_not_ask, refusal
from protocols.state.run_state import RunState
from protocols.state.tokens import ANOTHER, operator_of, renewed
from protocols.types.clock import NEVER
from protocols.types.ids import PROTOCOL_VERSION, PeerId
from protocols.types.limits import CERTIFICATES_MAX
from protocols.wire.codec import one_line

ANSWER_S = 10.0
"""Seconds for an answer of the leader and the log; an election fits in."""
RETRY_S = 2.0
"""Seconds until open acts are sent to the leader again."""
ASKING_MAX = 256
"""Open requests, here and at the leader: unauthenticated nodes cost bounded memory."""
NOT_NOW = "no peer that leads the run can be reached"
NO_PROOF = "this node shows neither a token nor an earlier peer of this run: join with a token"
ABOUT_CERTIFICATES = (m.HandOn, m.Decided, m.RequestAct, m.ActRefused)
"""Messages that `heard` handles."""

Asker = tuple[PeerId, int]
"""(the peer that was asked, its number of the request)."""


@dataclass(frozen=True, slots=True)
class PendingAdmission:
    """A proved admission that waits for the log."""

    entry: e.TokenSpent
    until: float


class Certificates:
    """Admissions and revocations of one peer. In a run that is not encrypted there are no
    requests."""

    def __init__(self, me: PeerId, run_state: RunState, links: Connections) -> None:
        self.secure = False
        self._me = me
        self._run_state = run_state
        self._links = links
        self._handed_on: dict[int, float] = {}
        """By number of a request that was made here, until when it waits for the leader."""
        self._proved: dict[Asker, PendingAdmission] = {}
        self.refused: dict[str, str] = {}
        """By subject, why the leader refused an act that a person asked for here."""
        self.acts: dict[str, m.RequestAct] = {}
        """By subject, acts that are not in the log yet: asked for here, or at any peer while this
        one leads."""
        self._asked_of: PeerId | None = None
        """The leader that got the acts last: no other peer may refuse them."""
        self._acts_at = 0.0
        """When the acts are sent to the leader again."""
        self._trusted: object = None
        """Marks the content of the last Trust."""

    @property
    def deadline(self) -> float:
        waits = (proved.until for proved in self._proved.values())
        acts_at = self._acts_at if self.acts else NEVER
        return min(acts_at, *waits, *self._handed_on.values(), NEVER)

    # Events ---------------------------------------------------------------------------------

    def handle_event(
        self,
        event: v.GateEvent,
        leader: PeerId | None,
        now: float,
    ) -> list[c.Command]:
        """Handle an event. `leader`: the followed leader, or this peer itself."""
        match event:
            case v.Secured():
                self.secure = True
                return []
            case v.AdmitAsked(number=number, admit=admit):
                if admit.protocol != PROTOCOL_VERSION:
                    why = other_version(admit.peer, admit.protocol)
                    return [c.AdmissionAnswer(number, (), why, final=True)]
                if self._is_admitted(admit):
                    # It asks again: an answer was lost, or it trusts too few peers to get in.
                    return [
                        c.AdmissionAnswer(number, self._certificates_of_voters(), "", final=False)
                    ]
                if leader == self._me:
                    return [self._check((self._me, number), admit)]
                if leader not in self._links.up or len(self._handed_on) >= ASKING_MAX:
                    return [c.AdmissionAnswer(number, (), NOT_NOW, final=False)]
                assert leader is not None, "a connected leader is a peer"
                self._handed_on[number] = now + ANSWER_S
                return [c.Send(leader, m.HandOn(number, admit))]
            case v.Proved(asker=asker, number=number):
                if len(self._proved) >= ASKING_MAX:
                    return [self._answer((asker, number), why="too many nodes ask at once")]
                self._proved[asker, number] = PendingAdmission(event.entry, now + ANSWER_S)
                return []
            case v.NotProved(asker=asker, number=number, why=why, final=final):
                return [self._answer((asker, number), why=why, final=final)]
            case v.ActAsked(entry=entry, force=force):
                return self._take_act(m.RequestAct(entry, force))
            case v.Barred(peer=peer, why=why):
                return self._links.barred_by(peer, why)

    def heard(
        self,
        peer: PeerId,
        message: m.HandOn | m.Decided | m.RequestAct | m.ActRefused,
        *,
        leads: bool,
    ) -> list[c.Command]:
        steers = isinstance(message, m.RequestAct) and isinstance(message.entry, e.Steered)
        if not (self.secure or steers or isinstance(message, m.ActRefused)):
            return []  # No request of this number is open, and there are no certificates.
        match message:
            case m.HandOn(number=number, admit=admit):
                # Only a member may ask for others.
                if leads and peer in self._run_state.readers:
                    return [self._check((peer, number), admit)]
                return [self._answer((peer, number), why=NOT_NOW)]
            case m.Decided(number=number):
                if self._handed_on.pop(number, None) is None:
                    return []  # It came too late: the node was told to try again.
                return [c.AdmissionAnswer(number, message.certificates, message.why, message.final)]
            case m.RequestAct(entry=entry):
                # Only a member may ask; and a former leader does not pass it on.
                if not isinstance(entry, e.TokenIssued):
                    message = replace(message, entry=replace(entry, by=peer))
                known = leads and peer in self._run_state.readers and message.entry.by == peer
                return self._take_act(message) if known else []
            case m.ActRefused(subject=name, why=why):
                asked = self.acts.get(name) if peer == self._asked_of else None
                return self._refuse(asked, why) if asked is not None else []

    def advance(
        self, led_term: LeadershipTerm | None, leader: PeerId | None, now: float
    ) -> list[c.Command]:
        """Answer open requests. `led_term`: the leader's state, None unless this peer leads."""
        commands: list[c.Command | None] = [self._trust()]
        commands += [self._decided(asker, led_term, now) for asker in list(self._proved)]
        commands += self._acts_due(led_term, leader, now)
        for number in [n for n, until in self._handed_on.items() if now >= until]:
            del self._handed_on[number]
            commands.append(c.AdmissionAnswer(number, (), NOT_NOW, final=False))
        return [command for command in commands if command is not None]

    def _trust(self) -> c.Trust | None:
        """The admitted peers, if they, the voters or operators have changed since the last time."""
        run_state = self._run_state
        run, admitted = run_state.run, run_state.admitted
        if not self.secure or run is None:
            return None
        found = (run_state.seats.get(p) or run_state.witnesses.get(p) for p in run_state.voters)
        voters = tuple(info for info in found if info is not None)
        orders = run_state.orders
        mark = (len(admitted), next(reversed(admitted), ""), voters, orders.operators)
        if mark == self._trusted:
            return None
        self._trusted = mark
        return c.Trust(
            run.root,
            tuple(admitted.values()),
            voters,
            run.voters_issue,
            orders.operators,
            orders.ever_operators,
        )

    # Acts -----------------------------------------------------------------------------------

    def _take_act(self, asked: m.RequestAct) -> list[c.Command]:
        """Accept an act if the peer that asks may, now: later it may have lost its vote."""
        name = subject(asked.entry)
        known = self.acts.get(name)
        if why := may_not_ask(self._run_state, asked.entry):
            return self._tell(asked, one_line(why)) if known is None else []
        self.refused.pop(name, None)
        new = len(self.acts) < ASKING_MAX if known is None else asked.force > known.force
        if new:
            self.acts[name] = asked
            self._acts_at = 0.0
        return []

    def _refuse(self, asked: m.RequestAct, why: str) -> list[c.Command]:
        """Drop an act, and tell the peer that asked for it why."""
        del self.acts[subject(asked.entry)]
        return self._tell(asked, why)

    def _tell(self, asked: m.RequestAct, why: str) -> list[c.Command]:
        name, by = subject(asked.entry), asked.entry.by
        if by != self._me:
            return [c.Send(by, m.ActRefused(name, why))] if by in self._links.up else []
        if len(self.refused) < ASKING_MAX:
            self.refused[name] = why
        return []

    def _acts_due(
        self, led_term: LeadershipTerm | None, leader: PeerId | None, now: float
    ) -> list[c.Command]:
        """Send open acts to the leader until the log has them, cannot, or the leader refuses."""
        for name, asked in list(self.acts.items()):
            if cannot_act(self._run_state, asked.entry):
                del self.acts[name]
        refused: list[tuple[m.RequestAct, str]] = []
        if led_term is not None:
            vote_changes = led_term.leader.vote_changes
            refused = vote_changes.accept_acts(self.acts, now)
        commands = [x for asked, why in refused for x in self._refuse(asked, one_line(why))]
        hears = leader if leader in self._links.up else None
        if now >= self._acts_at or hears != self._asked_of:
            self._asked_of, self._acts_at = hears, now + RETRY_S
            asks = self.acts.values() if hears is not None else ()
            commands += [c.Send(hears or self._me, asked) for asked in asks]
        return commands

    # One request ----------------------------------------------------------------------------

    def _check(self, asker: Asker, admit: m.Admit) -> c.Command:
        """Have the signatures of a request checked, if the log may admit its node at all."""
        run_state, terms = self._run_state, admit.terms
        admitted, key = run_state.admitted, admit.key.hex()
        if run_state.run is None:
            return self._answer(asker, why=NOT_NOW)  # The founder's first entry is not on disk yet.
        earlier = admitted.get(PeerId(admit.earlier))
        signatures = (admit.signature, admit.proof)
        if earlier is not None and earlier.key == key:
            terms, signatures = renewed(earlier), (b"", b"")
        elif not admit.signature:
            return self._answer(asker, why=NO_PROOF, final=True)
        if terms.witness != admit.witness:
            return self._answer(asker, why=_other_role(terms), final=True)
        entry = e.TokenSpent(terms, admit.peer, key, admit.certificate, *signatures)
        if self._is_admitted(admit):
            return self._answer(asker, certificates=self._certificates_of_voters())
        if why := refusal(run_state, entry):
            return self._answer(asker, why=why, final=True)
        root, issuer = run_state.run.root, admitted.get(terms.issuer)
        issuer_key = operator_of(terms.issuer) or (root if issuer is None else issuer.key)
        return c.CheckProof(*asker, entry, root, "" if entry.renews else issuer_key)

    def _decided(
        self, asker: Asker, led_term: LeadershipTerm | None, now: float
    ) -> c.Command | None:
        """The answer to a request; None until the log has its entry, which is handed to the
        leader."""
        entry, why, final = self._proved[asker].entry, "", False
        if self._is_admitted(entry):
            del self._proved[asker]
            return self._answer(asker, certificates=self._certificates_of_voters())
        if led_term is None or now >= self._proved[asker].until:
            why = NOT_NOW
        elif entry.peer in led_term.head.revoked or not led_term.has_spent(entry):
            why = refusal(led_term.head, entry)
            final = bool(why)
            if not why:
                led_term.spend(entry)
        if why:
            del self._proved[asker]
            return self._answer(asker, why=why, final=final)
        return None

    def _is_admitted(self, asks: e.TokenSpent | m.Admit) -> bool:
        """Is this peer admitted, with this certificate, and not revoked?"""
        spent = self._run_state.spendings
        known = spent.peers.get(asks.peer) if asks.peer not in spent.revoked else None
        return known is not None and known.certificate == asks.certificate

    def _certificates_of_voters(self) -> tuple[bytes, ...]:
        admitted, voters = self._run_state.admitted, self._run_state.voters
        known = [admitted[peer].certificate for peer in voters if peer in admitted]
        return tuple(known[:CERTIFICATES_MAX])

    def _answer(
        self,
        asker: Asker,
        *,
        certificates: tuple[bytes, ...] = (),
        why: str = "",
        final: bool = False,
    ) -> c.Command:
        peer, number = asker
        if peer == self._me:
            return c.AdmissionAnswer(number, certificates, why, final)
        return c.Send(peer, m.Decided(number, certificates, why, final))


def _other_role(terms: e.TokenTerms) -> str:
    """The line for a node that asks for the other role than that of its token."""
    if terms.witness:
        return f"this token admits witnesses only (`lowcomm witness`): {ANOTHER}"
    witness = "`lowcomm token DIRECTORY --witness`"
    return f"this token admits nodes that train only: for a witness, ask for one of {witness}"
