"""Describes for people what a peer waits for: which peers, in which phase, since and until when
(I4). Must NOT change anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from protocols.acts.statements import author, reason_of
from protocols.types.clock import NEVER
from protocols.types.frozen import record
from protocols.types.ids import RoundKey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocols.messages.log_entries import Steered
    from protocols.peer.core import PeerCore
    from protocols.rounds.contributions import OwnContribution
    from protocols.rounds.fragment_rounds import FragmentRounds
    from protocols.steps.step_machine import StepMachine
    from protocols.types.ids import PeerId

_OTHERS_STATE = "start a node that has the state or a checkpoint of it again"
_STATE_LOST = (
    "this node has no complete checkpoint to go on from: put its checkpoints back, or "
    f"{_OTHERS_STATE}"
)
Phase = Literal["joining", "waiting", "training", "reducing", "finished", "stopping"]


@record
class WaitReason:
    """One wait; `since` and `until` are times of the core's clock, in seconds."""

    phase: Phase
    reason: str
    since: float
    until: float


def describe(core: PeerCore, now: float) -> WaitReason:
    """The wait of this peer that a person wants to know."""
    until, member_status, catchup = core.deadline, core.member_status, core.catchup
    log, joint_trainers = core.raft.log, member_status.joint_trainers
    if core.stopped or member_status.leaving:
        return WaitReason("stopping", member_status.leaving, now, until)
    if core.run_state.run is None and not log.voters:
        return WaitReason("joining", _first_entries(core), catchup.since, until)
    if member_status.disk_fails:
        return WaitReason("waiting", f"this node's disk: {member_status.disk_fails}", now, until)
    if core.leader_id is None or not (core.leads or core.leader_id in core.links.up):
        return WaitReason("waiting", _election(core), core.leader_watch.leaderless_since, until)
    if catchup.transfer is not None:
        donors = _names(core, catchup.transfer.givers)
        return WaitReason(
            "joining", f"state from {donors}", catchup.since, catchup.transfer.late_at
        )
    if catchup.asking:
        return WaitReason("joining", _place(core), catchup.since, until)
    if (pause := core.run_state.orders.paused) is not None and not core.finished:
        wait = _pause(core, pause, now)
        if wait is not None:
            return wait
    if not core.run_state.views:
        return WaitReason("waiting", _start(core), core.part.since, until)
    if core.finished:
        return WaitReason("finished", "", now, until)
    if core.part.steps is not None:
        return _stepping(core, core.part.steps, now)
    for rounds in core.rounds:
        own = rounds.work.own
        if own is not None:
            return WaitReason("reducing", _reduction(core, rounds, own), own.since, until)
    return WaitReason("training", "" if joint_trainers.started else "its ranks", now, until)


def _pause(core: PeerCore, pause: Steered, now: float) -> WaitReason | None:
    """The wait in a paused run; None while the last open round is made."""
    text = f"the run is paused by {author(pause)}{reason_of(pause)}"
    for rounds in core.rounds:
        own, fragment = rounds.work.own, rounds.fragment
        under_way = core.run_state.open_plan(fragment) is not None
        if own is not None and (under_way or rounds.version < core.run_state.committed(fragment)):
            return None
        if own is not None:
            return WaitReason("waiting", text, own.since, NEVER)
    trains = core.run_state.views and core.part.steps is None
    return WaitReason("training" if trains else "waiting", text, now, NEVER)


def _stepping(core: PeerCore, steps: StepMachine, now: float) -> WaitReason:
    """The wait in a stepwise run."""
    progress, version = core.run_state.step_progress, steps.ranks.version
    if version < 0:
        return WaitReason("training", "its ranks", now, core.deadline)
    if progress.halted:
        return WaitReason("waiting", f"the next roster{_from_leader(core)}", now, core.deadline)
    awaited = _names(core, steps.missing())
    if awaited:
        return WaitReason("reducing", f"step {version + 1}: {awaited}", now, core.deadline)
    return WaitReason("training", "", now, core.deadline)


def _first_entries(core: PeerCore) -> str:
    """Why the first entries of the log are missing. A peer that sends unreadable messages
    reconnects again and again, so the reason of the last disconnect is named."""
    discovery = core.links.discovery
    giver = _names(core, sorted(core.links.up)) or discovery.contact
    awaited = "the first entries of the log" + (f", from {giver}" if giver else "")
    if core.links.ended is None:
        return awaited
    peer, why = core.links.ended
    return f"{awaited}; the last connection, with {core.name_of(peer)}, ended: {why}"


def _election(core: PeerCore) -> str:
    """Why there is no leader."""
    log, leader = core.raft.log, core.leader_id
    voters = log.voters
    away = [p for p in voters if p not in core.links.up and p != core.me.peer]
    if 2 * len(away) < len(voters):
        if leader is not None:
            return f"a connection with {core.name_of(leader)}, which leads"
        others = _names(core, [p for p in voters if p != core.me.peer])
        if not others:
            return "an election, in which this node alone votes"
        return f"an election, in which {others} vote"
    awaited = f"a majority of the voters: {_names(core, away)} cannot be reached"
    if core.me.incarnation == 1 or not core.catchup.needed or core.member_status.kept:
        return awaited
    return f"{awaited}; {_STATE_LOST}"


def _place(core: PeerCore) -> str:
    """Why this peer has no state yet."""
    awaited = f"a place in the run{_from_leader(core)}"
    known = core.run_state.members
    members = known.keys() - {core.me.peer}
    givers = members & core.links.up
    if core.leads and givers:
        return f"{awaited}, with the state of {_names(core, sorted(givers))}"
    if core.leader_id in members or givers or (core.member_status.kept and not core.leads):
        return awaited
    if not (core.leads or core.leader_id in core.run_state.witnesses):
        return awaited  # The log names the members, and is not read to its end yet.
    away = _names(core, sorted(members))
    awaited += f": {away} cannot be reached" if away else ": no member is left to give it the state"
    if core.member_status.kept:
        return f"{awaited}; without it the run goes back to a checkpoint"
    return f"{awaited}; {_STATE_LOST if core.me.incarnation > 1 else _OTHERS_STATE}"


def _start(core: PeerCore) -> str:
    """Why rounds have not begun."""
    run, members, led_term = core.run_state.run, core.run_state.members, core.led_term
    if run is None:
        return "this node's disk: it does not hold the first entries of the log yet"
    needed = 1 if core.run_state.restored else run.peers_min
    more = needed - len(members)
    if more > 0:
        return f"{more} more member{'s' * (more > 1)} (peers_min = {needed})"
    if led_term is None:
        return f"the first view{_from_leader(core)}"
    able = led_term.reports.able
    late = _names(core, [p for p in members if p not in able])
    # Two of them may lack a connection.
    return f"the ranks of {late}" if late else f"the first view, of {_names(core, members)}"


def _reduction(core: PeerCore, rounds: FragmentRounds, own: OwnContribution) -> str:
    """The ranks have contributed, and wait for the result."""
    number, next_ = own.round, rounds.version + 1
    if next_ <= core.run_state.committed(rounds.fragment) and next_ != number:
        members = core.run_state.members
        others = members.keys() - {core.me.peer}
        awaited, here = f"the result of round {next_}", sorted(others & core.links.up)
        if here:
            return f"{awaited}, from {_names(core, here)}"
        away = _names(core, sorted(others))
        why = f"{away} cannot be reached" if away else "no member is left to give it"
        return f"{awaited}: {why}"
    awaited = _names(core, rounds.exchange.missing()) or _commit(core, rounds.fragment)
    return f"round {number}: {awaited}"


def _commit(core: PeerCore, fragment: int) -> str:
    """The result is here: the peers that have not reported it, or not written the entry, yet."""
    plan, led_term = core.run_state.open_plan(fragment), core.led_term
    if led_term is None:
        return f"the commit{_from_leader(core)}"
    if plan is None:
        return f"a roster of {_names(core, core.run_state.members)}"
    rounds = led_term.reports.rounds
    said = rounds.get(RoundKey(fragment, plan.stamp.round))
    holders = said.holders(plan) if said is not None else {}
    here = dict.fromkeys((*plan.roster, *core.run_state.members))
    late = [peer for peer in here if peer not in holders]
    log, replication = core.raft.log, core.raft.replication
    if core.raft.commit_index < log.last_index:
        others = (peer for peer in log.voters if peer != core.me.peer)
        late = [peer for peer in others if replication.match(peer) < log.last_index] or late
    return f"the commit, once these report: {_names(core, late) or 'this node'}"


def _from_leader(core: PeerCore) -> str:
    leader = core.leader_id
    return "" if leader is None or core.leads else f", from {core.name_of(leader)}, which leads"


def _names(core: PeerCore, peers: Iterable[PeerId]) -> str:
    return ", ".join(map(core.name_of, peers))
