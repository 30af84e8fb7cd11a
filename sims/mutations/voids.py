"""Bugs to plant where a committed round is over or taken back, where several fragments are in
flight, and where a contribution cannot be averaged.

Must NOT run anything (mutants.py).
"""

from protocols.leader.decisions import Leader
from protocols.leader.recovery import usable
from protocols.leader.reports import Reports
from protocols.peer.participant import Participant
from protocols.rounds.contributions import Holdings
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.rounds.retries import accuse
from protocols.state.sample_ledger import Ledger
from sims.mutations.patch import Edit, Mutant

VOID_MUTANTS = (
    Mutant(
        "what-the-roster-holds-all-hold",
        "Results are dropped that a member outside the roster, or a joiner, has to ask for.",
        Edit(Leader._next_commit, "self.members.receivers, plan", "plan.roster, plan"),
    ),
    Mutant(
        "a-void-loses-samples",
        "What the lost round had counted is neither committed nor anybody's.",
        Edit(Ledger.take_back, "self.free = union(self.free, samples)", "pass"),
    ),
    Mutant(
        "a-void-throws-work-away",
        "Who goes on from what it has begins anew, and not with what it trained since.",
        Edit(FragmentRounds.voided, 'self._resume("rebase")', 'self._resume("anew")'),
    ),
    Mutant(
        "a-lost-round-is-never-taken-back",
        "Without a checkpoint of what came before, nobody can go on.",
        Edit(usable, "return _live(members, reports, committed) + disks", "return []"),
    ),
    Mutant(
        "goes-on-from-another-state-than-the-cut",
        "Whoever reads of a void round takes what it has for what the run goes on from.",
        Edit(Participant.restored, "and stays and held == restore.versions", "and stays"),
    ),
    Mutant(
        "says-half-a-state-once",
        "Its leader took it for a stranger's, and nobody gets what only it has.",
        Edit(Participant.came, "rounds.forget_reports()", "pass"),
    ),
    Mutant(
        "what-cannot-be-averaged-stays",
        "Attempt after attempt ends like the one before.",
        Edit(Reports.fit, "set(live) - reports.voided(plan)", "set(live)"),
    ),
    Mutant(
        "what-cannot-be-averaged-is-late",
        "It has come to everybody who complains: the leader gives it time that helps nobody.",
        Edit(accuse, "void, void=True", "void"),
    ),
    Mutant(
        "a-sum-that-cannot-be-made-is-a-result",
        "Its owner says that it has one, and nobody gets it.",
        Edit(Holdings.reduced, "if event.void:", "if False:"),
    ),
)
