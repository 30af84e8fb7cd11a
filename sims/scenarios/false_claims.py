"""A peer that claims to lead, or that newer terms have begun, with its own key and no other one; or
that leads, and sends entries that no log may have.

Must NOT draw the times of faults (fault_plan.py), nor judge the outcome: the checkers do.
"""

from collections.abc import Iterator
from dataclasses import replace

from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.raft import VoteStatement
from protocols.types import PeerId
from sims.checkers import World
from sims.node.node import Node

EVERY_S = 0.3
"""Virtual seconds between the claims."""
STRANGER = PeerId("nobody.00000000")
CLAIMS = ("append", "votes", "old votes", "terms", "urgent", "branch")
"""Claims of a peer. append: it leads, without a proof. votes: with its own vote in place of a
majority's. old votes: with the election of another leader. terms: in answers, newer terms.
urgent: the leader hands over to it. branch: it leads another branch, with many tokens. While it
leads, it says that more is committed than is, and sends invalid entries."""


def claim(world: World, liar: Node, how: str, duration_s: float) -> None:
    """Let a peer send such claims to all peers that it is connected with, beside its own messages,
    for so many virtual seconds."""
    until = world.clock.now + duration_s

    def go_on() -> None:
        over = world.clock.now >= until or world.faults.ambush is None
        for other in world.live if liar.running else ():
            if other.peer not in liar.core.linked_peers:
                continue
            line = world.network.line(liar.peer, other.peer)
            if not line.up:
                continue
            if over and how == "branch":
                # Its true messages were void as long as it lied.
                world.dialer.cut_connection(liar, other)
            for message in () if over else _claims(liar, other, how):
                event = v.MessageReceived(liar.peer, message)
                world.carry(liar.peer, other.peer, "control", event)
        if liar.running and not over:
            world.clock.at(EVERY_S, go_on)

    go_on()


def _claims(liar: Node, other: Node, how: str) -> Iterator[m.Control]:
    run, raft = liar.run_state.run, liar.raft
    if run is None or other.core.leader_id is None:
        return  # Without a leader any voter may ask for votes, so its claims are no lies.
    if liar.core.leads:
        yield from _untrue(liar, other, run.run)
        return
    log, term = other.raft.log, other.raft.term + 1
    last = log.last_index
    append = m.Append(run.run, term, last, log.last_term, (), last + 3, last + 3)
    evil = tuple(
        e.LogEntry(last + 1 + number, term, e.Lost(voter, "said a liar"))
        for number, voter in enumerate(sorted(set(raft.log.voters) - {liar.peer}))
    )
    if how == "append":
        yield replace(append, entries=evil)
    elif how in ("votes", "old votes"):
        mandate = raft.proofs.mandate()
        if how == "votes":
            signed = raft.proofs.sign(VoteStatement(term, liar.peer))
            votes = tuple(e.Ballot(voter, signed) for voter in raft.log.voters)
            elected = e.LogEntry(last + 1, term, e.Elected(liar.peer, votes))
            mandate = replace(mandate, entries=(*mandate.entries, elected))
        yield m.Leads(run.run, term, mandate)
        yield replace(append, entries=evil)
    elif how == "terms":
        yield m.Appended(term, False, 0)
        yield m.Voted(term, False, False)
    elif how == "branch":
        yield m.OnBranch((9,), 1 << 62, leads=True, final=True, leader=liar.me.address)
    elif how == "urgent":
        yield m.Vote(term, last + 9, term, pre=False, urgent=True, signature=b"s" * 64)


def _untrue(liar: Node, other: Node, run: int) -> Iterator[m.Append]:
    """As leader: entries that follow the log of this peer are committed, which no majority has
    acknowledged; and an entry that contradicts its log."""
    log, term = other.raft.log, liar.raft.term
    last, ends = (log.last_index, log.last_term), (log.last_index + 3, log.last_index + 3)
    yield m.Append(run, term, *last, (), *ends)
    entry = e.LogEntry(log.last_index + 1, term, e.Lost(STRANGER, "said a liar"))
    yield m.Append(run, term, *last, (entry,), *ends)
