"""Simulated peers get in with tokens, and the faults of a seed hit that too."""

from dataclasses import replace
from functools import partial

import pytest

from protocols.acts.orders import ADD, REMOVE
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.state.tokens import ROOT
from protocols.types.ids import PROTOCOL_VERSION, PeerId, PeerInfo
from sims.checkers import World
from sims.checkers.admission_checks import AdmissionChecks
from sims.node.ranks import Training
from sims.node.toy_model import key_named
from sims.sweep import run_seed
from tests.protocols.scenes import run

FOUNDER, OTHER = PeerId("p0.00000000"), PeerId("p1.00000001")
TERMS = e.TokenTerms("0f" * 16, "5e" * 32, 1, 9, witness=False, issuer=ROOT)
SPENT = e.TokenSpent(TERMS, OTHER, "1e" * 32, b"of it", b"s", b"p")
ADMIT = m.Admit(PROTOCOL_VERSION, OTHER, bytes(32), b"of it", False, TERMS, b"s", b"p", ROOT)


def test_whoever_comes_is_admitted_and_all_trust_it() -> None:
    world = World(3, peers=3, outer_steps=4, training=Training(certified=True))
    world.run(until_s=300.0)
    assert world.checkers.violations == []
    assert world.finished
    spent = [x for x in world.checkers.log.values() if isinstance(x, e.TokenSpent)]
    assert len({entry.peer for entry in spent}) == len(spent) == 3
    assert all(node.disk.certified for node in world.nodes.values())
    assert all(x.disk.trusts >= world.nodes.keys() for x in world.nodes.values())


def steer(world: World, what: str, subject: str) -> None:
    """The root key signs an act, and the first peer hands it to the run."""
    asker = world.live[0]
    orders, lineage = asker.run_state.orders, asker.run_state.lineage
    act = e.Steered(what, subject, "", orders.number + 1, lineage, asker.peer, "", unix_s=1)
    asker.give(v.ActAsked(world.dialer.certification.signed(act)))


def join(world: World) -> None:
    world.add_peer()


class Compacted(World):
    def draw_compaction(self, seed: int) -> int:
        return 4  # So that a late joiner begins with a snapshot.


def test_tokens_of_an_added_operator_count_until_it_is_removed() -> None:
    key = key_named("an operator").hex()
    world = Compacted(5, peers=3, outer_steps=30, training=Training(certified=True))
    world.clock.at(4.0, lambda: steer(world, ADD, key))
    for at_s in (8.0, 12.0):
        world.clock.at(at_s, partial(join, world))
    world.clock.at(18.0, lambda: steer(world, REMOVE, key))
    for at_s in (19.0, 30.0):
        world.clock.at(at_s, partial(join, world))
    world.run(until_s=300.0)
    assert world.checkers.violations == []
    assert world.finished
    bodies = [body for _, body in sorted(world.checkers.log.items())]
    issuers = [x.terms.issuer for x in bodies if isinstance(x, e.TokenSpent)]
    assert len(issuers) >= 6
    assert PeerId(key) in issuers
    removed = next(n for n, x in enumerate(bodies) if isinstance(x, e.Steered) and x.what == REMOVE)
    late = [x.terms.issuer for x in bodies[removed:] if isinstance(x, e.TokenSpent)]
    assert late
    assert PeerId(key) not in late
    assert all(x.disk.trusts >= world.nodes.keys() for x in world.nodes.values())


def test_an_open_world_spends_nothing() -> None:
    world = World(3, peers=3, outer_steps=4)
    world.run(until_s=300.0)
    assert world.finished
    assert not any(isinstance(x, e.TokenSpent) for x in world.checkers.log.values())


@pytest.mark.long
def test_in_some_seeds_answers_are_lost_and_tokens_do_not_count() -> None:
    happened = [run_seed(seed).happened for seed in (3, 4, 5, 6, 7, 8)]
    for kind in ("admitted", "admission lost", "token used up", "token of no voter", "wrong role"):
        assert any(seed.get(kind) for seed in happened), kind


@pytest.mark.parametrize(
    ("event", "command"),
    [
        (v.AdmitAsked(1, ADMIT), c.AdmissionAnswer(1, (), "", final=False)),
        (
            v.MessageReceived(FOUNDER, m.HandOn(1, ADMIT)),
            c.Send(FOUNDER, m.Decided(1, (), "", final=False)),
        ),
    ],
)
def test_an_answer_without_the_log_s_word_is_found(event: v.Event, command: c.Command) -> None:
    found: list[str] = []
    node = next(iter(World(3, peers=3, outer_steps=4).nodes.values()))
    AdmissionChecks(found.append).check_event(node, event, [command])
    assert len(found) == 1


def checker(*entries: e.Entry) -> list[str]:
    """What a checker finds in these entries."""
    found: list[str] = []
    admission = AdmissionChecks(found.append)
    for entry in (run(founder=FOUNDER), *entries):
        admission.check_entry(entry)
    return found


def test_a_use_too_many_and_a_peer_twice_are_found() -> None:
    assert checker(SPENT) == []
    assert len(checker(SPENT, SPENT)) == 2


def test_a_token_of_a_peer_without_a_vote_is_found() -> None:
    by = replace(SPENT, terms=replace(TERMS, issuer=FOUNDER))
    assert checker(by) == []
    assert len(checker(e.Voter(FOUNDER, votes=False, why=""), by)) == 1
    assert len(checker(e.Revoked(FOUNDER, OTHER, ""), by)) == 1
    found: list[str] = []
    strict = AdmissionChecks(found.append)
    strict.check_entry(replace(run(founder=FOUNDER), voters_issue=False))
    strict.check_entry(by)
    assert len(found) == 1


def test_a_token_of_a_key_that_is_no_operator_is_found() -> None:
    key = "1b" * 32
    by = replace(SPENT, terms=replace(TERMS, issuer=PeerId(key)))
    acts = [e.Steered(what, key, "", 1, 0, FOUNDER, "") for what in (ADD, REMOVE)]
    assert checker(acts[0], by) == []
    assert len(checker(by)) == len(checker(*acts, by)) == 1


def test_who_takes_part_without_a_token_or_in_another_role_is_found() -> None:
    found: list[str] = []
    strict = AdmissionChecks(found.append)
    strict.check_entry(replace(run(founder=FOUNDER), root="aa" * 32))
    info = PeerInfo(OTHER, "p1", 1, "h1:1", 1)
    strict.check_entry(e.Member(info))
    assert len(found) == 1
    strict.check_entry(SPENT)
    strict.check_entry(e.Member(info))
    assert len(found) == 1
    strict.check_entry(e.Witness(info))
    assert len(found) == 2
