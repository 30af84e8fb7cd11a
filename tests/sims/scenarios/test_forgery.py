"""A leader that sends any entry, with any values: readers refuse it, or go on from it."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise, product
from typing import get_args

import pytest

from protocols.links.leader_proofs import LoggedProofs
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.messages.persisted import Saved
from protocols.state import transitions
from protocols.state.entry_validation import snapshot_objection
from protocols.state.log_applier import LogApplier
from protocols.state.run_state import RunState
from protocols.types.errors import RemoteProtocolError
from protocols.types.ids import PeerId
from protocols.types.limits import CONTROL_BYTES_MAX
from protocols.wire.codec import decode, decode_image, encode
from sims.checkers import StepWorld, World
from sims.node.node import Node
from sims.node.toy_model import Training
from sims.scenarios.forgery import Forger, blank
from tests.marks import few

LEADER, ME = PeerId("leader.00000000"), PeerId("me.11111111")
KINDS = get_args(e.Entry)
SIZE = CONTROL_BYTES_MAX
TRIES = 2
"""Forged entries of each kind, at each place of the log."""


class Rounds(World):
    def draw_compaction(self, seed: int) -> int:
        return 10_000  # So that a disk has the whole log.


class Steps(StepWorld, Rounds):
    pass


def whole_log(*, stepwise: bool, certified: bool) -> tuple[list[e.LogEntry], LogApplier]:
    """The log of a run in which peers join, are lost and come back; and a reader of nothing."""
    late: list[Node] = []
    if stepwise:
        world: World = Steps(5, peers=3, outer_steps=60, witness=True, certified=certified)
    else:
        training = Training(fragments=2, certified=certified)
        world = Rounds(5, peers=3, outer_steps=8, training=training)
        world.add_peer(witness=True)
    world.clock.at(4.0, lambda: late.append(world.add_peer()))
    world.clock.at(6.0, lambda: world.operator.restart(world.leaders[0]))
    world.clock.at(7.0, lambda: world.kill(world.live[2]))
    world.run(until_s=60.0)
    kept = [x.disk.saved for x in world.nodes.values() if x.disk.saved is not None]
    entries = max((saved.entries for saved in kept), key=len)
    assert entries[0].index == 1
    signatures = next(iter(world.nodes.values())).core.run_state.signatures
    return list(entries), LogApplier(ME, None, signatures)


def examples(entries: list[e.LogEntry]) -> dict[type, list[e.Entry]]:
    """Sound entries of each kind, from which forged ones are made."""
    found: dict[type, list[e.Entry]] = {kind: [] for kind in KINDS}
    for entry in entries:
        found[type(entry.body)].append(entry.body)
    cut = next(body for body in found[e.Cut] if isinstance(body, e.Cut))
    peer, donor = cut.info.peer, cut.donors[0]
    back = e.Restore(1, cut.versions, 0, 0, (), fork=0, lonely=False, salt=3)
    found[e.Restore] += [back, replace(back, live=True), replace(back, voters=(donor,), fork=7)]
    found[e.Revoked].append(e.Revoked(peer, donor, "for once"))
    found[e.TokenRevoked].append(e.TokenRevoked("0f" * 16, donor, "leaked"))
    found[e.Steered].append(e.Steered("pause", "", "", 1, 0, donor, "for once"))
    found[e.BranchDropped].append(e.BranchDropped(peer, (7,), 9))
    return {kind: bodies or [blank(kind)] for kind, bodies in found.items()}


def append(raft_run: int, before: e.LogEntry | None, entry: e.LogEntry) -> m.Append:
    last = (before.index, before.term) if before is not None else (0, 0)
    return m.Append(raft_run, entry.term, *last, (entry,), entry.index)


def goes_on(applier: LogApplier, forged: e.LogEntry) -> bool:
    """Have a restarted peer with this log read the entry. False if it refuses it, and is as it was;
    True if it goes on from it, and so do its next incarnation and a joiner."""
    saved = Saved(forged.term, "", applier.snapshot(), ())
    reader = LogApplier(ME, saved, applier.run_state.signatures)
    raft, before = reader.raft, transitions.image_of(reader.run_state)
    end = e.LogEntry(raft.log.base, raft.log.base_term, e.Elected(LEADER))
    try:
        reader.receive(LEADER, append(raft.run, end, forged), 0.0)
    except RemoteProtocolError:
        assert raft.log.last_index == raft.commit_index == end.index, "it acknowledges nothing"
        assert raft.term_state.refused == LEADER
        assert reader.next_entry() is None
        assert transitions.image_of(reader.run_state) == before
        return False
    assert reader.next_entry() is forged
    saved = Saved(forged.term, "", reader.snapshot(), ())
    assert saved.snapshot is not None
    image = decode_image(saved.snapshot.image)
    assert snapshot_objection(image, RunState(signatures=reader.run_state.signatures)) == ""
    assert LogApplier(ME, saved).run_state == reader.run_state
    return True


@pytest.mark.parametrize(
    ("stepwise", "certified"), few(product([False, True], [True, False]), count=1)
)
def test_no_entry_of_a_leader_ends_its_readers(stepwise: bool, certified: bool) -> None:
    entries, applier = whole_log(stepwise=stepwise, certified=certified)
    forger, outcomes = Forger(11), Counter[tuple[str, bool]]()
    peers = sorted({entry.body.info.peer for entry in entries if isinstance(entry.body, e.Member)})
    sound, before = examples(entries), entries[0]
    applier.receive(LEADER, append(0, None, entries[0]), 0.0)
    assert applier.next_entry() is entries[0]
    for entry in entries[1:]:
        for kind in KINDS:
            for number in range(TRIES):
                body = forger.random.choice(sound[kind])
                for _ in range(number):
                    body = forger.changed(body, peers)
                forged = replace(entry, body=body)
                try:
                    read = decode(encode(append(applier.raft.run, before, forged)), size_max=SIZE)
                except (OverflowError, TypeError, ValueError):
                    continue  # No peer can send such values.
                assert isinstance(read, m.Append)
                taken = goes_on(applier, read.entries[0])
                outcomes[kind.__name__, taken] += 1
        applier.receive(LEADER, append(applier.raft.run, before, entry), 0.0)
        assert applier.next_entry() is entry
        before = entry
    tried = {kind for kind, _ in outcomes}
    assert tried == {kind.__name__ for kind in KINDS}
    taken = sum(number for (_, good), number in outcomes.items() if good)
    assert taken > len(entries) < outcomes.total() - taken, "both happen often"


def test_no_entry_ends_the_chain_of_proofs_of_leadership() -> None:
    """A reader of this log could follow no later leader."""
    entries, applier = whole_log(stepwise=False, certified=True)
    last, founder = entries[-1].term, entries[0].body
    assert isinstance(founder, e.Run)
    reader = LogApplier(founder.founder, None, applier.run_state.signatures, LoggedProofs)
    raft = reader.raft
    raft.election.step_down(0.0, term=last)
    refused = Counter[str]()
    for before, entry in pairwise((None, *entries)):
        assert entry is not None
        forged: list[e.LogEntry] = []
        if isinstance(entry.body, e.Elected):
            forged.append(replace(entry, body=replace(entry.body, ballots=())))
        if entry.signature:
            forged.append(replace(entry, signature=b""))
        for one in forged:
            raft.term_state.proved, raft.term_state.refused = LEADER, None
            with pytest.raises(RemoteProtocolError, match="proves no election"):
                reader.receive(LEADER, replace(append(raft.run, before, one), term=last), 0.0)
            refused[type(one.body).__name__] += 1
        raft.term_state.proved, raft.term_state.refused = LEADER, None
        reader.receive(LEADER, replace(append(raft.run, before, entry), term=last), 0.0)
        raft.commit_index = entry.index  # As acknowledgements of the newest entry prove.
        assert reader.next_entry() is entry
    assert refused.keys() >= {"Elected", "Voter", "Left"}
