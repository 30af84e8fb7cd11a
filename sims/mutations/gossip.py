"""Bugs to plant where peers exchange in pairs.

Must NOT run anything (mutants.py).
"""

from protocols.leader.decisions import Leader
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.state.run_state import Membership
from sims.mutations.patch import Edit, Mutant

GOSSIP_MUTANTS = (
    Mutant(
        "a-late-majority-commits-pairs",
        "What one of a pair lacks nobody else has: it is counted, and takes no part.",
        Edit(Leader._agreed, "late = not plan.pairs and now", "late = now"),
        tests=("tests/protocols/state/test_gossip_pairs.py",),  # Seeds seldom come so late.
    ),
    Mutant(
        "an-attempt-pairs-anew",
        "Whoever is left gets another partner than the view gave it.",
        Edit(Membership.plan, "pairs_of(view.roster,", "pairs_of(roster,"),
    ),
    Mutant(
        "sums-a-partner-that-was-left-out",
        "The commit does not count what is in the sum.",
        Edit(Membership.plan, "roster, **of)", "view.roster, **of)"),
    ),
    Mutant(
        "a-round-that-counts-us-passes-by",
        "Its work is in the partner's state and in no other one.",
        Edit(
            FragmentRounds._pass_by,
            "if any(term.peer == self.me for term in commit.contributors)",
            "if commit.round < 0",
        ),
    ),
)
