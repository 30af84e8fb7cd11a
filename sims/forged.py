"""Runs clusters in which one peer sends forged messages: `python -m sims.forged --seeds 300`.

The liar has a valid certificate: it is a founder, a member, a joiner, a witness, a voter, or the
leader of the time. Only exceptions, and logs from which no peer can go on, are violations: no
message of a peer may lead to one in another peer. What else forged messages lead to is not judged.
"""

import random
import traceback
from dataclasses import replace
from functools import partial

from sims.scenarios.forgery import LEADER, ForgedStepWorld, ForgedWorld, Forger
from sims.sweep import (
    RAISED,
    AsJson,
    First,
    Processes,
    SeedResult,
    Seeds,
    Story,
    again_with,
    draw_training,
    in_turn,
    report,
)
from sims.terminal import run

PEERS, ROUNDS, STEPS = 5, 60, 200
WITNESS = 4
"""The number, and so the name, of the witness that joins last."""
JOIN_AT_S = (5.0, 15.0, 25.0)
"""Virtual times at which more peers join."""
LIE_FROM_S, END_S = 0.5, 90.0
LIARS = ("p0", "p1", "p3", f"p{WITNESS}", f"p{PEERS}", LEADER)
"""The founder, two members, the witness, the first late joiner, and any leader."""


def run_seed(seed: int) -> SeedResult:
    """Run one cluster; every third one is a stepwise run. In half of them leaders and admissions
    need signatures, which the liar cannot make; in the others its claims get further."""
    source = random.Random(seed)  # noqa: S311 (a simulation, no secrets)
    forger, stepwise, certified = Forger(seed ^ 0xF06), seed % 3 == 2, seed % 2 == 1
    world: ForgedStepWorld | ForgedWorld
    if stepwise:
        world = ForgedStepWorld(
            seed, peers=WITNESS, outer_steps=STEPS, witness=True, certified=certified
        )
    else:
        training = replace(draw_training(seed), certified=certified)
        world = ForgedWorld(seed, peers=WITNESS, outer_steps=ROUNDS, training=training)
        world.add_peer(witness=True)
    for at_s in JOIN_AT_S:
        world.clock.at(at_s, partial(_join, world))
    world.clock.at(LIE_FROM_S, partial(world.lie, forger, liar=source.choice(LIARS)))
    violations: list[str] = []
    try:
        world.run(until_s=END_S)
    except RAISED:
        violations = traceback.format_exc().splitlines()[-8:]
    violations += [world.ruined] if world.ruined else []
    return SeedResult(
        seed=seed,
        virtual_s=world.clock.now,
        commits=0,
        happened={f"forged {kind}": number for kind, number in forger.made.items()},
        log={},
        moves={},
        comparisons=world.twin_cores.comparisons,
        violations=violations,
        story=world.story.lines,
    )


def _join(world: ForgedWorld | ForgedStepWorld) -> None:
    if world.live:
        world.add_peer()


def main(
    seeds: Seeds = 300,
    first: First = 0,
    processes: Processes = 2,
    show: Story = False,
    as_json: AsJson = False,
) -> None:
    """Run simulated clusters with a peer that sends forged messages; exit with 1 if one of them
    raises an exception in another peer. A seed has up to 3,000 forged messages.

    \\b
    Examples:
      python -m sims.forged --seeds 400 --json
      python -m sims.forged --first 4711 --seeds 1 --story
    """
    running = in_turn(run_seed, range(first, first + seeds), processes=min(processes, seeds))
    again = partial(again_with, "sims.forged", mutant="")
    report(running, seeds, again, show=show, as_json=as_json)


if __name__ == "__main__":
    run(main)
