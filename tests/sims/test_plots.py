"""When a plot may strike: what no protocol could bear is no fault that a seed draws."""

from sims import plots
from sims.world import World

BEGUN_S = 10.0


def test_who_is_needed_for_the_true_majority_is_not_cut_off() -> None:
    """Seed 3101035: half of the members were corrupt, and the others were cut off one by one."""
    world = World(1, peers=5, outer_steps=1000)
    world.run(until_s=BEGUN_S)
    world.ambush = lambda _, __: None  # Not healed yet.
    (leader,) = world.leaders
    wrong, deaf, *sound = (node for node in plots.holders(world) if node is not leader)
    leader.corrupt[0] = wrong.corrupt[0] = 1
    assert not plots.outvoted(world, sound[0]), "two of four: they go back"
    plots.hears_nobody(world, deaf, BEGUN_S)
    assert plots.outvoted(world, sound[0]), "two of three"
    assert not plots.outvoted(world, wrong)
    for node, is_cut_off in ((sound[0], False), (wrong, True)):
        plots.deafen(world, node)
        assert world.network.reachable(leader.peer, node.peer, world.now) != is_cut_off
