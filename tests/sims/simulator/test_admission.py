"""Simulated peers get in with tokens, and the faults of a seed hit that too."""

import pytest

from protocols.interface import commands as c
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.state.tokens import Token, spending
from protocols.types.ids import PeerId
from sims.checkers import World
from sims.checkers.admission import Admission
from sims.sweep import run_seed


def test_whoever_comes_gets_a_certificate_and_voters_get_the_key() -> None:
    world = World(3, peers=3, outer_steps=4)
    world.dialer.certification.close()
    world.run(until_s=300.0)
    assert world.checkers.violations == []
    assert world.finished
    spent = [x for x in world.checkers.log.values() if isinstance(x, e.TokenSpent)]
    assert len({entry.peer for entry in spent}) == len(spent) == 2
    assert all(disk.certified and disk.has_key for disk in world.disks.values())


def test_an_open_world_spends_nothing() -> None:
    world = World(3, peers=3, outer_steps=4)
    world.run(until_s=300.0)
    assert world.finished
    assert not any(isinstance(x, e.TokenSpent) for x in world.checkers.log.values())


def test_who_alone_has_the_key_is_needed() -> None:
    """Seed 1960135: nobody else could let in whom the run needed to begin."""
    world = World(3, peers=3, outer_steps=4)
    certification = world.dialer.certification
    founder, other, _ = world.nodes.values()
    assert not certification.needs(founder), "an open world has no key"
    certification.close()
    assert certification.needs(founder)
    assert not certification.needs(other)
    other.disk.has_key = True
    assert not certification.needs(founder)
    other.alive = False
    assert certification.needs(founder)


def test_in_some_seeds_answers_are_lost_and_tokens_are_used_up() -> None:
    happened = [run_seed(seed).happened for seed in (3, 4, 5, 6)]
    for kind in ("admitted", "admission lost", "token used up", "key given"):
        assert any(seed.get(kind) for seed in happened), kind


@pytest.mark.parametrize(
    "command",
    [
        c.Answer(1, b"p9.00000009", "", final=False),
        c.Send(PeerId("p1.00000001"), m.Decided(1, b"p9.00000009", "", final=False)),
        c.GiveKey(PeerId("p9.00000009")),
    ],
)
def test_what_leaves_without_the_log_s_word_is_found(command: c.Command) -> None:
    found: list[str] = []
    node = next(iter(World(3, peers=3, outer_steps=4).nodes.values()))
    Admission(found.append).handled(node, None, [command])
    assert len(found) == 1


def test_a_use_too_many_and_a_peer_twice_are_found() -> None:
    found: list[str] = []
    checker = Admission(found.append)
    token = Token(("h0:1",), b"a" * 32, b"n" * 16, 1, 9, b"s" * 16)
    checker.applied(spending(token, PeerId("p1.00000001"), b"k" * 32))
    assert found == []
    checker.applied(spending(token, PeerId("p1.00000001"), b"k" * 32))
    assert len(found) == 2
