"""I2 and I5: entries of a leader rest on reports that peers sent, and on results that they hold.

Also checks the exchange under these decisions: results are sent to all state receivers, and kept
until they may be dropped. Must NOT judge whether a decision was a good one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.rounds import KEEP_ROUNDS, Fence
from protocols.types import PeerId, Stamp
from sims.checkers.elections import LeaderRecord
from sims.node.node import Node

Life = tuple[PeerId, int]
"""An incarnation of a peer: (peer, incarnation)."""


class Decisions:
    """Checks the decisions of all leaders against the reports that peers sent."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._held: dict[tuple[Stamp, str], set[Life]] = {}
        """By (stamp, result digest): the incarnations that reported holding that result."""
        self._told: set[tuple[PeerId, int]] = set()
        """(peer, term): the peers that have sent all their reports to the leader of that term."""
        self._ready: dict[tuple[Life, PeerId, int], tuple[int, Stamp]] = {}
        """By (incarnation, receiver, fragment): the term and the stamp of its last offer."""
        self._reported: dict[tuple[PeerId, int, PeerId, int], tuple[int, int]] = {}
        """By (leader, term, peer, fragment): (lineage, round) of the state that the peer
        reported."""
        self._have: dict[tuple[Life, int], tuple[int, int, int]] = {}
        """By (incarnation, fragment): (term, lineage, round) of the state that it reported last."""
        self._shared: set[tuple[Life, Stamp, int]] = set()
        """(incarnation, stamp, part) of each result that was sent to any peer."""

    # Reports and results of peers -----------------------------------------------------------

    def offered(self, node: Node, to: PeerId, stamp: Stamp) -> None:
        """A peer reports that it contributed."""
        me = node.me
        key = ((me.peer, me.incarnation), to, stamp.fragment)
        self._ready[key] = node.raft.term, stamp

    def hears_state(self, node: Node, peer: PeerId, have: m.Have) -> None:
        """A leader receives a peer's report of its state."""
        key = (node.peer, node.raft.term, peer, have.fragment)
        self._reported[key] = have.lineage, have.round

    def let_in(self, node: Node, member: e.Member, commands: Sequence[c.Command]) -> None:
        """Check that a peer reports its state as soon as it reads that it is a member: the leader
        may have ignored earlier reports, as those of a non-member."""
        core, info = node.core, member.info
        if (info.peer, info.incarnation) != (core.me.peer, core.me.incarnation):
            return
        here = core.member_status.is_member and core.leader_id in core.links.up and not core.stopped
        sent = [command.message for command in commands if isinstance(command, c.Send)]
        said = {have.fragment for have in sent if isinstance(have, m.Have)}
        held = {x.fragment for x in core.rounds if x.version >= 0 and not x.damaged}
        if here and not held <= said:
            self._found(
                f"{node.peer} is a member, and does not report its state of fragments {held - said}"
            )

    def reconnected(self, node: Node, event: v.PeerConnected) -> None:
        """Check that no report of an earlier incarnation counts for this one."""
        led_term = node.core.led_term
        if led_term is None:
            return
        receivers, open_rounds = led_term.head.receivers, led_term.reports.rounds
        known = receivers.get(event.peer)
        if known is None or known.incarnation >= event.incarnation:
            return
        for reports in open_rounds.values():
            if event.peer in {*reports.ready, *reports.holds, *reports.waiting}:
                self._found(f"{node.peer} counts reports of an earlier incarnation of {event.peer}")

    def heard(self, node: Node, to: PeerId, message: m.Have | m.Hold | m.ReportsComplete) -> None:
        """A peer sends a report."""
        me, core = node.me, node.core
        life = (me.peer, me.incarnation)
        if isinstance(message, m.Have):
            self._have[life, message.fragment] = core.raft.term, message.lineage, message.round
            return
        if isinstance(message, m.ReportsComplete):
            self._told.add((me.peer, message.term))
            for fragment, rounds in enumerate(core.rounds):
                known = self._have.get((life, fragment), (0, 0, 0))
                said = known == (message.term, core.run_state.lineage, rounds.version)
                if rounds.version >= 0 and not (said or rounds.damaged):
                    self._found(f"{me.peer} has reported all in term {message.term} but its state")
                self._told_round(node, to, message.term, fragment)
            return
        stamp = message.stamp
        self._held.setdefault((stamp, message.result_digest), set()).add((me.peer, me.incarnation))
        version = node.core.rounds[stamp.fragment].version
        if stamp.lineage == node.run_state.lineage and version < stamp.round - 1:
            self._found(
                f"{me.peer} reports holding round {stamp.round}, and is at {version} itself"
            )

    def _told_round(self, node: Node, to: PeerId, term: int, fragment: int) -> None:
        """Check that a peer that waits for a round has offered its contribution to this term's
        leader."""
        core, me = node.core, node.me
        rounds, plan = core.rounds[fragment], core.run_state.open_plan(fragment)
        if plan is None or to not in core.run_state.receivers or rounds.version < 0:
            return
        given = rounds.work.given
        counts = me.peer in plan.roster and core.run_state.counts(me.peer, plan.stamp.view)
        if given is None or given.round != plan.stamp.round or not (given.manifest and counts):
            return
        if self._ready.get(((me.peer, me.incarnation), to, fragment)) != (term, plan.stamp):
            self._found(f"{me.peer} has reported all in term {term} but its contribution")

    def released(self, node: Node, release: c.ReleaseRound) -> None:
        """Check that a result is dropped only if KEEP_ROUNDS later rounds are committed, or if its
        commit says that all peers hold it and this peer has applied it."""
        run_state, version = node.run_state, node.core.rounds[release.fragment].version
        committed = run_state.committed(release.fragment)
        commit = run_state.commit(release.fragment, release.round)
        over = commit is not None and commit.held_by_all and release.round <= version
        if release.round > max(0, committed - KEEP_ROUNDS) and not over:
            self._found(f"{node.peer} drops the result of round {release.round} of {committed}")

    def shared(self, node: Node, command: c.SendResult, commands: Sequence[c.Command]) -> None:
        """Check that the owner of a part sends its result to all connected state receivers."""
        core, stamp, part = node.core, command.stamp, command.part
        key = ((core.me.peer, core.me.incarnation), stamp, part)
        plan = core.run_state.open_plan(stamp.fragment)
        if key in self._shared or plan is None or plan.stamp != stamp:
            return
        self._shared.add(key)
        if plan.parts.owners[part] != node.peer:
            return
        to = {
            other.peer
            for other in commands
            if isinstance(other, c.SendResult) and (other.stamp, other.part) == (stamp, part)
        }
        receivers = core.run_state.receivers
        left_out = (core.links.up & receivers.keys()) - to
        if left_out:
            self._found(f"{node.peer} does not send a result of round {stamp.round} to {left_out}")

    def asked(
        self, node: Node, sender: PeerId, fetch: m.Fetch, commands: Sequence[c.Command]
    ) -> None:
        """Check that a holder of a result sends it to a state receiver that asks for it."""
        core, stamp = node.core, fetch.stamp
        plan = core.run_state.plan(stamp.fragment, stamp.round)
        if plan is not None and plan.stamp != stamp:
            return  # Its sum may have been under way, but no peer can commit it any more.
        if plan is None and stamp.round > core.run_state.committed(stamp.fragment):
            return  # In a pause, by the log that it has read.
        here = (
            node.data_plane.reductions.keeps(stamp, fetch.part)
            and sender in core.run_state.receivers
        )
        answered = any(isinstance(x, c.SendResult) and x.peer == sender for x in commands)
        # A sum that was still being made when another attempt followed is dropped: it can never be
        # committed, and the peer that asks for it has not read that yet.
        plan = core.run_state.open_plan(stamp.fragment)
        over = plan is not None and plan.stamp.round == stamp.round and plan.stamp != stamp
        if here and not (answered or over) and stamp.lineage == core.run_state.lineage:
            self._found(
                f"{node.peer} has a result of round {stamp.round}, and does not send it to {sender}"
            )

    # Entries of leaders ---------------------------------------------------------------------

    def made(self, node: Node, reign: LeaderRecord) -> None:
        """Check the entries that a leader appended since the last check."""
        log, seen = node.raft.log, reign.seen
        if log.last_index <= seen:
            return
        reign.seen = log.last_index
        fresh = [entry.body for entry in log.since(max(seen, log.base) + 1)]
        self._one_voter(node)
        for position, body in enumerate(fresh):
            match body:
                case e.Commit():
                    self._is_held(node, reign, body, fresh[position + 1 :])
                case e.Attempt() | e.View() | e.Restore():
                    self._is_told(node, reign, body)
                case e.Left():
                    self._may_go(node, body.peer, fresh[position + 1 :])
                case _:
                    pass
            for fragment in _plans(node, body):
                reign.planned_at[fragment] = node.now

    def _one_voter(self, node: Node) -> None:
        """Check that one voter changes at a time: after two changes at once, majorities need not
        overlap."""
        raft = node.raft
        changed: set[PeerId] = set()
        for entry in raft.log.since(max(raft.commit_index, raft.log.base) + 1):
            match entry.body:
                case e.Voter(peer=peer):
                    changed.add(peer)
                case e.Left(peer=peer) | e.Lost(peer=peer):
                    if raft.log.voted_since(peer, max(raft.commit_index, raft.log.base)):
                        changed.add(peer)
                case _:
                    pass
        if len(changed) > 1:
            self._found(f"{node.peer} changes the votes of {sorted(changed)} at once")

    def _is_held(
        self, node: Node, reign: LeaderRecord, commit: e.Commit, later: Sequence[e.Entry]
    ) -> None:
        """Check that two live members hold a committed result, or the only one with a disk that
        works; until the reduction timeout, all contributors that still count must hold it."""
        core = node.core
        if core.led_term is None or any(isinstance(entry, e.Restore) for entry in later):
            return
        head, stamp = core.led_term.head, Fence(core.run_state, commit.fragment).stamp_of(commit)
        said = self._held.get((stamp, commit.result_digest), set())
        holding = {peer for peer, life in said if core.links.life(peer, life) <= life}
        for rounds in core.all_rounds.rounds_of(stamp):  # A witness has no rounds.
            held = rounds.exchange.held
            mine = held.digest(stamp, len(commit.borders) - 1)
            if mine == commit.result_digest or rounds.version >= commit.round:
                holding.add(node.peer)
        new = {x.info.peer for x in later if isinstance(x, e.Cut)}
        without = {
            peer
            for peer, info in head.receivers.items()
            if peer not in new and peer != node.peer and (peer, info.incarnation) not in said
        }
        if commit.held_by_all and without and not head.gossip:
            self._found(
                f"round {commit.round} counts as held by all, and {sorted(without)} lack it"
            )
        live = head.members.keys() - {x.info.peer for x in later if isinstance(x, e.Member)}
        broken = core.led_term.leader.accounts.broken
        fit = {peer for peer in live - holding if not broken(peer)}
        if len(holding) < 2 and fit and not head.gossip:
            self._found(f"round {commit.round} is committed, and only {sorted(holding)} hold it")
        patience_s = core.rules.reduction_timeout_s
        roster = {term.peer for term in commit.contributors}
        lacking = {peer for peer in roster - holding if head.counts(peer, commit.view)}
        planned_at = reign.planned_at.get(commit.fragment, reign.began)
        if lacking and (head.gossip or node.now < planned_at + patience_s):
            self._found(f"round {commit.round} is committed at once, and {lacking} lack it")

    def _is_told(self, node: Node, reign: LeaderRecord, body: e.Entry) -> None:
        """Check that a new leader waits for the reports of all connected members, at most for one
        election timeout, before it decides about rounds."""
        core, rules = node.core, node.core.rules
        if node.now >= reign.began + rules.election_timeout_s:
            return
        assert core.led_term is not None
        head = core.led_term.head
        here = head.members.keys() & core.raft.up
        silent = {peer for peer in here if (peer, reign.term) not in self._told}
        if silent:
            self._found(f"{node.peer} decides {body!r} before the reports of {silent}")

    def _may_go(self, node: Node, peer: PeerId, later: Sequence[e.Entry]) -> None:
        """Check that the last holder of the newest state may leave only once another peer holds
        it."""
        core, gone = node.core, node.world.nodes[peer]
        if core.led_term is None or any(isinstance(entry, e.Commit | e.Restore) for entry in later):
            return
        head = core.led_term.head
        catchup = gone.core.member_status.catchup
        under_way = catchup.transfer is not None
        behind = any(one.version < head.committed(one.fragment) for one in gone.core.rounds)
        if under_way or behind:
            return  # No peer can go on from a part of the state.
        for fragment in range(head.fragments):
            self._leaves_a_state(node, gone, fragment)

    def _leaves_a_state(self, node: Node, gone: Node, fragment: int) -> None:
        core, peer = node.core, gone.peer
        assert core.led_term is not None
        head = core.led_term.head
        committed = head.committed(fragment)
        if (
            not (_has(gone, head.lineage, fragment, committed) and gone.running)
            or gone.states.corrupt
        ):
            return  # A corrupt state may have been refused, and counts as none.
        told = self._reported.get((node.peer, core.raft.term, peer, fragment))
        lacks = any(rounds.version < committed for rounds in core.rounds[fragment : fragment + 1])
        if told == (head.lineage, committed) and lacks:
            self._found(f"{peer} may leave, and its leader lacks its state of round {committed}")
        others = [other for p in head.receivers if (other := node.world.nodes[p]) is not gone]
        if not others:
            return  # A witness leads, and keeps the log: the state is on the disks.
        # A joiner with all of its cut can pass it on as soon as it has reported that.
        here = [
            other
            for other in others
            if other.running
            if other.peer in head.members or not other.lacks_state
        ]
        if not any(_has(other, head.lineage, fragment, committed) for other in here):
            self._found(f"{peer} may leave, and no other peer has round {committed}")


def _plans(node: Node, body: e.Entry) -> Collection[int]:
    """The fragments for which an entry opens a round, or changes the open round."""
    run_state = node.run_state
    match body:
        case e.Commit(fragment=fragment) | e.Attempt(fragment=fragment):
            return (fragment,)
        case e.Restore():
            return range(run_state.fragments)
        case e.View(first_round=first):  # Not a view that changes only later rounds.
            return [f for f, round_ in enumerate(first) if round_ <= run_state.committed(f) + 1]
        case _:
            return ()


def _has(node: Node, lineage: int, fragment: int, round_: int) -> bool:
    """True if a node has the state after a round, or a result of that round."""
    core = node.core
    if not core.rounds or core.run_state.lineage != lineage:
        return False
    rounds = core.rounds[fragment]
    held = rounds.exchange.held
    return rounds.version >= round_ or (
        rounds.version >= 0 and any(stamp.round == round_ for stamp in held.results)
    )
