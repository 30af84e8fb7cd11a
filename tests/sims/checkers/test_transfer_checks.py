"""What donors say of a cut's state, as its checker sees it."""

from dataclasses import replace

from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types.ids import Version
from sims.checkers import World
from tests.protocols.scenes import B, info


def test_a_donor_tells_the_tree_of_the_cut_that_stands_and_of_its_state() -> None:
    """Seed 2546125660: it told the tree of an earlier cut of the same joiner."""
    world = World(9, peers=3, outer_steps=30)
    world.run(until_s=8.0)
    donor = world.live[0]
    version, cuts = donor.states.versions[0], donor.run_state.cuts
    assert version is not None
    cut = e.Cut(info(B, 1), (donor.peer,), (version,))
    cuts[B], donor.transfers.copies[99, 0] = (99, cut), donor.states.outers[0]
    report, told = m.CutRoots(B, 99, ("1" * 64,)), world.checkers.transfers
    told.rooted(donor, donor.peer, report)
    assert world.checkers.violations == []
    cuts[B] = (99, replace(cut, versions=(Version(0, version.round, "0" * 32),)))
    told.rooted(donor, donor.peer, report)
    assert "another state than the cut's" in world.checkers.violations[-1]
    for over in ({}, {B: (101, cut)}):
        world.checkers.violations.clear()
        donor.run_state.cuts = over
        told.rooted(donor, donor.peer, report)
        assert "a cut that is over" in world.checkers.violations[-1]
