"""Admission to a simulated run: peers ask with tokens, and trust what their logs admit.

Signatures are modelled (node/toy_model.py). The time of a token is always right. Must NOT judge
which peers are admitted: checkers do.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TypeVar

from protocols.acts import act_statement
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import Revoked, Steered, TokenIssued, TokenSpent
from protocols.messages import peer as m
from protocols.state import Token, claim, operator_of, statement
from protocols.types import PROTOCOL_VERSION, PeerId
from sims.node.node import Node
from sims.node.toy_model import key_named, toy_signature
from sims.simulator.dialled_world import DialledWorld

Signed = TypeVar("Signed", Revoked, Steered)
USES = (1, 2, 3)
"""How many peers one token admits. More peers than that may come with the same token."""
PATIENCE_S = 12.0
"""Seconds after which a peer without an answer asks again, perhaps another peer."""
EXPIRES = 1 << 40
OPERATORS_ONLY = 0.25
"""Share of the worlds in which tokens of voters do not count, and of those in which their
revocations do not."""
ISSUED = 0.5
"""Share of the tokens of peers that these ask the run to log."""
BY_ROOT, BY_VOTER = 0.4, 0.85
"""Tokens below the first bound are the root key's, below the second one a voter's; the others come
from any peer that ever ran, with the key on its disk: none of them may count unless it votes."""
WRONG_ROLE = 0.1
"""Share of the tokens that admit the other role than the one for which they are meant."""


class Certification:
    """Admission of all peers of one world."""

    def __init__(self, world: DialledWorld, seed: int, *, closed: bool) -> None:
        """`closed` False: all peers may connect, as in a run without encryption, so that a test in
        a small world may know every log entry."""
        self.closed = closed
        self._world = world
        self._random = random.Random(seed ^ 0x6A7E)  # noqa: S311 (a simulation, no secrets)
        self.voters_issue = self._random.random() >= OPERATORS_ONLY
        acts = random.Random(seed ^ 0x0AC7)  # noqa: S311 (another source: no draw moves)
        self.voters_revoke = acts.random() >= OPERATORS_ONLY
        self._tokens = 0
        self._token: dict[bool, Token] = {}
        """The token that the operator gives to the next new peer, by role (True: a witness)."""
        self._holds: dict[PeerId, Token] = {}
        self._asked = 0
        self._asking: dict[int, tuple[Node, PeerId]] = {}
        """By request number: the node that asked, and the peer that was asked."""
        self._waits_until: dict[PeerId, float] = {}
        self.revoked_at: dict[PeerId, float] = {}
        """Peers that the operator wanted to revoke, and the virtual time of that."""

    @property
    def root(self) -> str:
        """The run's root key; "" in an open world."""
        return key_named("root key").hex() if self.closed else ""

    @property
    def voters_steer(self) -> bool:
        """True if voters may steer the run, as they may revoke."""
        return self.voters_revoke

    def founds(self, founder: Node) -> TokenSpent | None:
        """The founder's own admission, which its disk has from now on; None in an open world."""
        if not self.closed:
            return None
        founder.disk.certified = True
        founder.disk.trusts = {founder.peer}
        token = self._new_token(witness=False, by=PeerId(""), uses=1)
        return _entry(_admit(founder, token, root=self.root))

    def signed(self, entry: Signed) -> Signed:
        """The act with the signature of the operator."""
        said = act_statement(self.root, entry)
        return replace(entry, signature=toy_signature(self.root, said))

    def shuts_out(self, node: Node) -> bool:
        return self.closed and not node.disk.certified

    def are_strangers(self, node: Node, other: Node) -> bool:
        """True if one of the two does not trust the certificate of the other one (yet)."""
        trusts = other.peer in node.disk.trusts and node.peer in other.disk.trusts
        if self.closed and not trusts:
            self._world.happened["unknown certificate"] += 1
        return self.closed and not trusts

    def bans(self, node: Node) -> bool:
        """True if the operator wanted to revoke the certificate of this node."""
        return node.peer in self.revoked_at

    def is_kicked(self, node: Node) -> bool:
        """True if a node's committed log says that this incarnation of the node is removed."""
        peer, incarnation = node.peer, node.me.incarnation
        logs = [other.run_state.orders for other in self._world.nodes.values()]
        return any(orders.kick_of(peer, incarnation) is not None for orders in logs)

    def is_revoked(self, peer: PeerId) -> bool:
        """True if a node's committed log says that the peer is revoked."""
        nodes = self._world.nodes
        return any(peer in node.run_state.revoked for node in nodes.values())

    def bars(self, node: Node, other: Node, why: str) -> bool:
        """True if one of the two is revoked and the other one knows. `node` dialled `other`; `why`:
        `other` refuses the hello of `node`."""
        if why and node.peer in other.run_state.revoked:
            node.give(v.Barred(other.peer, why))
            return True
        return other.peer in node.run_state.revoked

    def begins(self, node: Node) -> None:
        """Begin an incarnation with the certificate on its disk."""
        if self.closed and node.disk.certified:
            node.give(v.Secured())

    def ask(self, node: Node, other: Node) -> None:
        """Let a node ask a peer of the run for admission; or for certificates, if it is admitted
        and does not trust that peer."""
        world = self._world
        if world.clock.now < self._waits_until.get(node.peer, 0.0):
            return
        self._waits_until[node.peer] = world.clock.now + PATIENCE_S
        self._asked += 1
        number, witness = self._asked, node.me.witness
        if witness not in self._token:
            self._token[witness] = self._next_token(witness=witness)
        token = self._holds.setdefault(node.peer, self._token[witness])
        admit = _admit(node, token, root=self.root)
        self._asking[number] = node, other.peer
        world.clock.at(world.network.delay_s, lambda: other.give(v.AdmitAsked(number, admit)))

    def carry_out(self, node: Node, command: c.AtTheGate) -> None:
        """Carry out a command of a core."""
        match command:
            case c.CheckProof():
                checked = self._checked(command)
                node.after(0.0, lambda: node.give(checked))
            case c.AdmissionAnswer(number=number):
                asker, asked = self._asking.pop(number)
                network = self._world.network
                clock = self._world.clock
                clock.at(network.delay_s, lambda: self._answered(asker, asked, command))
            case c.Trust(admitted=admitted):
                node.disk.trusts |= {entry.peer for entry in admitted}

    def _checked(self, check: c.CheckProof) -> v.Proved | v.NotProved:
        """The answer of a shell: it looks at signatures only."""
        entry = check.entry
        terms, said = entry.terms, statement(check.root, entry.terms)
        signed = entry.signature == toy_signature(check.issuer_key, said)
        proved = entry.proof == toy_signature(terms.key, claim(check.root, entry.key))
        if signed and proved:
            return v.Proved(check.asker, check.number, entry)
        self._world.happened["forged token"] += 1
        return v.NotProved(check.asker, check.number, "forged", final=True)

    def _answered(self, node: Node, asked: PeerId, answer: c.AdmissionAnswer) -> None:
        """Deliver an answer to the asking node, if it still lives. One answer in eight is lost."""
        if not node.running or self._random.random() < 1 / 8:
            self._world.happened["admission lost"] += 1
            return
        self._waits_until.pop(node.peer, None)
        if not answer.why:
            shown = {PeerId(certificate.decode()) for certificate in answer.certificates}
            node.disk.trusts |= {node.peer, asked, *shown}
            if not node.disk.certified:
                self._world.happened["admitted"] += 1
                node.disk.certified = True
                node.give(v.Secured())
        elif answer.final:
            self._world.happened[_reason(answer.why)] += 1
            witness = node.me.witness
            if self._holds[node.peer] is self._token[witness]:
                self._token[witness] = self._next_token(witness=witness)
            self._holds[node.peer] = self._token[witness]

    # Tokens ---------------------------------------------------------------------------------

    def _next_token(self, *, witness: bool) -> Token:
        """The next token for new peers of this role: a good one, or one that must not count. As
        long as a log has an added operator, it is one of that operator."""
        world = self._world
        nodes, draw = list(world.nodes.values()), self._random.random()
        voters = [node for node in nodes if node.peer in node.run_state.voters]
        by = PeerId("")
        if draw >= BY_VOTER and nodes:
            by = self._random.choice(nodes).peer
        elif draw >= BY_ROOT and voters:
            by = self._random.choice(voters).peer
        if self._random.random() < WRONG_ROLE:
            witness = not witness
        added = {key for node in nodes for key in node.run_state.orders.operators}
        by = PeerId(min(added)) if added else by
        token = self._new_token(witness=witness, by=by, uses=self._random.choice(USES))
        issuer = next((node for node in nodes if node.peer == by and node.running), None)
        if issuer is not None and self._random.random() < ISSUED:
            issuer.give(v.ActAsked(TokenIssued(token.terms)))
        return token

    def _new_token(self, *, witness: bool, by: PeerId, uses: int) -> Token:
        self._tokens += 1
        key, root = key_named(f"token {self._tokens}"), bytes.fromhex(self.root)
        plain = Token(("h0:1",), (), root, key, key, uses, EXPIRES, witness, by)
        peer_key = key_named(by).hex() if by else self.root
        issuer_key = operator_of(plain.issuer) or peer_key
        return replace(
            plain, signature=toy_signature(issuer_key, statement(self.root, plain.terms))
        )


def _reason(why: str) -> str:
    """The count of a refusal that is final."""
    for part, kind in (
        ("admits", "wrong role"),
        ("vote", "token of no voter"),
        ("operator", "token of no operator"),
    ):
        if part in why:
            return kind
    return "token used up"


def _admit(node: Node, token: Token, *, root: str) -> m.Admit:
    key, certificate = key_named(node.peer), node.peer.encode()
    proof = toy_signature(token.key.hex(), claim(root, key.hex()))
    identity = (node.peer, key, certificate, node.me.witness)
    return m.Admit(PROTOCOL_VERSION, *identity, token.terms, token.signature, proof, PeerId(""))


def _entry(admit: m.Admit) -> TokenSpent:
    signatures = (admit.signature, admit.proof)
    return TokenSpent(admit.terms, admit.peer, admit.key.hex(), admit.certificate, *signatures)
