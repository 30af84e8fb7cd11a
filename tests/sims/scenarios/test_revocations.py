"""Every way to revoke peers is played, in a run that finishes."""

from dataclasses import replace

import pytest

from protocols.acts.statements import act_statement
from protocols.messages import log_entries as e
from protocols.types.ids import PeerId
from sims.checkers import World
from sims.checkers.revocation_checks import Revocation
from sims.node.ranks import Training
from sims.node.toy_model import toy_signature
from sims.scenarios.fault_plan import PlannedFault, draw_plan, draw_revocations, inject
from sims.scenarios.revocations import PLOTS
from tests.sims.test_sweep import FAILED_ONCE

SETTLED_S = 8.0


def played(how: int, *, peers: int = 4, victim: int = 1) -> World:
    world = World(9, peers=peers, outer_steps=30, training=Training(certified=True))
    join = PlannedFault(SETTLED_S, "join", 0, 0, 0.0)
    inject(world, [join, PlannedFault(SETTLED_S, "revoke", victim, how, 0.0)])
    world.clock.at(30.0, world.heal)
    world.run(until_s=200.0)
    world.checkers.run_ended(world)
    return world


def revoked(world: World) -> set[str]:
    return {x.peer for x in world.checkers.log.values() if isinstance(x, e.Revoked)}


@pytest.mark.parametrize("how", range(len(PLOTS)), ids=[plot.__name__ for plot in PLOTS])
def test_peers_are_revoked_and_the_run_finishes(how: int) -> None:
    world = played(how)
    assert world.checkers.violations == []
    assert world.happened["revoke"] > 0
    assert world.finished
    outcomes = {
        node.process.outcome for peer, node in world.nodes.items() if peer in revoked(world)
    }
    assert outcomes <= {"refused", "alone"}, "alone: it had only begun to come"
    assert len(revoked(world)) + world.happened["revocation refused"] == world.happened["revoke"]


@pytest.mark.long
def test_of_too_many_some_are_refused() -> None:
    worlds = [played(len(PLOTS) - 1, victim=victim) for victim in range(4)]
    refused = [
        line for world in worlds for line in world.story.lines if "is not revoked, of" in line
    ]
    assert refused
    assert not any(world.checkers.violations for world in worlds)


def test_seeds_that_failed_once_are_the_clusters_that_they_were() -> None:
    # Later seeds were found with revocations in them.
    old = FAILED_ONCE[: FAILED_ONCE.index(304656761)]
    assert not any(draw_revocations(seed, until_s=30.0) for seed in old)
    drawn = [seed for seed in range(2000) if draw_revocations(seed, until_s=30.0)]
    assert len(drawn) > 120
    assert any(seed % 8 == 0 for seed in drawn), "and some of two peers"
    assert any(fault.kind == "revoke" for fault in draw_plan(drawn[0], until_s=30.0))


def test_who_is_revoked_counts_nowhere() -> None:
    found: list[str] = []
    checker = Revocation(found.append)
    a, b = PeerId("a.1"), PeerId("b.1")
    log = (
        e.Run(1, "{}", "", 1, 1, 1, b"", (1,), a),
        e.Voter(b, votes=True, why=""),
        e.Revoked(b, a, ""),
        e.Voter(b, votes=True, why=""),
        e.Lost(b, ""),
    )
    for index, entry in enumerate(log, start=1):
        checker.check_entry(index, entry)
    assert found == [
        "b.1 is revoked while it votes",
        "b.1 is revoked, and counts in a Voter after that",
    ]


def test_a_revocation_without_the_root_key_or_a_vote_is_found() -> None:
    a, b = PeerId("a.1"), PeerId("b.1")
    root = "aa" * 32
    plain = e.Run(1, "{}", "", 1, 1, 1, b"", (1,), a, root=root)

    def found(run: e.Run, entry: e.Revocation) -> list[str]:
        texts: list[str] = []
        checker = Revocation(texts.append)
        checker.check_entry(1, run)
        checker.check_entry(2, entry)
        return texts

    closed = replace(plain, voters_revoke=False)
    gone = e.Revoked(b, a, "")
    signed = replace(gone, signature=toy_signature(root, act_statement(root, gone)))
    assert found(plain, gone) == found(plain, signed) == found(closed, signed) == []
    for run, entry in ((closed, gone), (plain, replace(gone, signature=b"x"))):
        assert found(run, entry) == ["b.1 is revoked without the root key, at a.1"]
    assert found(plain, e.TokenRevoked("0f" * 16, b, "")) == [
        f"{'0f' * 16} is revoked by b.1, which never voted"
    ]


def test_where_only_the_operator_revokes_a_member_lies_in_vain() -> None:
    world = World(6, peers=4, outer_steps=30, training=Training(certified=True))
    assert not world.dialer.certification.voters_revoke
    world.clock.at(SETTLED_S, lambda: PLOTS[0](world, world.live[1], 0))
    world.run(until_s=60.0)
    assert world.happened["revocation signed"] == 1
    assert world.happened["revocation forged"] == 1
    assert len(revoked(world)) == 1
    assert world.checkers.violations == []
