"""The parts of a core, composed, and what all of them share.

A part reads the state of others, and returns commands for everything that is possible and not done.
passes.py runs them. Must NOT take events (core.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from protocols.acts.settings import rules_with
from protocols.interface import commands as c
from protocols.leader.leadership import Leadership
from protocols.leader.term import LeadershipTerm
from protocols.links.connections import Connections
from protocols.links.handshake import Identity
from protocols.links.leader_proofs import LoggedProofs
from protocols.links.log_relay import LogRelay
from protocols.messages import peer as m
from protocols.messages.persisted import Saved
from protocols.participant.participant import Participant
from protocols.peer import wakeups
from protocols.peer.certificates import Certificates
from protocols.peer.connectivity import Connectivity
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.state.log_applier import LogApplier
from protocols.types.clock import NEVER
from protocols.types.ids import PeerId
from protocols.types.rules import ProtocolConfig
from protocols.types.signatures import NO_SIGNATURES, NoSignatures, Signatures


class Components(ABC):
    """The parts of one core. They add their commands to one list, `_out`."""

    def __init__(
        self,
        me: Identity,
        *,
        join: bool,
        saved: Saved | None = None,
        kept: m.Kept | None = None,
        contacts: Sequence[str] = (),
        rules: ProtocolConfig | None = None,
        signatures: Signatures = NO_SIGNATURES,
    ) -> None:
        """`join` False: this peer founds the run. `contacts`: addresses of peers of the run, the
        first one to try first.

        `saved`: the log of an earlier incarnation; `kept`: its newest checkpoint; `rules`: those of
        the run if known, else they come with RunAccepted; `signatures`: with the node's key; with
        NO_SIGNATURES any peer may claim to lead. Raises LogError if `saved` contradicts itself.
        """
        self.me = me
        signs = not isinstance(signatures, NoSignatures)
        prove = LoggedProofs if signs else None
        self.log_applier = LogApplier(me.peer, saved, signatures, prove)
        self.raft, self.run_state = self.log_applier.raft, self.log_applier.run_state
        self.election, self.replication = self.raft.election, self.raft.replication
        self.disk = self.raft.disk
        self.part = Participant(me, self.run_state, founds=not join, kept=kept)
        self.member_status, self.catchup = self.part.member_status, self.part.catchup
        self.all_rounds = self.part.all_rounds
        self.links = Connections(next(iter(contacts), ""), mine=me.address)
        self.failure_detector = self.links.failure_detector
        self.log_relay = LogRelay(self.log_applier, self.links)
        self.leadership = Leadership(self.raft, self.run_state, self.links)
        self.certificates = Certificates(me.peer, self.run_state, self.links)
        self.connectivity = Connectivity(
            me, self.raft, self.run_state, self.part, self.links, self.leadership
        )
        self.leader_watch = self.connectivity.leader_watch
        self.stopped = False
        self.deadline = NEVER
        """Time at which DeadlineReached is due, as of the last event."""
        self.raised = 0
        """Marks of the parts to run (wakeups.py)."""
        self._due = dict.fromkeys(wakeups.TIMED, NEVER)
        """By part, the time at which it wakes by itself."""
        self._changes = wakeups.RaftChanges()
        self._awake = False
        self._further = list(contacts[1:])
        """Addresses to try if those before them refuse this peer."""
        self._out: list[c.Command] = []
        self._rules(rules or ProtocolConfig())

    @property
    def rounds(self) -> list[FragmentRounds]:
        """The rounds of each fragment."""
        return self.all_rounds.of_fragments

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
        rules = rules_with(rules, self.run_state.orders.settings)
        self.rules = self.failure_detector.rules = rules
        self.raft.rules = self.election.rules = rules
        self.part.rules(rules)
