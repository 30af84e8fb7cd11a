"""Which parts of a core there are, and which of them a change of state wakes: who reads whom.

A part's mark says that something which it reads is another one now. The core lets the marked parts
run, the first one first, until no mark is left. A part that nothing woke has nothing to do: what it
would say depends on nothing but what it reads, and on the time, of which its deadline says when it
matters. Whoever changes a part makes it read more, or raises a mark more often than needed: both
are safe. `sims/simulator/twin_cores.py` compares each event's commands with those of a core that
lets all parts run. Must NOT know what a part does (core.py).
"""

from collections.abc import Mapping

from protocols.interface import events as v

COMPANY = 1 << 0
"""Who is connected, who is lost, whom we dial; branches of the log."""
RAFT = 1 << 1
"""Elections. It finds by itself what changed in the log, and wakes its readers."""
GOVERNMENT = 1 << 2
"""Whom we follow; the office while we lead."""
GATE = 1 << 3
"""Who gets a certificate."""
OFFICE = 1 << 4
"""The leader's decisions and orders."""
LOG = 1 << 5
"""What goes to the disk and to others' logs; entries that hold are applied."""
REPORTS = 1 << 6
"""What the leader does not know of us yet."""
STANDING = 1 << 7
"""Our state: getting it, giving it, ranks that begin."""
ROUNDS = 1 << 8
"""The rounds of all fragments."""
SOME_ROUNDS = 1 << 9
"""Those of the fragments that woke by themselves."""
STEPS = 1 << 10
"""A stepwise run."""
NEXT_STEP = 1 << 11
"""Of it, what makes and applies the next step."""
RELAYING = 1 << 12
"""What we pass on for others."""
WORD = 1 << 13
"""Telling the leader that it has heard all: when nothing else is left to do."""
ENDING = 1 << 14
"""Whether this is the end."""
SAMPLES = 1 << 15
"""What our ranks may draw."""

ALL = (1 << 16) - 1
"""Read by all: what the log says, who is connected, who leads, whether our disk works, the rules,
whether we have a state and our ranks can train. These change rarely."""
TIMED = (COMPANY, RAFT, GATE, OFFICE, STANDING, ROUNDS, STEPS, RELAYING)
"""Parts that have deadlines of their own."""
LONGER_LOG = COMPANY | GATE | OFFICE
"""Entries came that do not hold yet, and we decide on top of them; or they are the first ones of
another leader, or change the voters. Nothing else that another leader decided is read before it
holds."""
FURTHER_COMMIT = COMPANY | OFFICE | LOG | RELAYING
"""More of the log holds."""
RELAYED = RAFT | RELAYING
"""A relay of ours brought entries, or a learner of ours a report."""
REPORTED = OFFICE
"""A peer said something to the leader."""
MISSED = OFFICE | COMPANY
"""Links between others are there or not: people hear of it."""
ASKED_TO_LET_IN = GATE
OUR_ROUND = COMPANY | REPORTS | STANDING | ROUNDS | ENDING | SAMPLES
"""A contribution, an outer step or a version of ours."""
TRANSFERRED = STANDING | REPORTS
"""Of a state that comes to us, or that we give."""
OUR_STEP = COMPANY | REPORTS | STANDING | STEPS | ENDING
"""The copy that we keep of a stepwise run's state."""
DECIDED = LOG | ENDING
"""The office ran: messages wait, or it found out that no peer has the run's state."""
APPENDED = RAFT | LOG
"""The log is longer, or hands over, by our own decision."""
SAID = LOG
"""Elections ran: messages wait."""

AFTER: Mapping[type[object], int] = {
    **dict.fromkeys((v.DeadlineReached, v.MessageReceived), 0),
    **dict.fromkeys((v.SliceBegun, v.SliceReceived, v.ResultReceived, v.StepReceived), 0),
    **dict.fromkeys((v.Encoded, v.PartReduced), SOME_ROUNDS),
    v.ContributionReady: OUR_ROUND,
    **dict.fromkeys((v.StepMade, v.StepApplied), NEXT_STEP),
    v.CellReceived: TRANSFERRED,
    v.Persisted: RAFT,
    **dict.fromkeys((v.Secured, v.AdmitAsked, v.Signed, v.NotSigned, v.RevokeAsked), GATE),
}
"""What each event changes, by its type; of all others, all. After 0 whoever takes it says so."""
