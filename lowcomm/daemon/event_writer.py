"""Writes events about a running daemon, and answers `lowcomm status`. Must NOT change anything."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowcomm.daemon.gauges import figures_of, gauges_of, served
from lowcomm.daemon.token_list import paused_at
from lowcomm.daemon.tried_addresses import FOR_OTHERS, with_tried
from lowcomm.rank_control.program_notices import FIRST_STEP, node_wait
from peers.metrics import PURPOSES, RATE_WINDOW_S, watch
from protocols.acts import described
from protocols.messages import log_entries as e
from protocols.state import step_view

if TYPE_CHECKING:
    from pathlib import Path

    from lowcomm.rank_control.context import DaemonContext
    from lowcomm.reports.event_log import EventLog
    from peers.metrics import Counters, Figures, PeerTraffic
    from peers.ranks import RankGroup
    from protocols.interface import Applied, Stop
    from protocols.peer import PeerCore
    from protocols.state import RunState
    from protocols.types import PeerId

METRICS_INTERVAL_S = 1.0
TRAFFIC_INTERVAL_S = RATE_WINDOW_S
"""Seconds between two checks. Equal to the window of the rates, so that the rates of one event
begin where those of the last one ended."""
TRAFFIC_PEER_S = 0.5
"""At least so many seconds for each peer lie between two events, since an event grows with the
peers."""
TRAFFIC_IDLE_S = 60.0
"""So many seconds more lie between two events while neither payload nor state moves."""


async def report(context: DaemonContext, group: RankGroup) -> None:
    """Write metrics, waits and traffic until cancelled, and serve Prometheus if configured. Raises
    ConfigError."""

    def figures() -> Figures:
        driver, gauges = context.driver, gauges_of(context)
        return figures_of(driver.counters, driver.discarded, context.run_config, gauges)

    async with (
        served(context.node.metrics, context.event_log, figures),
        asyncio.TaskGroup() as tasks,
    ):
        traffic = report_traffic(
            context.event_log, context.driver.counters, method=lambda: _method(context)
        )
        tasks.create_task(traffic, name="traffic")
        tasks.create_task(report_metrics(context, group), name="metrics")


async def report_metrics(context: DaemonContext, group: RankGroup) -> None:
    """Until cancelled, about each second, write the metrics, and the reason of a new wait."""
    loop, samples = asyncio.get_running_loop(), (0, 0)
    told: tuple[str, ...] = ()
    while True:
        await asyncio.sleep(METRICS_INTERVAL_S)
        wait, faults = node_wait(context, group, loop.time()), context.mesh.dial_faults()
        why: tuple[str, ...] = ()
        if wait.phase in FOR_OTHERS:
            why = (wait.reason, *sorted(faults))  # Not each other fault of a named address.
        elif wait.reason.startswith(FIRST_STEP):
            why = (wait.reason,)
        if why and why != told:
            context.event_log.write("waiting", reason=with_tried(wait, faults).reason)
        told = why
        samples = tell_samples(context, told=samples)
        figures = context.figures
        if figures.steps:
            sent, received = context.mesh.bytes_moved()
            context.event_log.write(
                "metrics",
                step=figures.steps,
                tokens=figures.tokens,
                loss=figures.loss,
                tokens_per_s=figures.tokens_per_s,
                bytes_sent=sent,
                bytes_received=received,
            )


async def report_traffic(
    event_log: EventLog, counters: Counters, *, method: Callable[[], str] = str
) -> None:
    """Until cancelled, count the traffic and write it. `method` returns the name of the run's
    method, "" while it is not known."""
    async with asyncio.TaskGroup() as group:
        group.create_task(watch(counters), name="counters")
        pace = TrafficInterval()
        while True:
            await asyncio.sleep(TRAFFIC_INTERVAL_S)
            peers = counters.traffic(time.monotonic())
            if pace.is_due(_moved_bytes(peers), time.monotonic(), peers=len(peers)):
                tell_traffic(event_log, counters, method=method())


@dataclass(slots=True)
class TrafficInterval:
    """Decides when a traffic event is written: often while payload moves, rarely while none
    does."""

    told_bytes: int = 0
    told_at: float | None = None

    def is_due(self, moved_bytes: int, now: float, *, peers: int) -> bool:
        """Whether to write an event now; the caller then writes it. Call this each
        TRAFFIC_INTERVAL_S."""
        self.told_at = now if self.told_at is None else self.told_at
        idle = moved_bytes == self.told_bytes
        # An event grows with the peers; the bytes written in an hour need not.
        if now - self.told_at < min(TRAFFIC_IDLE_S, TRAFFIC_PEER_S * peers + TRAFFIC_IDLE_S * idle):
            return False
        self.told_bytes, self.told_at = moved_bytes, now
        return True


def _moved_bytes(peers: Sequence[PeerTraffic]) -> int:
    """Bytes of payloads and states, in both directions."""
    return sum(
        each.sent[purpose] + each.received[purpose]
        for each in peers
        for purpose in PURPOSES
        if purpose != "control"
    )


def tell_traffic(event_log: EventLog, counters: Counters, *, method: str = "") -> None:
    """Write the present traffic as an event. Seconds are rounded to 1 us (stalled_s: 1 ms), rates
    to 1 byte/s."""
    peers, lag = counters.traffic(time.monotonic()), counters.lag()
    moved = {
        f"{purpose}_{direction}_bytes": [getattr(each, direction)[purpose] for each in peers]
        for purpose in PURPOSES
        for direction in ("sent", "received")
    }
    event_log.write(
        "traffic",
        method=method,
        peers=[each.peer for each in peers],
        **moved,
        refused_bytes=[each.refused_bytes for each in peers],
        stalls=[each.stalls for each in peers],
        stalled_s=[round(each.stalled_s, 3) for each in peers],
        round_trip_s=[round(each.round_trip_s or 0.0, 6) for each in peers],
        sent_bytes_per_s=float(round(sum(each.sent_per_s for each in peers))),
        received_bytes_per_s=float(round(sum(each.received_per_s for each in peers))),
        lag_p50_s=round(lag.p50_s, 6),
        lag_p99_s=round(lag.p99_s, 6),
        lag_max_s=round(lag.max_s, 6),
    )


def _method(context: DaemonContext) -> str:
    run = context.run_config
    return run.method.name if run is not None else ""


def tell_samples(context: DaemonContext, *, told: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """If the counts of samples differ from `told`, write them as an event. Returns the counts."""
    now = _samples(context)
    if now != told:
        context.event_log.write("samples", committed=now[0], again=now[1])
    return now


def tell_end(context: DaemonContext, stop: Stop, *, contact: str, kept: Path) -> None:
    """Write the last event; a failure also goes to stderr. `contact`: the address at which to join
    again; `kept`: the directory for branches that were given up."""
    event_log, core = context.event_log, context.core
    tell_traffic(event_log, context.driver.counters, method=_method(context))
    sent, received = context.mesh.bytes_moved()
    if stop.outcome == "finished" and context.replica is not None:
        version, digest = context.replica.version(0)
        tell_samples(context)
        event_log.write(
            "finished",
            outer_steps=version,
            bytes_sent=sent,
            bytes_received=received,
            state_digest=digest,
        )
    elif stop.outcome == "dropped":
        event_log.write("gave_up", why=stop.why, contact=contact, kept=str(kept / core.me.peer))
    elif stop.outcome == "left":
        event_log.write("stopped", why=stop.why)
    else:
        event_log.record("stopped", why=stop.why)
        print(f"lowcomm: {stop.why}", file=sys.stderr)  # noqa: T201


def _samples(context: DaemonContext) -> tuple[int, int]:
    """Counts of samples: (committed, leased again). A stepwise log counts batches of `data.batch`
    samples; a batch is leased only once its peer is certain, so never again."""
    run_state, run = context.core.run_state, context.run_config
    if run_state.stepwise:
        return (run_state.tokens * run.data.batch if run is not None else 0), 0
    return run_state.ledger.consumed, run_state.ledger.again


def status_json(context: DaemonContext, group: RankGroup) -> str:
    """One JSON object: the daemon's state, the peers that it waits for, its progress and its
    traffic."""
    core, figures, now = context.core, context.figures, asyncio.get_running_loop().time()
    wait = with_tried(node_wait(context, group, now), context.mesh.dial_faults())
    sent, received = context.mesh.bytes_moved()
    run, run_state = core.run_state.run, core.run_state
    counters = context.driver.counters
    traffic, lag = counters.traffic(time.monotonic()), counters.lag()
    heartbeats, busy_lag = counters.heartbeats(time.monotonic()), counters.busy_lag()
    return json.dumps(
        {
            "peer": core.me.peer,
            "name": core.me.name,
            "state": wait.phase,
            "reason": wait.reason,
            "since_s": now - wait.since,
            "until_s": wait.until - now if wait.until < float("inf") else None,
            "paused_at": paused_at(run_state),
            "inner_steps": figures.steps,
            "tokens": figures.tokens,
            "samples": _samples(context)[0],
            "samples_again": _samples(context)[1],
            "tokens_per_s": figures.tokens_per_s,
            "loss": figures.loss,
            "bytes_sent": sent,
            "bytes_received": received,
            "sent_bytes_per_s": sum(each.sent_per_s for each in traffic),
            "received_bytes_per_s": sum(each.received_per_s for each in traffic),
            "lag_p50_s": lag.p50_s,
            "lag_p99_s": lag.p99_s,
            "lag_max_s": lag.max_s,
            "busy_lag_p99_s": busy_lag.p99_s,
            "busy_lag_max_s": busy_lag.max_s,
            "heartbeat_late_p99_s": heartbeats.p99_s,
            "heartbeat_late_max_s": heartbeats.max_s,
            "outer_step": run_state.committed(0) if run else 0,
            "outer_steps": run.outer_steps if run else 0,
            "roster": list(run_state.views[-1].roster) if run_state.views else [],
            "members": {peer: info.name for peer, info in run_state.members.items()},
            "leader": core.leader_id or "",
            "ranks": context.node.ranks,
            "address": core.me.address,
            "listen_cpu_s": context.listen_cpu_s,
            "discarded": context.driver.discarded,
        }
    )


def tell_entry(event_log: EventLog, command: Applied, core: PeerCore, *, step_tokens: int) -> None:
    """Write a log entry as an event; some kinds of entries have none. `Daemon.applied` writes the
    commits of rounds. Commits of steps are written here, except by a witness, which has no state.
    `step_tokens`: tokens of one node in one inner step."""
    entry, name_of = command.entry, core.name_of
    match entry:
        case e.Member(info=info):
            event_log.write("member", member=info.peer, member_name=info.name, index=command.index)
        case e.Left(peer=peer, why=why) | e.Lost(peer=peer, why=why):
            kind = "left" if isinstance(entry, e.Left) else "lost"
            event_log.write(kind, member=peer, member_name=name_of(peer), why=why)
        case e.Voter(peer=peer, votes=False, why=why):
            text = f"{name_of(peer)} does not vote any more: {why}"
            event_log.write("note", topic="voters", text=text)
        case e.Elected(peer=peer):
            event_log.write("elected", leader=peer, leader_name=name_of(peer), index=command.index)
        case e.Restore() if entry.fork:
            event_log.write("forked", **fork_fields(entry, name_of))
        case e.BranchDropped(peer=peer, tokens=tokens):
            tokens *= (
                step_tokens if core.run_state.stepwise else 1
            )  # A stepwise log counts batches.
            event_log.write("dropped", member=peer, member_name=name_of(peer), tokens=tokens)
        case e.Witness(info=info):
            event_log.write("witness", member=info.peer, member_name=info.name)
        case e.TokenSpent(peer=peer):
            event_log.write("note", topic="admission", text=f"{peer} is admitted with a token")
        case e.Revoked() | e.TokenRevoked():
            event_log.write("note", topic="revoked", text=described(entry))
        case e.Steered():
            event_log.write("note", topic="act", text=described(entry))
        case e.TokenIssued():
            event_log.write("note", topic="admission", text=described(entry))
        case e.Restore(versions=versions, inner_step=inner_step):
            event_log.write("restored", round=versions[0].round, inner_step=inner_step)
        case e.View(view=view, roster=roster, parts=parts, first_round=first):
            owners = sorted({owner for each in parts for owner in each.owners})
            event_log.write(
                "view", view=view, roster=list(roster), owners=owners, first_round=first[0]
            )
        case e.Attempt():
            event_log.write(
                "attempt",
                fragment=entry.fragment,
                round=entry.round,
                attempt=entry.attempt,
                roster=list(entry.roster),
                why=entry.why,
            )
        case e.StepCommit(upto_step=step, state_digest=digest) if not core.me.witness:
            roster = core.run_state.views[-1].roster
            event_log.write(
                "commit",
                fragment=0,
                round=step,
                attempt=0,
                roster=list(roster),
                tokens=step_tokens * _payloads_of(core.run_state, step),
                counted=core.me.peer in roster,
                state_digest=digest,
                inner_step=step,
                lineage=f"{command.lineage:016x}",
            )
        case e.Halt(view=view, why=why):
            event_log.write("note", topic="steps", text=f"view {view} stops: {why}")
        case _:
            pass


def _payloads_of(run_state: RunState, upto_step: int) -> int:
    """Number of payloads in the steps that a commit adds."""
    assert run_state.run is not None
    every = run_state.run.commit_every_steps
    first = (upto_step - 1) // every * every + 1
    views = [step_view(run_state, step) for step in range(first, upto_step + 1)]
    return sum(len(view.roster) for view in views if view is not None)


def fork_fields(fork: e.Restore, name_of: Callable[[PeerId], str]) -> dict[str, object]:
    """The fields of a "forked" event."""
    (voter,) = fork.voters
    return {
        "round": fork.versions[0].round,
        "inner_step": fork.inner_step,
        "voter": voter,
        "voter_name": name_of(voter),
        "lonely": fork.lonely,
    }
