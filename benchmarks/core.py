"""What an event costs a core: `python -m benchmarks.core record` and `... replay`.

`record` plays simulated clusters (rounds with several fragments, 24 peers, a stepwise run) without
faults and keeps all events of each peer. `replay` gives them to fresh cores and prints the user
time of an event, in us, by scene: the least of some repeats. To compare two trees, record in one
and replay the same file with both, in turn. Must NOT know anything of the core but its interface.
"""

import gc
import pickle
import resource
from pathlib import Path
from typing import Annotated

import typer

from protocols import commands as c
from protocols import events as v
from protocols.core import PeerCore
from protocols.hellos import Identity
from sims.ranks import Training
from sims.stepwise import StepWorld
from sims.world import World

Life = tuple[Identity, str, list[tuple[float, v.Event]]]
"""(who, where it joins, its events with their times)."""
Recorded = dict[str, list[Life]]
"""By scene, of each peer."""
REPEATS = 5
app = typer.Typer(add_completion=False)


def play(scene: str) -> list[Life]:
    """A cluster from start to end; what each of its peers lived through."""
    lives: dict[str, Life] = {}
    handle = PeerCore.handle

    def note(core: PeerCore, event: v.Event, now: float) -> list[c.Command]:
        if type(core) is PeerCore:  # And no twin.
            contact = next(iter(lives.values()))[0].address if lives else ""
            lives.setdefault(core.me.peer, (core.me, contact, []))[2].append((now, event))
        return handle(core, event, now)

    PeerCore.handle = note
    try:
        made = world_of(scene)
        made.run(until_s=600.0)
    finally:
        PeerCore.handle = handle
    return list(lives.values())


def world_of(scene: str) -> World:
    if scene == "steps":
        made: World = StepWorld(7, peers=4, outer_steps=400)
    else:
        training = Training(fragments=8 if scene == "fragments" else 1)
        made = World(7, peers=24 if scene == "24 peers" else 4, outer_steps=24, training=training)
    made.dialling.gates.close()
    return made


SCENES = ("rounds", "fragments", "24 peers", "steps")


@app.command()
def record(file: Annotated[Path, typer.Option(help="Where the events go.")]) -> None:
    """Play the scenes, and keep what happened."""
    file.write_bytes(pickle.dumps({scene: play(scene) for scene in SCENES}))


@app.command()
def replay(file: Annotated[Path, typer.Option(help="What `record` kept.")]) -> None:
    """Give the events to cores of this tree, and print what one costs."""
    recorded: Recorded = pickle.loads(file.read_bytes())
    gc.disable()
    for scene, peers in recorded.items():
        total = sum(len(events) for _, _, events in peers)
        print(f"{scene}: {min(_us(peers) for _ in range(REPEATS)) / total:.2f} us, {total} events")


def _us(peers: list[Life]) -> float:
    cores = [PeerCore(me, join=bool(contact), contact=contact) for me, contact, _ in peers]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    for core, (_, _, events) in zip(cores, peers, strict=True):
        for now, event in events:
            core.handle(event, now)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_utime - before) * 1e6


if __name__ == "__main__":
    app()
