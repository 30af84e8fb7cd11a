"""Planted bugs in the branches of a log of two voters; only runs of two peers can catch them.

As rounds.py for rounds. Must NOT run anything (mutants.py).
"""

from protocols.leader.voters import Voters
from protocols.peer.branches import Branches
from sims.mutations.patch import Edit, Mutant

DECIDE = "(-theirs.tokens, theirs.forks) < (-mine.tokens, mine.forks)"

FORK_MUTANTS = (
    Mutant(
        "fewer-tokens-stay",
        "Both sides agree, but the branch that has trained more is given up.",
        Edit(Branches._meet, DECIDE, "(theirs.tokens, theirs.forks) < (mine.tokens, mine.forks)"),
    ),
    Mutant(
        "a-tie-keeps-the-higher-name",
        "With equal tokens the younger branch stays, which no other peer has read.",
        Edit(Branches._meet, DECIDE, "(-theirs.tokens, mine.forks) < (-mine.tokens, theirs.forks)"),
    ),
    Mutant(
        "one-side-takes-a-tie-the-other-way",
        "With equal tokens both leaders go on, each as the branch that stays.",
        Edit(Branches._meet, DECIDE, f"bool(self._run_state.forks) < ({DECIDE})"),
    ),
    Mutant(
        "who-forked-stays",
        "One side decides by which peer was alone: both branches are given up, or none.",
        Edit(Branches._meet, DECIDE, f"not self._run_state.forks and ({DECIDE})"),
    ),
    Mutant(
        "stays-frozen",
        "If the other leader is lost before the decision, nothing is ever committed again.",
        Edit(Branches._part_ways, "led_term.frozen = False", "pass"),
    ),
    Mutant(
        "lets-a-second-one-vote-while-it-is-alone",
        "A peer has a vote in a branch that is given up if the other branch stays.",
        Edit(Voters.next_voter, "if self.run_state.rivals or ", "if "),
    ),
    Mutant(
        "forks-at-once",
        "A short loss of the link between two healthy peers costs one of them its work.",
        Edit(
            Branches._go_alone,
            "if now < self._alone_since + self._rules.lonely_after_s:",
            "if False:",
        ),
    ),
    Mutant(
        "gives-up-as-soon-as-nobody-leads",
        "A restarted peer that is about to lead its branch joins the other branch.",
        Edit(
            Branches.look,
            "if now >= self._gives_up_at:",
            "if True:",
        ),
    ),
    Mutant(
        "listens-to-another-branch",
        "A vote or an entry of one branch of the log counts in the other.",
        Edit(Branches.keeps_out, "return self._is_foreign(peer)", "return False"),
    ),
)
