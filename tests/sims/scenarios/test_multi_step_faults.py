"""When a plot may strike: what no protocol could bear is no fault that a seed draws."""

from sims.checkers import World
from sims.scenarios import multi_step_faults

BEGUN_S = 10.0


def test_who_is_needed_for_the_true_majority_is_not_cut_off() -> None:
    """Seed 3101035: half of the members were corrupt, and the others were cut off one by one."""
    world = World(1, peers=5, outer_steps=1000)
    world.run(until_s=BEGUN_S)
    world.faults.ambush = lambda _, __: None  # Not healed yet.
    (leader,) = world.leaders
    wrong, deaf, *sound = (node for node in multi_step_faults.holders(world) if node is not leader)
    leader.states.corrupt[0] = wrong.states.corrupt[0] = 1
    assert not multi_step_faults.outvoted(world, sound[0]), "two of four: they go back"
    multi_step_faults.hears_nobody(world, deaf, BEGUN_S)
    assert multi_step_faults.outvoted(world, sound[0]), "two of three"
    assert not multi_step_faults.outvoted(world, wrong)
    for node, is_cut_off in ((sound[0], False), (wrong, True)):
        multi_step_faults.deafen(world, node)
        assert world.network.reachable(leader.peer, node.peer, world.clock.now) != is_cut_off


def test_half_of_the_states_are_wrong_only_while_everybody_can_say_what_it_holds() -> None:
    """Seed 6301231: the others waited for one that was dead, and came to the end before that. Seed
    9001374: one was stopped, and lost before it had said it."""
    world = World(1, peers=5, outer_steps=1000)
    world.run(until_s=BEGUN_S)
    leader, *others = world.leaders + [node for node in world.live if not node.core.leads]
    world.kill(others[-1])
    assert others[-1].peer in leader.run_state.members
    assert not multi_step_faults.corrupt_half(world, 1)
    world.run(until_s=world.clock.now + BEGUN_S)
    assert others[-1].peer not in leader.run_state.members
    world.pause(others[0], 1.0)
    assert not multi_step_faults.corrupt_half(world, 1)
    world.run(until_s=world.clock.now + 1.5)
    assert multi_step_faults.corrupt_half(world, 1)
