"""Planted bugs in pairwise (gossip) rounds.

Must NOT run anything (mutants.py).
"""

from protocols.leader.decisions import RoundDecisions
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.state.run_state import RunState
from sims.mutations.patch import Edit, Mutant

GOSSIP_MUTANTS = (
    Mutant(
        "a-late-majority-commits-pairs",
        "A peer is counted without holding its result, which no other peer can send.",
        Edit(RoundDecisions._agreed, "late = not plan.pairs and now", "late = now"),
        tests=("tests/protocols/state/test_gossip_pairs.py",),  # Seeds seldom come so late.
    ),
    Mutant(
        "an-attempt-pairs-anew",
        "The remaining peers get other partners than the view gave them.",
        Edit(RunState.plan, "pairs_of(view.roster,", "pairs_of(roster,"),
    ),
    Mutant(
        "sums-a-partner-that-was-left-out",
        "The commit does not count a contribution that is in the sum.",
        Edit(RunState.plan, "roster, **of)", "view.roster, **of)"),
    ),
    Mutant(
        "a-round-that-counts-us-passes-by",
        "The peer's work is in its partner's state and in no other one.",
        Edit(
            FragmentRounds._pass_by,
            "if any(term.peer == self.me for term in commit.contributors)",
            "if commit.round < 0",
        ),
    ),
)
