"""Planted bugs in the accounting of samples, as in rounds.py for the rest of the core.

Must NOT run anything (mutants.py).
"""

from protocols.leader.recovery import back_to
from protocols.rounds.local_work import LocalWork
from protocols.state import transitions
from protocols.state.sample_ledger import SampleLedger
from sims.mutations.patch import Edit, Mutant

LEASE_MUTANTS = (
    Mutant(
        "leases-committed-samples",
        "Samples that are part of the model are trained a second time.",
        Edit(
            SampleLedger.committed,
            "held = self.held.get(peer)\n",
            "self.free = union(self.free, samples)\n    held = self.held.get(peer)\n",
        ),
    ),
    Mutant(
        "a-loss-releases-what-may-count",
        "A lost peer's samples are leased again, and then its contribution is counted.",
        Edit(SampleLedger.settle, "if not counts and round_ >= gone.until:", "if True:"),
    ),
    Mutant(
        "a-restart-releases-what-may-count",
        "An earlier incarnation's contribution counts, but its samples are leased again.",
        Edit(SampleLedger.settle, "if not counts and ", "if "),
    ),
    Mutant(
        "a-rebase-forgets-its-samples",
        "The work stays in the parameters and counts later, without its samples.",
        Edit(
            LocalWork.resume,
            'self.own.samples if self.own is not None and kind == "rebase" else ()',
            "()",
        ),
    ),
    Mutant(
        "draws-what-a-crash-left-in-flight",
        "New ranks train samples that the lost ranks' contribution, still open, contains.",
        Edit(
            LocalWork.left,
            "subtract(held, self.given.samples) if self.given and undecided else held",
            "held",
        ),
    ),
    Mutant(
        "keeps-what-the-gone-held",
        "Samples of lost peers are never trained.",
        Edit(transitions.apply, "if run_state.ledger.gone:", "if False:"),
    ),
    Mutant(
        "restores-the-newest-ledger",
        "Samples committed after the cut count as trained, though the model has lost them.",
        Edit(back_to, "kept.remaining", "run_state.ledger.remaining"),
    ),
)
