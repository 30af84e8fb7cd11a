"""Planted bugs where a committed round is completed or taken back, where several fragments are in
flight, and where a contribution cannot be averaged.

Must NOT run anything (mutants.py).
"""

from protocols.leader.decisions import RoundDecisions
from protocols.leader.recovery import usable
from protocols.leader.reports import Reports
from protocols.participant.participant import Participant
from protocols.rounds.contributions import Holdings
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.rounds.retries import accuse
from protocols.state.sample_ledger import SampleLedger
from sims.mutations.patch import Edit, Mutant

VOID_MUTANTS = (
    Mutant(
        "what-the-roster-holds-all-hold",
        "Results are dropped that a member outside the roster, or a joiner, still needs.",
        Edit(RoundDecisions.next_commit, "self.run_state.receivers, plan", "plan.roster, plan"),
    ),
    Mutant(
        "a-void-loses-samples",
        "Samples of the void round are neither committed nor free.",
        Edit(SampleLedger.take_back, "self.free = union(self.free, samples)", "pass"),
    ),
    Mutant(
        "a-void-throws-work-away",
        "A peer that goes on from its own state loses the work since.",
        Edit(FragmentRounds.voided, 'work.resume("rebase", ', 'work.resume("anew", '),
    ),
    Mutant(
        "a-lost-round-is-never-taken-back",
        "Without a checkpoint of an earlier state no peer can go on.",
        Edit(usable, "return _live(run_state, reports, committed) + disks", "return []"),
    ),
    Mutant(
        "goes-on-from-another-state-than-the-cut",
        "Each reader of a void round takes its own state for the one that the run goes on from.",
        Edit(Participant.restored, "and stays and held == restore.versions", "and stays"),
    ),
    Mutant(
        "says-half-a-state-once",
        "The leader ignored an early report; no peer gets the state that only this peer has.",
        Edit(Participant.came, "self.all_rounds.forget_reports()", "pass"),
    ),
    Mutant(
        "what-cannot-be-averaged-stays",
        "Each new attempt fails like the one before.",
        Edit(Reports.fit, "set(live) - reports.voided(plan)", "set(live)"),
    ),
    Mutant(
        "what-cannot-be-averaged-is-late",
        "The contribution has arrived everywhere: the leader waits for it in vain.",
        Edit(accuse, "void, void=True", "void"),
    ),
    Mutant(
        "a-sum-that-cannot-be-made-is-a-result",
        "The owner reports a result that no peer gets.",
        Edit(Holdings.reduced, "if event.void:", "if False:"),
    ),
)
