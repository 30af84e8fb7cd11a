"""Marks: the parts of a core, and which of them a change of state wakes.

A part's mark says that a value which the part reads has changed. The core runs the marked parts,
the first one first, until no mark is left. A part without a mark has nothing to do: its commands
depend only on the values that it reads and on the time, for which it has a deadline. To raise a
mark more often than needed is safe. `sims/simulator/twin_cores.py` compares each event's commands
with those of a core that lets all parts run. Must NOT know what a part does (core.py).
"""

from collections.abc import Mapping

from protocols.interface import events as v
from protocols.raft.node import Raft
from protocols.types.ids import PeerId

CONNECTIVITY = 1 << 0
"""Connections, losses, dialling; branches of the log."""
RAFT = 1 << 1
"""Elections. This part finds out what has changed in the log, and wakes the readers of that."""
LEADERSHIP = 1 << 2
"""The followed leader; the own term as leader."""
CERTIFICATES = 1 << 3
"""Certificates: admissions and revocations."""
LED_TERM = 1 << 4
"""The leader's decisions, and its messages to single peers."""
LOG = 1 << 5
"""Writes to the disk, replication to other peers, and applying committed entries."""
REPORTS = 1 << 6
"""Reports to the leader."""
MEMBER_STATUS = 1 << 7
"""State transfers, and ranks that begin."""
ROUNDS = 1 << 8
"""The rounds of all fragments."""
SOME_ROUNDS = 1 << 9
"""The rounds of woken fragments."""
STEPS = 1 << 10
"""A stepwise run."""
NEXT_STEP = 1 << 11
"""The part of a stepwise run that makes and applies the next step."""
LOG_RELAY = 1 << 12
"""The log and reports that this peer relays."""
WORD = 1 << 13
"""ReportsComplete, sent when nothing else is left to do."""
ENDING = 1 << 14
"""The end of the run, or of this peer's part in it."""
SAMPLES = 1 << 15
"""Samples that the ranks may draw."""

ALL = (1 << 16) - 1
"""Values that all parts read: the replicated state, connected peers, the leader, the disk, the
rules, whether there is a state and the ranks can train. They change rarely."""
TIMED = (CONNECTIVITY, RAFT, CERTIFICATES, LED_TERM, MEMBER_STATUS, ROUNDS, STEPS, LOG_RELAY)
"""Parts with deadlines of their own."""
LONGER_LOG = CONNECTIVITY | CERTIFICATES | LED_TERM
"""Uncommitted entries that matter: those of the own leadership, the first ones of another leader,
and changes of the voters. Other entries are read when they are committed."""
FURTHER_COMMIT = CONNECTIVITY | LED_TERM | LOG | LOG_RELAY
"""More of the log is committed."""
PROVED = LOG_RELAY
"""A commit can be proved to learners."""
RELAYED = RAFT | LOG_RELAY
"""Our relay brought entries, or one of our learners a report."""
REPORTED = LED_TERM
"""A peer reported something to the leader."""
MISSED = LED_TERM | CONNECTIVITY
"""Links between other peers have changed."""
ASKED_TO_LET_IN = CERTIFICATES
OUR_ROUND = CONNECTIVITY | REPORTS | MEMBER_STATUS | ROUNDS | ENDING | SAMPLES
"""A contribution, an outer step or a version of this peer."""
TRANSFERRED = MEMBER_STATUS | REPORTS
"""A state transfer to this peer or from it."""
OUR_STEP = CONNECTIVITY | REPORTS | MEMBER_STATUS | STEPS | ENDING
"""The kept copy of a stepwise run's state."""
DECIDED = LOG | ENDING
"""The leader's decisions ran: messages wait, or no peer has the run's state."""
APPENDED = RAFT | LOG
"""The log is longer, or a hand-over began, by our own decision."""
SAID = LOG
"""Elections ran: messages wait."""

AFTER: Mapping[type[object], int] = {
    **dict.fromkeys((v.DeadlineReached, v.MessageReceived, v.BlocksReceived), 0),
    **dict.fromkeys((v.SliceBegun, v.SliceReceived, v.ResultReceived, v.StepReceived), 0),
    **dict.fromkeys((v.Encoded, v.PartReduced), SOME_ROUNDS),
    **dict.fromkeys((v.BlocksCompared, v.CopiesCompared), SOME_ROUNDS),
    v.ContributionReady: OUR_ROUND,
    **dict.fromkeys((v.StepMade, v.StepApplied), NEXT_STEP),
    v.CellReceived: TRANSFERRED,
    v.BytesReceived: RAFT,
    v.Persisted: RAFT,
    **dict.fromkeys((v.Secured, v.AdmitAsked, v.Proved, v.NotProved, v.ActAsked), CERTIFICATES),
}
"""By type of event, the parts that it wakes; other events wake all. 0: its handler raises the
marks."""


class RaftChanges:
    """What the last pass over the elections has found in Raft, to see what has changed since."""

    def __init__(self) -> None:
        self._leads: tuple[object, ...] = ()
        self._commit_index = 0
        self._last_index = 0
        self._votes: tuple[int, tuple[PeerId, ...]] = (0, ())
        """(term of the last entry, voters)."""
        self._proved = (0, 0)
        """(number of signatures that were checked, index up to which our disk holds the log)."""

    def marks(self, raft: Raft) -> int:
        """The parts that have to run after the changes since the last call."""
        found, log, state, election = 0, raft.log, raft.term_state, raft.election
        settled = state.leads and raft.settled
        ours = (state.term, state.leader, state.role)
        leads = (*ours, raft.disk.works, settled, election.handing_over)
        if leads != self._leads:
            self._leads = leads
            found = ALL
        if self._commit_index != raft.commit_index:
            self._commit_index = raft.commit_index
            found |= FURTHER_COMMIT
        votes = (log.last_term, log.voters)
        if votes != self._votes or (state.leads and log.last_index != self._last_index):
            found |= LONGER_LOG
        self._votes, self._last_index = votes, log.last_index
        proved = (raft.commitment.checked_number, raft.disk.durable_index)
        if self._proved != proved:
            self._proved = proved
            found |= PROVED
        return found
