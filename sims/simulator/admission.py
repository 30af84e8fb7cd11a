"""Admission to a simulated run: peers ask for certificates with tokens, as real peers do.

The seal and the expiry time of a token are checked by the real shell
(peers/security/certificate_issuer.py); here both are always valid. Must NOT judge which peers are
admitted: checkers do.
"""

from __future__ import annotations

import hashlib
import random

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import peer as m
from protocols.state import Token, decode_token, encode_token, spending
from protocols.types import PROTOCOL_VERSION, PeerId
from sims.node.node import Node
from sims.simulator.dialled_world import DialledWorld

USES = (1, 2, 3)
"""How many peers one token admits. More peers than that may come with the same token."""
PATIENCE_S = 12.0
"""Seconds after which a peer without an answer asks again, perhaps another peer."""
EXPIRES = 1 << 40


class Certification:
    """Admission of all peers of one world."""

    def __init__(self, world: DialledWorld, seed: int) -> None:
        self.closed = False
        """False until `close`: all peers may connect, as in a run without encryption, so that a
        test in a small world may know every log entry."""
        self._world = world
        self._random = random.Random(seed ^ 0x6A7E)  # noqa: S311 (a simulation, no secrets)
        self._tokens = 0
        self._token = self._new_token()
        """The token that the operator gives to the next new peer."""
        self._holds: dict[PeerId, Token] = {}
        self._asked = 0
        self._asking: dict[int, Node] = {}
        """By request number: the node that asked."""
        self._waits_until: dict[PeerId, float] = {}
        self.revoked_at: dict[PeerId, float] = {}
        """Peers that the operator wanted to revoke, and the virtual time of that."""

    def close(self) -> None:
        """Require certificates from now on. Call this before the world runs; the founder gets a
        certificate and the key."""
        self.closed = True
        nodes = self._world.nodes
        founder = next(iter(nodes.values()))
        founder.disk.certified = founder.disk.has_key = True
        self.begins(founder)

    def shuts_out(self, node: Node) -> bool:
        return self.closed and not node.disk.certified

    def bans(self, node: Node) -> bool:
        """True if the operator wanted to revoke the certificate of this node."""
        return node.peer in self.revoked_at

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
        """Begin an incarnation with the certificate and the key on its disk."""
        if self.closed and node.disk.certified:
            node.give(v.Secured(node.disk.has_key))

    def needs(self, node: Node) -> bool:
        """True if no other live node has the key with which new peers are admitted, and this one
        has."""
        others = [other for other in self._world.live if other is not node]
        return self.closed and node.disk.has_key and not any(x.disk.has_key for x in others)

    def ask(self, node: Node, other: Node) -> None:
        """Let a node without a certificate ask a peer of the run for one."""
        world = self._world
        if world.now < self._waits_until.get(node.peer, 0.0):
            return
        self._waits_until[node.peer] = world.now + PATIENCE_S
        self._asked += 1
        number, token = self._asked, self._holds.setdefault(node.peer, self._token)
        admit = m.Admit(PROTOCOL_VERSION, encode_token(token), node.peer, _key(node.peer), b"", b"")
        self._asking[number] = node
        world.at(world.network.delay_s, lambda: other.give(v.AdmitAsked(number, admit)))

    def do(self, node: Node, command: c.AtTheGate) -> None:
        """Carry out a command of a core."""
        match command:
            case c.Sign():
                signed = self._signed(node, command)
                node.after(0.0, lambda: node.give(signed))
            case c.Answer(number=number):
                asker = self._asking.pop(number)
                network = self._world.network
                self._world.at(network.delay_s, lambda: self._answered(asker, command))
            case c.GiveKey(peer=peer):
                given = v.MessageReceived(node.peer, m.AuthorityKey(b"the key"))
                self._world.carry(node.peer, peer, "control", given)
            case c.TakeKey():
                self._world.happened["key given"] += 1
                node.disk.has_key = True
                node.after(0.0, lambda: node.give(v.Secured(has_key=True)))

    def _signed(self, node: Node, sign: c.Sign) -> v.Signed | v.NotSigned:
        if not node.disk.has_key:
            return v.NotSigned(sign.asker, sign.number, "no key yet", final=False)
        admit = sign.admit
        entry = spending(decode_token(admit.token), admit.peer, admit.key)
        return v.Signed(sign.asker, sign.number, entry, admit.peer.encode())

    def _answered(self, node: Node, answer: c.Answer) -> None:
        """Deliver an answer to the asking node, if it still lives. One answer in eight is lost."""
        if not node.running or self._random.random() < 1 / 8:
            self._world.happened["admission lost"] += 1
            return
        self._waits_until.pop(node.peer, None)
        if answer.certificate:
            assert answer.certificate == node.peer.encode(), "the certificate of another peer"
            self._world.happened["admitted"] += 1
            if not node.disk.certified:
                node.disk.certified = True
                node.give(v.Secured(node.disk.has_key))
        elif answer.final:
            self._world.happened["token used up"] += 1
            if self._holds[node.peer] is self._token:
                self._token = self._new_token()
            self._holds[node.peer] = self._token

    def _new_token(self) -> Token:
        self._tokens += 1
        number = self._tokens.to_bytes(16, "big")
        uses = self._random.choice(USES)
        return Token(("h0:1",), b"a" * 32, number, uses, EXPIRES, b"s" * 16)


def _key(peer: PeerId) -> bytes:
    return hashlib.sha256(peer.encode()).digest()
