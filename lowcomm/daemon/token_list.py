"""Answers `lowcomm token list` and `lowcomm audit`: the join tokens in the log, with the nodes that
came by each; all acts of people.

A token of an operator that no node has used is in no log. Must NOT decide whether a token counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocols.acts import SET, signer, subject
from protocols.messages import Revoked, Steered, TokenIssued, TokenRevoked

if TYPE_CHECKING:
    from protocols.messages import SignedAct, TokenTerms
    from protocols.state import RunState
    from protocols.types import PeerId


@dataclass(slots=True)
class SeenToken:
    """A token that was used, or that a voter has issued."""

    terms: TokenTerms
    nodes: list[PeerId] = field(default_factory=list["PeerId"])


def tokens_json(run_state: RunState) -> str:
    """{"issuers": ..., "tokens": [...]}, in the order of first use, the unused ones last.

    A node that became another peer after its branch was given up is listed with its token under
    each of its ids."""
    spent, seen = run_state.spendings, dict[str, SeenToken]()
    for peer, entry in spent.peers.items():
        seen.setdefault(token_of(run_state, peer), SeenToken(entry.terms)).nodes.append(peer)
    for number, issued in spent.issued.items():
        seen.setdefault(number, SeenToken(issued.terms))
    infos = {**run_state.seats, **run_state.witnesses}
    founder = run_state.run.founder if run_state.run is not None else ""
    tokens = [
        {
            "number": number,
            "issuer": token.terms.issuer,
            "role": "witness" if token.terms.witness else "member",
            "uses": token.terms.uses,
            "expires": token.terms.expires,
            "revoked": number in spent.revoked_tokens,
            "founder": founder in token.nodes,
            "nodes": [
                {
                    "peer": peer,
                    "name": infos[peer].name if peer in infos else peer.rpartition(".")[0],
                    "revoked": peer in spent.revoked,
                    "here": peer in run_state.readers,
                }
                for peer in token.nodes
            ],
        }
        for number, token in seen.items()
    ]
    issuers = "voters" if run_state.run is None or run_state.run.voters_issue else "operators"
    return json.dumps({"issuers": issuers, "tokens": tokens})


def paused_at(run_state: RunState) -> int | None:
    """When a person asked for the pause in force, Unix seconds (0: unknown); None: no pause."""
    paused = run_state.orders.paused
    return paused.unix_s if paused is not None else None


def audit_json(run_state: RunState) -> str:
    """{"acts": [...]}: the acts of people in the log, in its order."""
    orders = run_state.orders
    steered = [(orders.indices[number], act) for number, act in orders.acts.items()]
    acts = sorted([*run_state.spendings.acts, *steered], key=lambda each: each[0])
    return json.dumps({"acts": [_act(index, entry) for index, entry in acts]})


def _act(index: int, entry: SignedAct | TokenIssued) -> dict[str, object]:
    """`time`: Unix seconds, by the clock of the machine at which a person asked; 0: unknown."""
    if isinstance(entry, TokenIssued):
        named = {"index": index, "act": "token issued", "subject": entry.terms.number}
        return {**named, "by": entry.by, "at": entry.by, "why": "", "signed": False, "time": 0}
    of = subject(entry)
    match entry:
        case Steered(what=act, subject=of, value=value):
            of = f"{of}={value}" if act == SET else of
        case Revoked():
            act = "node revoked"
        case TokenRevoked():
            act = "token revoked"
    by = signer(entry).removeprefix("the ") if entry.signature else entry.by
    named = {"index": index, "act": act, "subject": of, "by": by, "at": entry.by}
    signed = bool(entry.signature)
    return {**named, "why": entry.why, "signed": signed, "time": entry.unix_s}


def token_of(run_state: RunState, peer: PeerId) -> str:
    """The number of the token by which the node of an admitted peer came, also as an earlier
    peer."""
    admitted = run_state.spendings.peers
    entry = admitted[peer]
    while entry.renews and entry.terms.issuer in admitted:
        entry = admitted[entry.terms.issuer]
    return entry.terms.number


def came_by(run_state: RunState, number: str) -> list[PeerId]:
    """The peers that came by the token of this number, without the revoked ones."""
    spent = run_state.spendings
    peers = (peer for peer in spent.peers if peer not in spent.revoked)
    return [peer for peer in peers if token_of(run_state, peer) == number]
