"""The parts of a core, and what each does when it runs.

A part reads the state of others, and returns commands for everything that is possible and not done.
wakeups.py says which change wakes which part; the core (core.py) runs the marked parts. Must NOT
take events.
"""

from abc import ABC, abstractmethod
from functools import partial

from protocols.interface import commands as c
from protocols.leader.leadership import Leadership
from protocols.leader.term import LeadershipTerm
from protocols.links.connections import Connections
from protocols.links.handshake import Identity
from protocols.links.leader_proofs import LoggedProofs
from protocols.links.log_relay import LogRelay
from protocols.messages import peer as m
from protocols.messages.persisted import Saved
from protocols.peer import shutdown, wakeups
from protocols.peer.certificates import Certificates
from protocols.peer.connectivity import Connectivity
from protocols.peer.participant import Participant
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.state.log_applier import LogApplier
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId
from protocols.types.rules import ProtocolConfig
from protocols.types.signatures import NO_SIGNATURES, NoSignatures, Signatures


class Components(ABC):
    """The parts, and `look`, which runs the marked ones. They add their commands to one list,
    `_out`."""

    def __init__(
        self,
        me: Identity,
        *,
        join: bool,
        saved: Saved | None = None,
        kept: m.Kept | None = None,
        contact: str = "",
        rules: ProtocolConfig | None = None,
        signatures: Signatures = NO_SIGNATURES,
    ) -> None:
        """`join` False: this peer founds the run. `contact`: address of a peer of the run.

        `saved`: the log of an earlier incarnation; `kept`: its newest checkpoint; `rules`: those of
        the run if known, else they come with RunAccepted; `signatures`: with the node's key; with
        NO_SIGNATURES any peer may claim to lead. Raises LogError if `saved` contradicts itself.
        """
        self.me = me
        signs = not isinstance(signatures, NoSignatures)
        prove = partial(LoggedProofs, me.peer) if signs else None
        self.log_applier = LogApplier(me.peer, saved, signatures, prove)
        self.raft, self.run_state = self.log_applier.raft, self.log_applier.run_state
        self.election, self.replication = self.raft.election, self.raft.replication
        self.disk = self.raft.disk
        self.part = Participant(me, self.run_state, founds=not join, kept=kept)
        self.member_status, self.catchup = self.part.member_status, self.part.catchup
        self.links = Connections(contact, mine=me.address)
        self.failure_detector = self.links.failure_detector
        self.log_relay = LogRelay(self.log_applier, self.links)
        self.leadership = Leadership(self.raft, self.run_state, self.links)
        self.certificates = Certificates(me.peer, self.run_state, self.links)
        self.connectivity = Connectivity(
            me, self.raft, self.run_state, self.part, self.links, self.leadership
        )
        self.stopped = False
        self.deadline = NEVER
        """Time at which DeadlineReached is due, as of the last event."""
        self.raised = 0
        """Marks of the parts to run (wakeups.py)."""
        self._parts = {
            wakeups.CONNECTIVITY: self._watch,
            wakeups.RAFT: self._elect,
            wakeups.LEADERSHIP: self._follow,
            wakeups.CERTIFICATES: self._let_in,
            wakeups.LED_TERM: self._decide,
            wakeups.LOG: self._write,
            wakeups.REPORTS: self._report,
            wakeups.MEMBER_STATUS: self._stand,
            wakeups.ROUNDS: self._exchange,
            wakeups.SOME_ROUNDS: self._exchange_some,
            wakeups.STEPS: self._make_steps,
            wakeups.NEXT_STEP: self._make_next_step,
            wakeups.LOG_RELAY: self._relay,
            wakeups.WORD: self._tell_all,
            wakeups.ENDING: self._end,
            wakeups.SAMPLES: self._draw,
        }
        self._due = dict.fromkeys(wakeups.TIMED, NEVER)
        """By part, the time at which it wakes by itself."""
        self._leads: tuple[object, ...] = ()
        self._holds = 0
        self._last_index = 0
        self._votes: tuple[int, tuple[PeerId, ...]] = (0, ())
        """Values of the last pass over the elections, which show what has changed since: leader,
        commit index, last index, its term, voters."""
        self._awake = False
        self._contact = contact
        self._out: list[c.Command] = []
        self._rules(rules or ProtocolConfig())

    def look(self, now: float) -> None:
        """Run the marked parts, the first one first, until no mark is left."""
        if not self.raised:
            return
        parts = self._parts
        while self.raised and not self.stopped:
            part = self.raised & -self.raised
            self.raised ^= part
            parts[part](now)
        self.deadline = min(self._due.values())

    @property
    def rounds(self) -> list[FragmentRounds]:
        """The rounds of each fragment."""
        return self.part.rounds

    @property
    def led_term(self) -> LeadershipTerm | None:
        """The leader's state; None unless this peer leads."""
        return self.leadership.led_term

    @property
    def leads(self) -> bool:
        return self.raft.leads

    @property
    def leader_id(self) -> PeerId | None:
        """The leader, possibly this peer; None if it is not known."""
        return self.raft.leader

    @property
    def finished(self) -> bool:
        """Has this peer applied every fragment's last round?"""
        return self.part.finished

    @abstractmethod
    def _message(self, peer: PeerId, message: m.Control, now: float) -> None:
        """Handle a message of a peer, or of this peer to itself."""

    @abstractmethod
    def _apply_committed(self, now: float) -> None:
        """Apply the newly committed entries."""

    # The parts, in the order in which they run -----------------------------------------------

    def _watch(self, now: float) -> None:
        """Connections: losses, heartbeats, dialling, branches."""
        led_term, raft, state = self.leadership.led_term, self.raft, self.raft.term_state
        up, log = (len(self.links.up), len(raft.up)), (state.term, raft.log.last_index)
        frozen = led_term is not None and led_term.frozen
        for command in self.connectivity.watch(now):
            if isinstance(command, c.Stop):
                self._stop(command)
            else:
                self._out.append(command)
        self._due[wakeups.CONNECTIVITY] = self.connectivity.deadline
        if log != (state.term, raft.log.last_index):
            # This peer goes on alone, or another branch is given up.
            self.raised |= wakeups.APPENDED
        if up != (len(self.links.up), len(raft.up)):
            self.raised |= wakeups.ALL
        if led_term is not None and (self.connectivity.take_losses() or frozen != led_term.frozen):
            self.raised |= wakeups.LED_TERM

    def _elect(self, now: float) -> None:
        """Elections; and marks for everything that changed in the log or the leadership since the
        last pass."""
        raft, worked = self.raft, self.disk.works
        raft.advance(now)
        if worked and not self.disk.works:
            self._disk_fails()
        self._due[wakeups.RAFT] = raft.deadline
        self.raised |= wakeups.SAID
        election, state = self.election, raft.term_state
        settled = state.leads and raft.settled
        ours = (state.term, state.leader, state.role)
        leads = (*ours, self.disk.works, settled, election.handing_over)
        if leads != self._leads:
            self._leads = leads
            self.raised |= wakeups.ALL
        if self._holds != raft.commit_index:
            self._holds = raft.commit_index
            self.raised |= wakeups.FURTHER_COMMIT
        log, votes = raft.log, (raft.log.last_term, raft.log.voters)
        if votes != self._votes or (state.leads and log.last_index != self._last_index):
            self.raised |= wakeups.LONGER_LOG
        self._votes, self._last_index = votes, log.last_index
        if self.connectivity.leaderless_since != NEVER and self.connectivity.hears_leader(now):
            self.raised |= wakeups.CONNECTIVITY  # The leader is heard again.

    def _follow(self, now: float) -> None:
        """The leader that this peer follows, or its own term as leader."""
        if self.leadership.follow(now):
            self.part.new_leader()
            self.log_relay.new_leader()
            self.raised |= wakeups.ALL

    def _let_in(self, now: float) -> None:
        led_term = self.leadership.led_term
        self._out += self.certificates.advance(led_term, self.leader_id, now)
        self._due[wakeups.CERTIFICATES] = self.certificates.deadline
        if led_term is not None and led_term.leader.has_of_gate:
            self.raised |= wakeups.LED_TERM

    def _decide(self, now: float) -> None:
        """Decisions of a leader, and its messages to single peers."""
        led_term = self.leadership.led_term
        if led_term is None:
            self._due[wakeups.LED_TERM] = NEVER
            return
        if self._going(now):
            self.raised |= wakeups.APPENDED
        else:
            if led_term.decide(now, lacks_state=self.catchup.needed):
                self.raised |= wakeups.APPENDED
            for command in led_term.orders(now):
                self._emit(command, now)
        self._due[wakeups.LED_TERM] = led_term.deadline if self.raft.settled else NEVER
        self.raised |= wakeups.DECIDED

    def _write(self, now: float) -> None:
        """Send new entries of the log; then apply committed ones."""
        for command in self.raft.take_commands(now):
            self._emit(command, now)
        self._due[wakeups.RAFT] = self.raft.deadline  # Of a write that was handed over.
        before = self.run_state.index
        self._apply_committed(now)
        if before != self.run_state.index:
            self.raised |= wakeups.ALL

    def _report(self, now: float) -> None:
        """Report this peer's status to the leader."""
        leader = self._leader_here
        if leader is None:
            return
        hears = self._hears or leader
        for report in self.member_status.news(hears):
            self._emit(c.Send(hears if isinstance(report, m.Kept) else leader, report), now)

    def _stand(self, now: float) -> None:
        """State transfers, to this peer and from it."""
        before = self.member_status.mark
        commands = self.part.tend(now, self.links.up)
        self._ours(commands, before, now)
        self._due[wakeups.MEMBER_STATUS] = self.part.state_deadline
        self.raised |= wakeups.REPORTS
        if commands:
            self.raised |= wakeups.OUR_ROUND & ~wakeups.MEMBER_STATUS

    def _exchange(self, now: float) -> None:
        """The rounds of all fragments."""
        woken = self.part.woken
        woken.update(range(len(self.rounds)))
        self._exchange_some(now)

    def _exchange_some(self, now: float) -> None:
        """The rounds of the woken fragments."""
        before = self.member_status.mark
        commands, moved = self.part.advance_rounds(now, self.links.up, self._hears)
        self._ours(commands, before, now)
        self._due[wakeups.ROUNDS] = self.part.rounds_deadline
        if moved:
            self.raised |= wakeups.OUR_ROUND & ~wakeups.ROUNDS

    def _make_steps(self, now: float) -> None:
        steps = self.part.steps
        if steps is not None:
            steps.woken = True
            self._make_next_step(now)

    def _make_next_step(self, now: float) -> None:
        steps = self.part.steps
        if steps is None:
            return
        if (following := steps.go_on(now)) is not None:
            self._out += following
            self._due[wakeups.STEPS] = steps.deadline
            return
        base = steps.copy.step
        commands, changed = self.part.make_steps(now, self.links.up, self._hears)
        for command in commands:
            self._emit(command, now)
        self._due[wakeups.STEPS] = steps.deadline
        if changed:
            self.raised |= wakeups.ALL
        if steps.copy.step != base:
            self.raised |= wakeups.OUR_STEP

    def _ours(self, commands: list[c.Command], before: object, now: float) -> None:
        """Take commands of this peer's own part in the run; `before`: its status before them."""
        for command in commands:
            self._emit(command, now)
        if before != self.member_status.mark:
            self.raised |= wakeups.ALL

    def _relay(self, now: float) -> None:
        for command in self.log_relay.relay_entries(now, self._leader_here):
            self._emit(command, now)
        self._due[wakeups.LOG_RELAY] = self.log_relay.deadline

    def _tell_all(self, now: float) -> None:
        """Send ReportsComplete once no other report is left: the leader may rely on that."""
        leader = self._leader_here
        if leader is not None and self.leadership.owes_word():
            self._emit(c.Send(leader, m.ReportsComplete(self.raft.term)), now)

    def _end(self, now: float) -> None:
        if self.leadership.is_hopeless(now):
            self._stop(shutdown.without_state())
        if self.finished:
            before = self.member_status.leaving
            self._stop(shutdown.when_finished(self.member_status, leads=self.leads))
            if before != self.member_status.leaving:
                self.raised |= wakeups.ALL

    def _draw(self, now: float) -> None:
        """Tell the ranks which samples they may draw, before any other command."""
        sample_requests = self.member_status.sample_requests
        self._out[:0] = sample_requests.news()

    # Helpers --------------------------------------------------------------------------------

    @property
    def _leader_here(self) -> PeerId | None:
        """The leader, if it is connected or this peer itself; else None."""
        state = self.raft.term_state
        return state.leader if state.leads or state.leader in self.links.up else None

    @property
    def _hears(self) -> PeerId | None:
        """The receiver of our reports: the leader, or our relay."""
        return self.log_relay.listener(self._leader_here)

    def _going(self, now: float) -> bool:
        """A leader that wants to leave hands over first, since another leader must append its
        Left."""
        if not self.member_status.leaving or self.finished:
            return self.connectivity.gives_way(now)
        led_term = self.led_term
        if led_term is not None and led_term.is_last:
            self._stop(shutdown.when_out(self.member_status, finished=False))
            return True
        going = led_term.leader.unfit if led_term is not None else ()
        return self.election.hand_over(but=going)

    def _disk_fails(self) -> None:
        """The disk has begun to fail: the others need not wait for this peer."""
        why = self.disk.why
        self._out.append(c.Note("disk", f"the log cannot be written: {why}"))
        self.member_status.watch_disk(why)

    def _emit(self, command: c.Command, now: float) -> None:
        """Add a command; a message to this peer itself is handled at once."""
        if isinstance(command, c.Send) and command.peer == self.me.peer:
            self._message(self.me.peer, command.message, now)
        else:
            self._out.append(command)

    def _stop(self, stop: c.Stop | None) -> None:
        if stop is not None and not self.stopped:
            self.stopped = True
            self._out.append(stop)

    def _rules(self, rules: ProtocolConfig) -> None:
        self.rules = self.failure_detector.rules = rules
        self.raft.rules = self.election.rules = rules
        self.part.rules(rules)
        if self.led_term is not None:
            leader = self.led_term.leader
            leader.rules = leader.round_decisions.rules = rules
