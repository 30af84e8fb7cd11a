"""Faults of several steps, each of which creates a situation that chance seldom creates.

All of their steps may happen to real peers. Must NOT draw the times of faults (fault_plan.py), nor
judge the outcome: the checkers do.
"""

import itertools
from collections.abc import Callable
from functools import partial

from protocols.interface import events as v
from sims.checkers import World
from sims.node.node import Node
from sims.node.toy_model import PRIME

LOOK_S = 0.1
DEAF_S = 20.0
"""Seconds that a peer is deaf, at most."""
LATE_S = (1.0, 4.0)
"""Least and most seconds by which one peer reads a Restore late; it contributes meanwhile."""
SLOW_S = 3.0
VANISH_S = 12.0
BACK_S = 0.5
"""Seconds in which the restarted peers are back; they do not count as lost."""


def when(
    world: World, is_so: Callable[[], bool], then: Callable[[], None], *, look_s: float = LOOK_S
) -> None:
    """Check `is_so` every `look_s` seconds; call `then` once it is true, or all faults have
    ended."""
    if is_so() or world.faults.ambush is None:
        then()
    else:
        world.clock.at(look_s, lambda: when(world, is_so, then, look_s=look_s))


def relapse(world: World, careful: Node, *, torn: bool) -> None:
    """Once rounds go on, kill all peers, and again a round after the Restore to a checkpoint. The
    peers that come back late have the newest checkpoint, of a state that the Restore took back.
    `careful` keeps a checkpoint of each round from now on; `torn`: no other peer had completed the
    newest one."""
    careful.disk.checkpoint_every = 1

    def goes_on() -> bool:
        """True if rounds go on, and no earlier relapse is under way, since its victims would
        die."""
        able = {node.peer for node in world.live if not node.lacks_state}
        since = [
            (head.lineage, head.restored.tokens if head.restored is not None else 0)
            for head in world.heads
            if head.views and able.issuperset(head.members)
        ]
        kept = [node.disk.kept for node in world.live if node.disk.kept is not None]
        return any(x.lineage == lineage and x.tokens > n for x in kept for lineage, n in since)

    def then() -> None:
        if world.faults.ambush is not None:  # Once all faults have ended, no peer dies.
            _all_die_twice(world, torn=torn)

    when(world, goes_on, then)


def _all_die_twice(world: World, *, torn: bool) -> None:
    newest = {node: node.disk.kept for node in world.live}
    kept = {node: one.tokens if one is not None else 0 for node, one in newest.items()}
    late = [node for node in kept if kept[node] == max(kept.values())]
    if torn or 2 * len(late) >= len(kept):  # Most peers must go back to an older checkpoint.
        for node in late[1:]:
            node.disk.tear()
        late = late[:1]
    for node in list(kept):
        world.kill(node)
        if node not in late:
            world.revive(node, world.random.uniform(0.05, 1.0))
    agreement = world.checkers.history.agreement
    restored = agreement.rollbacks

    def goes_on_again() -> None:
        """Wait for a commit: until then the peers keep the checkpoint that the log went back to."""
        commits = len(world.checkers.commits)
        when(world, lambda: len(world.checkers.commits) > commits, all_again, look_s=0.02)

    def all_again() -> None:
        for node in world.live if world.faults.ambush is not None else ():
            world.kill(node)
            world.revive(node, world.random.uniform(0.5, 1.0))
        for node in late:
            world.revive(node, 0.05)

    when(world, lambda: agreement.rollbacks > restored, goes_on_again)


def hears_nobody(world: World, victim: Node, seconds: float) -> None:
    """Stall all messages to the victim; its own messages still arrive."""
    world.story.tell(f"{victim.peer} hears no peer")
    for other in world.live:
        if other is not victim:
            world.network.stall(other.peer, victim.peer, world.clock.now + seconds)


def holders(world: World) -> list[Node]:
    """The live members, by the state of the leader: a peer that was excluded may not know it
    yet."""
    heads = world.heads
    known = heads[-1].members if heads else None
    here = [node for node in world.live if node.member_status.is_member]
    return here if known is None else [node for node in here if node.peer in known]


def is_done(node: Node, fragment: int) -> bool:
    """True if, as far as the node knows, the last round of the fragment is committed."""
    run_state = node.run_state
    return run_state.run is not None and run_state.committed(fragment) >= run_state.run.outer_steps


def corrupt(world: World, victim: Node, by: int, *, fragment: int) -> None:
    """Change a peer's outer state without its knowledge."""
    world.story.tell(f"the state of {victim.peer} is corrupted")
    victim.states.outers[fragment] = (victim.states.outers[fragment] + by) % PRIME
    part = victim.core.part
    victim.states.corrupt[fragment] = (
        part.steps.ranks if part.steps else part.rounds[fragment]
    ).version
    agreement = world.checkers.history.agreement
    agreement.corrupted = True


def corrupt_half(world: World, by: int) -> bool:
    """Give one wrong state to half of the peers, the leader among them, and if their number is odd,
    another one to one more: no state has a majority, and the leader's report must not decide. False
    if that is not possible now."""
    peers, training = holders(world), world.settings.training
    sound = [n for n in peers if not (n.states.corrupt or n.lacks_state)]
    if len(peers) < 2 or sound != peers or not world.leaders or training.gossip:
        return False
    run_state = world.leaders[-1].core.run_state
    if not run_state.members.keys() <= {node.peer for node in peers}:
        return False  # A member that may come back could decide, and the others wait for it.
    rounds = [one for node in peers for one in node.core.rounds]
    if any(one.version < run_state.committed(one.fragment) - 1 for one in rounds):
        return False  # A peer that is behind may soon ask for a state: its own does not count then.
    ends, now = itertools.combinations([node.peer for node in peers], 2), world.clock.now
    silent = any(now < node.turns.paused_until or node.process.asked_to_leave for node in peers)
    if silent or not all(world.network.reachable(one, other, now) for one, other in ends):
        return False  # A peer that is lost before its report leaves a majority to the wrong state.
    half, fragment = len(peers) // 2, by % training.fragments
    if any(is_done(node, fragment) for node in peers):
        return False  # No peer makes that state again.
    world.random.shuffle(peers)
    peers.sort(key=lambda node: not node.core.leads)
    for victim in peers[:half]:
        corrupt(world, victim, by, fragment=fragment)
    for victim in peers[half : len(peers) - half]:
        corrupt(world, victim, by + 1, fragment=fragment)
    return True


def read_late(world: World, leader: Node) -> bool:
    """Stall the messages with a Restore to one live peer, which reads it when the others go on
    already. False if a peer is late already: without two peers there may be no majority."""
    others = [node for node in world.live if node is not leader]
    lines = [world.network.line(leader.peer, node.peer) for node in others]
    now = world.clock.now
    if not lines or any(line.stalled_until.get(leader.peer, 0.0) > now for line in lines):
        return False
    late = world.random.choice(others)
    world.story.tell(f"{late.peer} reads late that the log went back")
    world.network.stall(leader.peer, late.peer, now + world.random.uniform(*LATE_S))
    return True


def leave_as_the_only_holder(world: World) -> bool:
    """Restart all peers but the leader, without a state, and ask the leader to leave as soon as one
    of them can lead: the new leader must keep it until it has passed its state on. False if that is
    not possible now."""
    leading, others = world.leaders[:1], [node for node in world.live if not node.core.leads]
    if len(others) < 2 or not any(node.run_state.views for node in leading):
        return False
    (leader,) = leading
    for node in others:
        world.kill(node)
        world.revive(node, world.random.uniform(0.05, BACK_S))
    links, log = leader.core.links, leader.raft.log

    def ask() -> None:
        # Once all faults have ended, no peer leaves: `World.heal` has counted on its vote.
        if leader.running and world.faults.ambush is not None:
            ask_to_leave(world, leader)

    when(
        world,
        lambda: not leader.running or not links.up.isdisjoint(log.voters),
        ask,
        look_s=0.01,
    )
    return True


def vanish(world: World) -> bool:
    """Let only two peers train for a while, with slow bulk to the others: when their round is
    committed, no other peer has its result yet, and they die. False if that is not possible now."""
    pair = [node for node in world.live if node.member_status.is_member and not node.core.leads][:2]
    others = [node for node in world.live if node not in pair]
    if len(pair) < 2 or len(others) < 3 or not world.leaders:
        return False
    world.story.tell(f"only {pair[0].peer} and {pair[1].peer} train")
    names = {node.peer for node in pair}
    for other in others:
        other.after(0.0, partial(other.lose_trainers, VANISH_S))

    def they_are_alone() -> bool:
        plans = [
            pair[0].core.run_state.open_plan(f) for f in range(world.settings.training.fragments)
        ]
        return all(plan is not None and names.issuperset(plan.roster) for plan in plans)

    def slow_down() -> None:
        for one, other in itertools.product(
            pair, others if world.faults.ambush is not None else ()
        ):
            line = world.network.line(one.peer, other.peer)
            line.slow_until, line.slow_s = world.clock.now + VANISH_S, VANISH_S
        seen = len(world.checkers.commits)
        when(world, lambda: len(world.checkers.commits) > seen, strike, look_s=0.01)

    def strike() -> None:
        for node in pair if world.faults.ambush is not None else ():
            if node.running:
                world.kill(node)
                world.revive(node, VANISH_S)

    when(world, they_are_alone, slow_down, look_s=0.01)
    return True


def ask_to_leave(world: World, victim: Node) -> None:
    world.story.tell(f"{victim.peer} is asked to leave")
    victim.process.asked_to_leave = True
    victim.give(v.LeaveRequested("a person asked"))


def is_spare(world: World, sender: Node) -> bool:
    """True if the round that the sender contributes to can be committed without its further
    messages."""
    plan, leaders = sender.run_state.open_plan(0), world.leaders
    if plan is None or not leaders or sender in leaders:
        return False
    here = {leaders[-1].peer, *leaders[-1].core.raft.up}
    return sender.peer not in plan.summing and here.issuperset(plan.roster)


def outvoted(world: World, without: Node) -> bool:
    """True if most of the remaining holders would have wrong states, once this node and those that
    are cut off are lost. No peer could tell then which states are right: a run in which those of
    the majority are true would look the same."""
    leader, now = world.leaders[-1:], world.clock.now
    staying = [
        node
        for node in holders(world)
        if node is not without
        if all(world.network.reachable(one.peer, node.peer, now) for one in leader)
    ]
    return 2 * sum(bool(node.states.corrupt) for node in staying) > len(staying)


def deafen(world: World, victim: Node) -> None:
    """Stall all messages to the victim, and end its connections once its own messages have arrived,
    until its round and two more are committed: the result of its round is dropped soon. Then make
    the others slow, so that its work is not too old when it gets a state."""
    if outvoted(world, victim):
        return
    round_ = victim.run_state.committed(0) + 1
    hears_nobody(world, victim, DEAF_S)

    def cut_off() -> None:
        for other in world.live if world.faults.ambush is not None else ():
            if other is not victim:
                world.dialer.cut_connection(victim, other)

    def is_behind() -> bool:
        return max(node.run_state.committed(0) for node in world.nodes.values()) >= round_ + 2

    def let_in() -> None:
        if world.faults.ambush is not None:
            others = [node.peer for node in world.live if node is not victim]
            for one in others:
                for other in others:
                    line = world.network.line(one, other)
                    line.slow_until, line.slow_s = world.clock.now + SLOW_S, SLOW_S
        world.network.let_in(victim.peer)

    victim.after(world.network.slowest_s, cut_off)
    when(world, is_behind, let_in)
