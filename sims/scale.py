"""Counts the messages of each peer as a run grows: `python -m sims.scale --peers 200 --json`.

The world is simulated, and has no faults. Messages are counted between two commits, so that joins
are not included. Must NOT judge the figures: they are in docs/limits.md, their bounds in the tests.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated

import typer

from lowcomm.startup import INTERVALS_AHEAD
from protocols.interface import events as v
from protocols.messages import peer as m
from protocols.types import PEERS_MAX, ConfigError, PeerId
from sims.checkers import World
from sims.node.storage import COMPACT_ENTRIES
from sims.node.toy_model import Value

WARM_UP_ROUNDS = 2
"""Rounds that are not counted: the first round begins while the last peers join."""
GROWTH = (10, 25, 50, 100, 200)
VIRTUAL_S_MAX = 3600.0
DELAY_S = 0.01
COMPUTE_S = 0.01


@dataclass(frozen=True, slots=True)
class Load:
    """Messages that the peers of one role sent and received, per peer and counted round."""

    peers: int
    sent: float
    received: float
    sent_max: float
    """Messages of the busiest peer, per counted round."""
    received_max: float
    bulk_sent: float
    bulk_received: float
    beats_sent_per_s: float
    """Heartbeats per peer and virtual second."""
    beats_received_per_s: float
    sent_by_type: dict[str, float]
    received_by_type: dict[str, float]


@dataclass(frozen=True, slots=True)
class ScaleFigures:
    """The figures of one run."""

    peers: int
    rounds: int
    """Number of committed rounds."""
    wall_s: float
    cpu_s: float
    virtual_s: float
    joining_virtual_s: float
    """Virtual seconds until the first round was committed."""
    round_s: float
    """Mean virtual seconds of a counted round."""
    ordinary: Load | None
    relays: Load | None
    leader: Load
    violations: list[str]


@dataclass(slots=True)
class Tally:
    """Messages that one peer sent and received in the counted rounds."""

    sent: Counter[str] = field(default_factory=Counter[str])
    received: Counter[str] = field(default_factory=Counter[str])
    bulk_sent: int = 0
    bulk_received: int = 0
    beats_sent: int = 0
    beats_received: int = 0


class CountingWorld(World):
    """A world that counts messages handed to the network, from the end of the warm-up to the last
    commit."""

    def __init__(self, seed: int, *, peers: int, rounds: int) -> None:
        self.tallies: dict[PeerId, Tally] = {}
        self.committed_at: list[float] = []
        """Virtual time of each commit, from the first round on."""
        self.leader: PeerId | None = None
        self.relays: frozenset[PeerId] = frozenset()
        self._warm_up, self._rounds = min(WARM_UP_ROUNDS, rounds - 1), rounds
        self._news: dict[tuple[PeerId, PeerId, type], tuple[int, int]] = {}
        super().__init__(seed, peers=peers, outer_steps=rounds)
        self.network.delay_s = DELAY_S
        self.settings = replace(self.settings, compute_s=COMPUTE_S)

    @property
    def counted_s(self) -> float:
        """Virtual seconds of the counted rounds."""
        return self.committed_at[-1] - self.committed_at[self._warm_up - 1]

    def draw_compaction(self, seed: int) -> int:
        """The entries after which a real node makes a snapshot."""
        return COMPACT_ENTRIES[-1]

    def draw_rounds_ahead(self, seed: int) -> int:
        return INTERVALS_AHEAD

    def carry(
        self, sender: PeerId, to: PeerId, purpose: str, event: v.Event, value: Value = 0
    ) -> None:
        if len(self.checkers.commits) > len(self.committed_at):
            self._committed()
        counting = self._warm_up <= len(self.committed_at) < self._rounds
        if isinstance(event, v.MessageReceived):
            beat = self._is_beat(sender, to, event.message)
            if counting:
                self._count(sender, to, type(event.message).__name__, beat=beat)
        elif counting:
            self._of(sender).bulk_sent += 1
            self._of(to).bulk_received += 1
        super().carry(sender, to, purpose, event, value)

    def _committed(self) -> None:
        self.committed_at.append(self.clock.now)
        for node in self.leaders:
            self.leader = node.peer
            led_term = node.core.led_term
            if led_term is not None:
                plan = led_term.relay_plan
                self.relays = frozenset(plan.via.values())

    def _count(self, sender: PeerId, to: PeerId, kind: str, *, beat: bool) -> None:
        if beat:
            self._of(sender).beats_sent += 1
            self._of(to).beats_received += 1
        else:
            self._of(sender).sent[kind] += 1
            self._of(to).received[kind] += 1

    def _of(self, peer: PeerId) -> Tally:
        tally = self.tallies.get(peer)
        if tally is None:
            tally = self.tallies[peer] = Tally()
        return tally

    def _is_relayed(self, one: PeerId, other: PeerId) -> bool:
        led_term = self.nodes[one].core.led_term or self.nodes[other].core.led_term
        via = led_term.relay_plan.via if led_term is not None else {}
        return one in via or other in via

    def _is_beat(self, sender: PeerId, to: PeerId, message: m.Control) -> bool:
        """True if a message tells only that its sender lives: a heartbeat, or an append or its
        answer without news. Between the leader and a peer with a relay, each append without entries
        and each answer is one: entries pass through the relay."""
        if isinstance(message, m.Append | m.Appended) and self._is_relayed(sender, to):
            return not (isinstance(message, m.Append) and message.entries)
        match message:
            case m.Heartbeat() | m.HeartbeatReply():
                return True
            case m.Append(entries=(), term=term, commit_index=index):
                news = term, index
            case m.Appended(matches=True, term=term, index=index):
                news = term, index
            case _:
                return False
        key = sender, to, type(message)
        known = self._news.get(key)
        self._news[key] = news
        return known == news


def measure(peers: int, rounds: int, *, seed: int = 0) -> ScaleFigures:
    """Run one healthy world. Raises ConfigError if it does not commit all rounds."""
    began, cpu_began = time.monotonic(), time.process_time()
    world = CountingWorld(seed, peers=peers, rounds=rounds)
    world.run(until_s=VIRTUAL_S_MAX)
    if len(world.committed_at) < rounds or world.leader is None:
        raise ConfigError(f"{peers} peers committed {len(world.committed_at)} of {rounds} rounds")
    counted = rounds - min(WARM_UP_ROUNDS, rounds - 1)

    def load(who: Iterable[PeerId]) -> Load | None:
        return _load([world.tallies[peer] for peer in who], counted, world.counted_s)

    ordinary = world.tallies.keys() - world.relays - {world.leader}
    leader = load([world.leader])
    assert leader is not None
    return ScaleFigures(
        peers=peers,
        rounds=rounds,
        wall_s=round(time.monotonic() - began, 1),
        cpu_s=round(time.process_time() - cpu_began, 1),
        virtual_s=round(world.clock.now, 1),
        joining_virtual_s=round(world.committed_at[0], 1),
        round_s=round(world.counted_s / counted, 2),
        ordinary=load(ordinary),
        relays=load(world.relays),
        leader=leader,
        violations=world.checkers.violations,
    )


def _load(tallies: Sequence[Tally], rounds: int, seconds: float) -> Load | None:
    """The load of the peers of a role; None if there are none."""
    if not tallies:
        return None
    per = len(tallies) * rounds
    sent, received = [t.sent.total() for t in tallies], [t.received.total() for t in tallies]
    by_type = sum((t.sent for t in tallies), Counter[str]())
    from_type = sum((t.received for t in tallies), Counter[str]())
    return Load(
        peers=len(tallies),
        sent=round(sum(sent) / per, 2),
        received=round(sum(received) / per, 2),
        sent_max=round(max(sent) / rounds, 2),
        received_max=round(max(received) / rounds, 2),
        bulk_sent=round(sum(t.bulk_sent for t in tallies) / per, 2),
        bulk_received=round(sum(t.bulk_received for t in tallies) / per, 2),
        beats_sent_per_s=round(sum(t.beats_sent for t in tallies) / len(tallies) / seconds, 2),
        beats_received_per_s=round(
            sum(t.beats_received for t in tallies) / len(tallies) / seconds, 2
        ),
        sent_by_type={kind: round(n / per, 2) for kind, n in sorted(by_type.items())},
        received_by_type={kind: round(n / per, 2) for kind, n in sorted(from_type.items())},
    )


def main(
    peers: Annotated[int, typer.Option(help="Number of peers.", min=3, max=PEERS_MAX)] = 200,
    rounds: Annotated[int, typer.Option(help="Outer steps to commit.", min=2)] = 50,
    growth: Annotated[
        bool, typer.Option("--growth", help="Measure 10, 25, 50, 100 and 200 peers.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the peers' speeds and the lines' jitter.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Count the messages that each peer of a healthy simulated run sends and receives.

    Per peer and round: control messages and bulk payloads; heartbeats per peer and second.

    \b
    Examples:
      python -m sims.scale --peers 200 --rounds 50 --json
      python -m sims.scale --growth --rounds 20
    """
    results: list[ScaleFigures] = []
    sizes = GROWTH if growth else (peers,)
    for number, size in enumerate(sizes, start=1):
        if sys.stderr.isatty():
            line = f"\r{number} of {len(sizes)}: {size} peers, {rounds} rounds"
            print(line, end="", file=sys.stderr, flush=True)  # noqa: T201
        results.append(measure(size, rounds, seed=seed))
    if sys.stderr.isatty():
        print(file=sys.stderr)  # noqa: T201
    if as_json:
        runs = [asdict(result) for result in results]
        print(json.dumps({"growth": runs} if growth else runs[0]))  # noqa: T201
    else:
        print(table(results))  # noqa: T201
    sys.exit(1 if any(result.violations for result in results) else 0)


def table(results: Sequence[ScaleFigures]) -> str:
    """The results as a Markdown table, one line per size."""
    lines = [
        "| peers | wall s | ordinary: sent, received | relay: sent, received "
        "| leader: sent, received | heartbeats/s: ordinary, relay, leader |",
        "|---|---|---|---|---|---|",
    ]
    for x in results:
        roles = [f"{r.sent}, {r.received}" if r else "-" for r in (x.ordinary, x.relays, x.leader)]
        beats = [str(r.beats_sent_per_s) if r else "-" for r in (x.ordinary, x.relays, x.leader)]
        lines.append(f"| {x.peers} | {x.wall_s} | {' | '.join(roles)} | {', '.join(beats)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
