"""CPU time of a core for one event: `python -m benchmarks core`.

It plays simulated clusters without faults (rounds, several fragments, 24 peers, a stepwise run),
records all events of each peer, feeds them to new cores, and prints the user time of an event in
us: the minimum of several repeats. Must NOT use anything of the core but its interface.
"""

import gc
import resource

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.links import Identity
from protocols.peer import PeerCore
from sims.checkers import StepWorld, World
from sims.node import Training

Life = tuple[Identity, str, list[tuple[float, v.Event]]]
"""(identity, address that it joins or "", its events with their times) of one peer."""
REPEATS = 5


def play(scene: str) -> list[Life]:
    """Run a cluster from start to end, and return the recorded events of each peer."""
    lives: dict[str, Life] = {}
    handle = PeerCore.handle

    def note(self: PeerCore, event: v.Event, now: float) -> list[c.Command]:
        if type(self) is PeerCore:  # Not a subclass.
            contact = next(iter(lives.values()))[0].address if lives else ""
            lives.setdefault(self.me.peer, (self.me, contact, []))[2].append((now, event))
        return handle(self, event, now)

    PeerCore.handle = note
    try:
        made = world_of(scene)
        made.run(until_s=600.0)
    finally:
        PeerCore.handle = handle
    return list(lives.values())


def world_of(scene: str) -> World:
    if scene == "steps":
        return StepWorld(7, peers=4, outer_steps=400, certified=True)
    training = Training(fragments=8 if scene == "fragments" else 1, certified=True)
    return World(7, peers=24 if scene == "24 peers" else 4, outer_steps=24, training=training)


SCENES = ("rounds", "fragments", "24 peers", "steps")


def main() -> None:
    gc.disable()
    for scene in SCENES:
        lives = play(scene)
        total = sum(len(events) for _, _, events in lives)
        print(f"{scene}: {min(_us(lives) for _ in range(REPEATS)) / total:.2f} us, {total} events")


def _us(peers: list[Life]) -> float:
    cores = [PeerCore(me, join=bool(contact), contacts=(contact,)) for me, contact, _ in peers]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    for core, (_, _, events) in zip(cores, peers, strict=True):
        for now, event in events:
            core.handle(event, now)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_utime - before) * 1e6


if __name__ == "__main__":
    main()
