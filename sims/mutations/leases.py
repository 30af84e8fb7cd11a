"""Bugs to plant into the accounting of samples, as rounds.py does into the rest of the core.

Must NOT run anything (mutants.py).
"""

from protocols.leader.recovery import back_to
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.state.run_state import Membership
from protocols.state.sample_ledger import Ledger
from sims.mutations.patch import Edit, Mutant

LEASE_MUTANTS = (
    Mutant(
        "leases-committed-samples",
        "What is part of the model is trained a second time.",
        Edit(
            Ledger.committed,
            "held = self.held.get(peer)\n",
            "self.free = union(self.free, samples)\n    held = self.held.get(peer)\n",
        ),
    ),
    Mutant(
        "a-loss-releases-what-may-count",
        "A lost peer's samples are leased again, and then its contribution is counted.",
        Edit(Ledger.settle, "if not counts and round_ >= gone.until:", "if True:"),
    ),
    Mutant(
        "a-restart-releases-what-may-count",
        "What the earlier life sent is summed, though somebody else has its samples by then.",
        Edit(Ledger.settle, "if not counts and ", "if "),
    ),
    Mutant(
        "a-rebase-forgets-its-samples",
        "The work stays in the parameters and counts later, but nobody says what it was made of.",
        Edit(
            FragmentRounds._resume,
            'self.own.samples if self.own is not None and kind == "rebase" else ()',
            "()",
        ),
    ),
    Mutant(
        "draws-what-a-crash-left-in-flight",
        "New ranks train what the contribution of the old ones, still counted, has in it.",
        Edit(
            FragmentRounds.left,
            "subtract(held, self.given.samples) if self.given and undecided else held",
            "held",
        ),
    ),
    Mutant(
        "keeps-what-the-gone-held",
        "Samples of lost peers are never trained: skipped for good.",
        Edit(Membership.apply, "if self.ledger.gone:", "if False:"),
    ),
    Mutant(
        "restores-the-newest-ledger",
        "What was committed after the cut is taken for trained, though the model has lost it.",
        Edit(back_to, "kept.remaining", "members.ledger.remaining"),
    ),
)
